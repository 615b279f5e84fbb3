//! Tests the faults that the CPU executor reports, except faults at barriers and warp operations. The file
//! also tests that launches work correctly after a fault.
use std::time::{Duration, Instant};

use cuda_std::cpu::{FaultKind, MAX_SHARED_BYTES};
use cuda_std::mem;

use super::*;

#[test]
fn shared_memory_past_the_launch() {
    let fault = run([2, 2, 1], [64, 1, 1], 4 * 63, &|| {
        if thread::block_index() == [1, 1, 0] {
            tree_sum(1.0, 64);
        }
    })
    .unwrap_err();
    assert_eq!((fault.kernel, fault.block, fault.thread), ("probe", [1, 1, 0], [63, 0, 0]));
    assert_eq!(fault.kind, FaultKind::SharedOutOfBounds { offset: 252, bytes: 4, size: 252 });
    assert_eq!(
        message(&fault),
        "probe: block (1,1,0) thread (63,0,0): accesses 4 bytes at offset 252 of shared memory, the launch has 252 \
         bytes"
    );
}

#[test]
fn a_misaligned_access() {
    let words = [0_u32; 64];
    let base = words.as_ptr().cast::<u8>();
    let aligned = base.align_offset(16);
    let address = base.addr();
    let fault = fault(32, 0, &|| {
        let offset = aligned + if me() == 9 { 24 } else { 16 };
        // SAFETY: the load reads 16 bytes inside `words`. Their address is misaligned on purpose, and the
        // test checks that the executor reports it.
        unsafe { mem::load_u32x4((&raw const words).cast::<u8>().add(offset), Load::Once) };
    });
    assert_eq!(fault.thread, [9, 0, 0]);
    assert_eq!(fault.kind, FaultKind::Misaligned { address: address + aligned + 24, bytes: 16 });
    assert!(fault.to_string().ends_with("which is no multiple of 16"), "{fault}");
}

#[test]
fn a_misaligned_prefetch() {
    let words = [0_u32; 64];
    let base = words.as_ptr().cast::<u8>();
    let aligned = base.align_offset(16);
    let address = base.addr() + aligned;
    for (begin, bytes, wrong) in [(8, 16, 8), (16, 40, 56)] {
        let fault = fault(32, 0, &|| {
            if me() == 3 {
                // SAFETY: the prefetch accesses bytes inside `words`. Their address is misaligned on purpose,
                // and the test checks that the executor reports it.
                unsafe { mem::prefetch((&raw const words).cast::<u8>().add(aligned + begin), bytes) };
            }
        });
        assert_eq!(fault.thread, [3, 0, 0]);
        assert_eq!(fault.kind, FaultKind::Misaligned { address: address + wrong, bytes: 16 });
    }
}

#[test]
fn loads_and_stores_move_their_bytes() {
    let cells = [const { AtomicU32::new(7) }; 12];
    run([1; 3], [1; 3], 0, &|| {
        let at = cells.as_ptr().cast::<u8>().cast_mut();
        let at = at.wrapping_add(at.align_offset(16));
        // SAFETY: one thread accesses 32 of the 48 bytes.
        unsafe {
            mem::store_u32x4(at, [1, 2, 3, 4], Store::Default);
            mem::store_u32x2(at.add(16), [5, 6], Store::Streaming);
            mem::store_u32(at.add(24), 7, Store::Default);
            mem::store_u16(at.add(28), 8, Store::Default);
            mem::store_u16(at.add(30), 0, Store::Default);
            assert_eq!(mem::load_u32x4(at, Load::Default), [1, 2, 3, 4]);
            assert_eq!(mem::load_u32x4(at.add(16), Load::ReadOnly), [5, 6, 7, 8]);
            assert_eq!(mem::load_u32x2(at.add(8), Load::Once), [3, 4]);
            assert_eq!((mem::load_u32(at.add(4), Load::Once), mem::load_u16(at.add(28), Load::Once)), (2, 8));
        }
    })
    .unwrap();
}

#[test]
fn a_block_above_the_launch_bounds() {
    let body = || thread::launch_bounds::<128, 2>();
    run([1; 3], [128, 1, 1], 0, &body).unwrap();
    let fault = fault(129, 0, &body);
    assert_eq!(fault.kind, FaultKind::LaunchBounds { threads: 129, declared: 128 });
    assert!(
        fault.to_string().ends_with("runs in a block of 129 threads, its launch bounds allow 128"),
        "{fault}"
    );
}

/// A value whose destructor adds 1 to a counter and calls a block barrier. If the destructor runs while the
/// thread unwinds after a panic, the barrier must not wait.
struct Guard<'a>(&'a AtomicU32);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
        block::sync();
    }
}

#[test]
fn a_panic_has_its_message_and_drops_what_the_threads_own() {
    for round in 0..20 {
        let (dropped, row) = (AtomicU32::new(0), [1, 2, 3]);
        let fault = fault(100, 0, &|| {
            let _guard = Guard(&dropped);
            block::sync();
            let at = if me() == 60 { 3 } else { 0 };
            assert_eq!(row[at], 1);
            block::sync();
        });
        assert_eq!(fault.thread, [60, 0, 0]);
        let message = "index out of bounds: the len is 3 but the index is 3";
        assert_eq!(fault.kind, FaultKind::Panic(message.to_owned()));
        assert_eq!(dropped.into_inner(), 100, "round {round}");
        let out = zeros(100);
        run([1; 3], [100, 1, 1], 400, &|| out[me() as usize].store(tree_sum(1.0, 100) as u32, Relaxed))
            .unwrap();
        assert_eq!(values(&out), [100; 100], "the launch after the panic, round {round}");
    }
}

