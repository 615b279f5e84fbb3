//! Tests the detection of data races. Each test runs a kernel once with a necessary barrier and once without
//! this barrier.
use cuda_std::cpu::FaultKind;

use super::*;

/// Launches 16 blocks of `threads` threads, which call `result`. `right` says whether the kernel is free of
/// races. If it is, `result()` must equal `expected(thread)` in each thread. Otherwise the launch must report
/// a race.
#[track_caller]
fn check(threads: u32, right: bool, result: impl Fn() -> f32 + Sync, expected: impl Fn(u32) -> f32 + Sync) {
    let done = run([16, 1, 1], [threads, 1, 1], 8 * threads, &|| {
        let got = result();
        assert!(!right || got == expected(me()), "{got}");
    });
    match done {
        Ok(()) => assert!(right, "no fault"),
        Err(fault) => assert!(!right && matches!(fault.kind, FaultKind::Race { .. }), "{fault}"),
    }
}

/// Returns an array in shared memory with one f32 per thread.
fn words() -> Shared<f32> {
    SharedMemory::of_launch().take(thread::block_dim()[0])
}

fn set(at: u32, value: f32) {
    // SAFETY: the store writes a word inside the launch's shared memory. If a barrier is missing, the
    // executor reports the race, which some tests expect.
    unsafe { words().set(at, value) };
}

fn get(at: u32) -> f32 {
    // SAFETY: the load reads a word inside the launch's shared memory. If a barrier is missing, the executor
    // reports the race, which some tests expect.
    unsafe { words().get(at) }
}

#[test]
fn a_read_of_what_another_warp_writes() {
    for synced in [true, false] {
        let result = || {
            if me() == 0 {
                set(0, 3.0);
            }
            if synced {
                block::sync();
            }
            get(0)
        };
        check(128, synced, result, |_| 3.0);
    }
}

#[test]
fn a_read_of_what_another_lane_writes() {
    for synced in [true, false] {
        let result = || {
            set(me(), me() as f32);
            if synced {
                warp::sync(warp::ALL);
            }
            get(me() ^ 1)
        };
        check(32, synced, result, |at| (at ^ 1) as f32);
    }
}

#[test]
fn a_write_over_what_another_warp_has_yet_to_read() {
    for synced in [true, false] {
        // The second sum uses the same shared memory as the first sum. Without a barrier between the sums, a
        // warp may overwrite a value that another warp has yet to read.
        let result = || {
            let first = block::sum(1.0, &mut SharedMemory::of_launch());
            if synced {
                block::sync();
            }
            first + block::sum(100.0, &mut SharedMemory::of_launch())
        };
        check(128, synced, result, |_| 128.0 * 101.0);
    }
}

#[test]
fn a_write_over_what_another_lane_has_yet_to_read() {
    for synced in [true, false] {
        let result = || {
            set(me(), 1.0);
            warp::sync(warp::ALL);
            let theirs = get((me() + 1) % 32);
            if synced {
                warp::sync(warp::ALL);
            }
            set(me(), 2.0);
            theirs
        };
        check(32, synced, result, |_| 1.0);
    }
}

#[test]
fn one_buffer_where_two_should_take_turns() {
    for buffers in [2, 1] {
        // Each step of the loop has only one barrier. One warp may therefore write its value of the next step
        // while another warp still reads values of this step. The result is nevertheless correct if
        // consecutive steps use different buffers.
        let result = || {
            let mut sum = 0.0;
            for step in 0..8 {
                let at = step % buffers * 64;
                if me() % 32 == 0 {
                    set(at + me() / 32, step as f32);
                }
                block::sync();
                sum += (0..4).map(|warp| get(at + warp)).sum::<f32>();
            }
            sum
        };
        check(128, buffers == 2, result, |_| 4.0 * 28.0);
    }
}

#[test]
fn a_race_is_named() {
    let fault = fault(64, 256, &|| {
        if me() == 40 {
            set(3, 1.0);
        }
        warp::sync(warp::ALL);
        if me() == 5 {
            get(3);
        }
    });
    let text = message(&fault);
    let read = "thread (5,0,0): reads 4 bytes at offset 12 of shared memory that thread (40,0,0) wrote with no barrier between";
    let write = "thread (40,0,0): writes 4 bytes at offset 12 of shared memory that thread (5,0,0) read with no barrier between";
    assert!(text.ends_with(read) || text.ends_with(write), "{text}");
}

#[test]
fn halves_of_a_word_may_belong_to_two_threads() {
    run([1; 3], [64, 1, 1], 128, &|| {
        let halves = SharedMemory::of_launch().take::<u16>(64);
        // SAFETY: each thread accesses only its own element.
        unsafe {
            halves.set(me(), me() as u16);
            assert_eq!(halves.get(me()), me() as u16);
        }
    })
    .unwrap();
}

#[test]
fn blocks_have_orders_of_their_own_and_the_same_ones_each_time() {
    let orders = || {
        let steps = zeros(64 * 128);
        let clocks = zeros(64);
        run([64, 1, 1], [128, 1, 1], 0, &|| {
            let block = thread::block_index()[0];
            let step = clocks[block as usize].fetch_add(1, Relaxed);
            steps[(block * 128 + me()) as usize].store(step, Relaxed);
        })
        .unwrap();
        values(&steps)
    };
    let first = orders();
    let different: std::collections::BTreeSet<_> = first.chunks(128).collect();
    assert!(different.len() > 60, "{} orders", different.len());
    assert_eq!(orders(), first);
}
