//! Kernels that lack a barrier, which are right on a GPU as long as nobody is late: here somebody is.
//!
//! Each is launched as so many blocks that any other order of threads finds the race too, and then once with what it
//! lacks, which must be right in all of them.
use super::*;

/// In how many of 64 blocks of `threads` threads some thread's `result` is not what `expected` says.
fn wrong_blocks(threads: u32, result: impl Fn() -> f32 + Sync, expected: impl Fn(u32) -> f32) -> usize {
    const BLOCKS: u32 = 64;
    let out = zeros(BLOCKS * threads);
    run([BLOCKS, 1, 1], [threads, 1, 1], 8 * threads, &|| {
        let at = thread::block_index()[0] * threads + me();
        out[at as usize].store(result().to_bits(), Relaxed);
    })
    .unwrap();
    let wrong = |block: &&[u32]| (0..threads).zip(*block).any(|(at, &got)| got != expected(at).to_bits());
    values(&out).chunks(threads as usize).filter(wrong).count()
}

/// A word of shared memory for each thread.
fn words() -> Shared<f32> {
    SharedMemory::of_launch().take(thread::block_dim()[0])
}

fn set(at: u32, value: f32) {
    // SAFETY: inside the launch's memory; whether barriers stand where they must is what is tested.
    unsafe { words().set(at, value) };
}

fn get(at: u32) -> f32 {
    // SAFETY: as in `set`.
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
        assert_eq!(wrong_blocks(128, result, |_| 3.0) > 40, !synced, "barrier: {synced}");
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
        assert_eq!(wrong_blocks(32, result, |at| (at ^ 1) as f32), if synced { 0 } else { 64 });
    }
}

#[test]
fn a_write_over_what_another_warp_has_yet_to_read() {
    for synced in [true, false] {
        // The second sum uses the memory of the first.
        let result = || {
            let first = block::sum(1.0, &mut SharedMemory::of_launch());
            if synced {
                block::sync();
            }
            first + block::sum(100.0, &mut SharedMemory::of_launch())
        };
        assert_eq!(wrong_blocks(128, result, |_| 128.0 * 101.0) > 40, !synced, "barrier: {synced}");
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
        assert_eq!(wrong_blocks(32, result, |_| 1.0), if synced { 0 } else { 64 });
    }
}

#[test]
fn one_buffer_where_two_should_take_turns() {
    for buffers in [2, 1] {
        // A barrier a step: with two buffers a warp may be a step ahead.
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
        assert_eq!(wrong_blocks(128, result, |_| 4.0 * 28.0) > 40, buffers == 1, "{buffers} buffers");
    }
}

#[test]
fn what_nobody_wrote_is_no_number() {
    assert_eq!(wrong_blocks(64, || if me() < 63 { 0.0 } else { get(5) }, |_| 0.0), 64);
}

#[test]
fn blocks_have_orders_of_their_own_and_the_same_ones_each_time() {
    let orders = || {
        let turns = zeros(64 * 128);
        let clocks = zeros(64);
        run([64, 1, 1], [128, 1, 1], 0, &|| {
            let block = thread::block_index()[0];
            let turn = clocks[block as usize].fetch_add(1, Relaxed);
            turns[(block * 128 + me()) as usize].store(turn, Relaxed);
        })
        .unwrap();
        values(&turns)
    };
    let first = orders();
    let different: std::collections::BTreeSet<_> = first.chunks(128).collect();
    assert!(different.len() > 60, "{} orders", different.len());
    assert_eq!(orders(), first);
}