#[test]
fn a_launch_while_the_host_unwinds_still_has_barriers() {
    struct Launches<'a>(&'a [AtomicU32]);
    impl Drop for Launches<'_> {
        fn drop(&mut self) {
            run([1; 3], [64, 1, 1], 256, &|| {
                self.0[me() as usize].store(tree_sum(1.0, 64) as u32, Relaxed);
            })
            .unwrap();
        }
    }
    let out = zeros(64);
    let caught = std::panic::catch_unwind(|| {
        let _launches = Launches(&out);
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(caught.is_err());
    assert_eq!(values(&out), [64; 64]);
}

#[test]
fn shapes_that_a_driver_refuses() {
    let cases = [
        ([0, 1, 1], [32, 1, 1], 0, "grid is [0, 1, 1], expected at least one block in each dimension"),
        ([1, 65_536, 1], [32, 1, 1], 0, "grid is [1, 65536, 1], expected at most [2147483647, 65535, 65535]"),
        ([1, 1, 65_536], [32, 1, 1], 0, "grid is [1, 1, 65536], expected at most [2147483647, 65535, 65535]"),
        ([1; 3], [32, 0, 1], 0, "block is [32, 0, 1], expected at least one thread in each dimension"),
        ([1; 3], [1_025, 1, 1], 0, "block is [1025, 1, 1], 1025 threads, expected at most 1024"),
        ([1; 3], [u32::MAX, u32::MAX, 1], 0, "threads, expected at most 1024"),
        ([1; 3], [1 << 31, 1 << 31, 4], 0, "18446744073709551616 threads, expected at most 1024"),
        ([1; 3], [1, 1, 65], 0, "block is [1, 1, 65], expected at most 64 in z"),
        ([1; 3], [32, 1, 1], 232_449, "232449 bytes of shared memory, expected at most 232448"),
    ];
    for (grid, block, shared_bytes, expected) in cases {
        let fault = run(grid, block, shared_bytes, &|| panic!("must not run")).unwrap_err();
        let FaultKind::BadLaunch(why) = &fault.kind else { panic!("{fault}") };
        assert!(why.ends_with(expected), "{why}");
        assert_eq!(fault.to_string(), format!("probe: {why}"));
    }
    run([1; 3], [16, 1, 64], MAX_SHARED_BYTES, &|| {}).unwrap();
}

#[test]
fn the_fault_of_the_lowest_block_wins() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    for _ in 0..20 {
        let later = AtomicU32::new(0);
        let fault = pool.install(|| {
            run([40, 50, 1], [32, 1, 1], 0, &|| {
                let number = thread::block_index()[0] + 40 * thread::block_index()[1];
                // All blocks with index 777 or higher fault. Block 777 waits until another block is about to
                // fault, so its fault is not the first in time. It has the lowest index, however, so the
                // launch must report it.
                let start = Instant::now();
                while number == 777 && later.load(Relaxed) == 0 && start.elapsed() < Duration::from_secs(5) {
                    std::thread::sleep(Duration::from_millis(2));
                }
                if number >= 777 {
                    later.fetch_add(number - 777, Relaxed);
                    if me() == 9 {
                        thread::launch_bounds::<31, 1>();
                    }
                }
            })
        });
        let fault = fault.unwrap_err();
        assert_eq!((fault.block, fault.thread), ([17, 19, 0], [9, 0, 0]), "{fault}");
        assert_ne!(later.into_inner(), 0, "no later block ran");
    }
}

/// Launches `body`, which must fault at the line whose number it stores in its argument.
fn faults_at(body: &(dyn Fn(&AtomicU32) + Sync)) {
    let line = AtomicU32::new(0);
    let fault = fault(32, 64, &|| body(&line));
    let (place, line) = (fault.location.unwrap_or_else(|| panic!("{fault}")), line.into_inner());
    assert_eq!((place.file(), place.line()), (file!(), line), "{fault}");
    assert!(fault.to_string().contains(&format!(" at {}:{line}: ", file!())), "{fault}");
}

#[test]
fn a_fault_names_the_line_of_the_call() {
    let words = || SharedMemory::of_launch().take::<u32>(32);
    faults_at(&|line| {
        if me() > 0 {
            line.store(line!() + 1, Relaxed);
            block::sync();
        }
    });
    faults_at(&|line| {
        if me() > 0 {
            line.store(line!() + 1, Relaxed);
            warp::sum(1.0, 32);
        }
    });
    for at in [0, 16] {
        // SAFETY: the wrong access is the fault that the test expects.
        faults_at(&|line| unsafe {
            line.store(line!() + 1, Relaxed);
            words().set(at, 1);
        });
    }
    // SAFETY: the wrong access is the fault that the test expects.
    faults_at(&|line| unsafe {
        line.store(line!() + 1, Relaxed);
        mem::load_u32(core::ptr::without_provenance(3), Load::Default);
    });
}

#[test]
fn global_memory_before_the_wait_for_earlier_launches() {
    let word = [1_u32];
    let of = |early: bool| {
        run([1; 3], [32, 1, 1], 0, &|| {
            // SAFETY: the address is the address of a word.
            let load = || unsafe { mem::load_u32(word.as_ptr().cast(), Load::Default) };
            if early {
                load();
            }
            thread::wait_for_earlier_launches(word.as_ptr());
            load();
        })
    };
    assert_eq!(of(false), Ok(()));
    assert_eq!(of(true).unwrap_err().kind, FaultKind::EarlyAccess);
}
