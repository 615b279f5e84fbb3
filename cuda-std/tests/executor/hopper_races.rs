//! Tests which accesses to shared memory count as ordered if a kernel uses Hopper's operations. Each test
//! runs a kernel twice: with the synchronization that orders the accesses, and without it.
use cuda_std::cpu::{FaultKind, Origin, Swizzle, TensorMapElement};
use cuda_std::hopper::barrier::Barrier;
use cuda_std::hopper::tensor_map::{self, close_stores, wait_for_stores};
use cuda_std::hopper::wgmma::{self, Accumulator, Descriptor, Registers};
use cuda_std::hopper::{self, publish_shared};
use cuda_std::{cluster, warp};

use super::hopper::{BYTES, Tensor, mbarrier, open, tile, tile_of};
use super::*;

/// Bytes of the box of [`source`].
const BOX: u32 = 8 * 128;

fn source() -> Tensor {
    Tensor::new(TensorMapElement::Bf16, [8, 64], [8, 64], Swizzle::B128, &[0; BOX as usize])
}

fn outcome(threads: u32, body: Body) -> Result<(), FaultKind> {
    run([1; 3], [threads, 1, 1], BYTES, body).map_err(|fault| fault.kind)
}

/// Starts a TMA copy of the box to the tile. Mbarrier 0 counts the bytes of the copy.
fn load(tensor: &Tensor) {
    // SAFETY: the box fits, and the mbarrier counts its bytes.
    unsafe {
        mbarrier(0).expect(BOX);
        tensor.map().copy(tile(), [0, 0], mbarrier(0));
    }
}

/// Reads or writes word `at` of the tile.
fn access(at: u32, writes: bool) {
    // SAFETY: the accessed word is in the tile. If this access is not ordered with an earlier one, the
    // executor reports a race.
    unsafe {
        if writes {
            tile_of::<u32>().set(at, me());
        } else {
            tile_of::<u32>().get(at);
        }
    }
}

#[test]
fn a_copy_over_what_threads_wrote_needs_a_proxy_fence() {
    let tensor = source();
    let bytes = [0_u128; 4];
    let address = bytes.as_ptr().expose_provenance();
    for bulk in [false, true] {
        let of = |fence: bool| {
            outcome(64, &|| {
                open(&[1]);
                access(me(), true);
                if fence {
                    publish_shared();
                }
                block::sync();
                // SAFETY: the copies access the 64 bytes of the vector, and the mbarrier counts the bytes of
                // the copies.
                unsafe {
                    if me() == 0 && bulk {
                        mbarrier(0).expect(64);
                        let from = core::ptr::with_exposed_provenance(address);
                        tensor_map::copy_bytes(tile(), from, 64, mbarrier(0));
                    } else if me() == 0 {
                        load(&tensor);
                    }
                    mbarrier(0).wait(0);
                }
            })
        };
        assert_eq!(of(true), Ok(()));
        let fault = of(false).unwrap_err();
        assert!(matches!(fault, FaultKind::ProxyFence { now: Origin::Copy, writes: true, .. }), "{fault:?}");
        assert!(fault.to_string().starts_with("an asynchronous copy writes "), "{fault}");
    }
}

#[test]
fn a_copy_over_what_threads_read_needs_no_proxy_fence() {
    let tensor = source();
    let done = outcome(64, &|| {
        open(&[1, 32]);
        for round in 0..6 {
            // SAFETY: the mbarriers order the copies and the reads.
            unsafe {
                if me() == 0 {
                    mbarrier(1).wait((round + 1) % 2);
                    load(&tensor);
                } else if me() >= 32 {
                    mbarrier(0).wait(round % 2);
                    access(me(), false);
                    mbarrier(1).arrive();
                }
            }
        }
        // SAFETY: the mbarrier is initialized.
        unsafe { mbarrier(0).wait(1) };
    });
    assert_eq!(done, Ok(()));
}

#[test]
fn a_proxy_fence_of_another_thread_covers_earlier_writes() {
    let tensor = source();
    let of = |fence: bool| {
        outcome(64, &|| {
            open(&[1, 1]);
            // SAFETY: the code uses initialized mbarriers. It copies a box (a part of a tensor), which fits
            // in shared memory.
            unsafe {
                if me() == 0 {
                    (0..BOX / 4).for_each(|at| access(at, true));
                    mbarrier(0).arrive();
                    mbarrier(1).wait(0);
                    tensor.map().store(tile(), [0, 0]);
                    close_stores();
                    wait_for_stores();
                } else if me() == 32 {
                    mbarrier(0).wait(0);
                    if fence {
                        publish_shared();
                    }
                    mbarrier(1).arrive();
                }
            }
        })
    };
    assert_eq!(of(true), Ok(()));
    let fault = of(false).unwrap_err();
    assert!(matches!(fault, FaultKind::ProxyFence { now: Origin::Copy, writes: false, .. }), "{fault:?}");
}

#[test]
fn another_block_does_not_know_what_a_block_barrier_orders() {
    // The cluster becomes active (the executor starts to record events in vector clocks) when a thread of
    // block 0 calls `cluster::sync` for the first time.
    let of = |synced: bool| {
        run([2, 1, 1], [64, 1, 1], BYTES, &|| {
            cluster::bounds::<2>();
            if cluster::rank() == 0 {
                access(me(), true);
            }
            block::sync();
            if synced {
                cluster::sync();
            }
            if cluster::rank() == 1 {
                // SAFETY: block 0 runs until the last barrier of the cluster.
                unsafe { cluster::RemoteWord::of(&tile_of::<u32>(), me(), 0).get() };
            }
            cluster::sync();
        })
        .map_err(|fault| fault.kind)
    };
    assert_eq!(of(true), Ok(()));
    let fault = of(false).unwrap_err();
    assert!(matches!(fault, FaultKind::AsyncRace { now: Origin::Thread(_), .. }), "{fault:?}");
}

#[test]
fn a_warp_barrier_orders_nothing_for_another_warp() {
    // The test runs the two warps in both orders. In one of these orders, the cluster becomes active between
    // the two accesses, so that the executor records them in different ways.
    for first in [0, 32] {
        let of = |synced: bool| {
            outcome(64, &|| {
                if me() / 32 == first / 32 {
                    if me() == first {
                        access(0, true);
                    }
                    warp::sync(warp::ALL);
                    if me() == first {
                        // SAFETY: one thread initializes the mbarrier.
                        unsafe { mbarrier(0).init(1) };
                    }
                }
                if synced {
                    block::sync();
                }
                if me() / 32 != first / 32 {
                    access(0, false);
                }
            })
        };
        assert_eq!(of(true), Ok(()));
        let fault = of(false).unwrap_err();
        assert!(matches!(fault, FaultKind::Race { .. }), "{fault:?}");
    }
}

#[test]
fn a_thread_does_not_race_with_itself_or_with_lanes_before_a_warp_barrier() {
    let init = || {
        // SAFETY: one thread initializes the mbarrier.
        unsafe { mbarrier(0).init(1) };
    };
    let done = outcome(64, &|| {
        if me() == 40 {
            access(0, false);
            init();
            access(0, true);
        }
    });
    assert_eq!(done, Ok(()));
    let done = outcome(32, &|| {
        if me() == 9 {
            access(0, false);
        }
        warp::sync(warp::ALL);
        if me() == 10 {
            access(0, false);
            init();
            access(0, true);
        }
    });
    assert_eq!(done, Ok(()));
    // Without the warp barrier, the two lanes race.
    let fault = outcome(32, &|| {
        if me() == 9 || me() == 10 {
            access(0, false);
            if me() == 10 {
                init();
            }
            access(0, true);
        }
    });
    assert!(matches!(fault, Err(FaultKind::Race { .. })), "{fault:?}");
}

#[test]
fn a_race_names_a_thread_of_the_other_warp() {
    for (one, other) in [(0, 40), (32, 8)] {
        // A warp barrier orders the read of lane 0 and the write of lane 1 of the same warp.
        let fault = fault(64, BYTES, &|| {
            if me() == other {
                access(0, false);
            } else if me() / 32 == one / 32 {
                if me() == one {
                    access(0, false);
                }
                warp::sync(warp::ALL);
                if me() == one + 1 {
                    access(0, true);
                }
            }
        });
        let FaultKind::Race { other: named, .. } = fault.kind else { panic!("{fault}") };
        let mut pair = [fault.thread[0], named[0]];
        pair.sort_unstable();
        let mut expected = [one + 1, other];
        expected.sort_unstable();
        assert_eq!(pair, expected, "{fault}");
    }
}

#[test]
fn an_mbarrier_must_not_be_overwritten() {
    let bytes = [0_u128; 1];
    let address = bytes.as_ptr().expose_provenance();
    let of = |what: fn(usize)| {
        outcome(32, &|| {
            open(&[1, 1]);
            if me() == 0 {
                what(address);
            }
        })
    };
    // SAFETY: this store overwrites a part of mbarrier 1, and the copies below overwrite mbarrier 0. These
    // writes are the faults that the test expects.
    let store = of(|_| unsafe { SharedMemory::of_launch().take::<u32>(4).set(3, 0) });
    let now = Origin::Thread([0; 3]);
    assert_eq!(store, Err(FaultKind::MbarrierOverwritten { offset: 12, now, by: [0; 3] }));
    let text = "thread (0,0,0) writes to offset 12 of shared memory, which is part of an mbarrier that thread (0,0,0) initialized";
    assert_eq!(store.unwrap_err().to_string(), text);
    // SAFETY: see above.
    let copy = of(|address| unsafe {
        let from = core::ptr::with_exposed_provenance(address);
        tensor_map::copy_bytes(hopper::shared_base(16), from, 16, mbarrier(1));
    });
    assert_eq!(copy, Err(FaultKind::MbarrierOverwritten { offset: 0, now: Origin::Copy, by: [0; 3] }));
    // SAFETY: see above.
    let copy = of(|address| unsafe {
        let from = core::ptr::with_exposed_provenance(address);
        SharedMemory::of_launch().take::<u128>(1).copy_from(0, from);
    });
    assert_eq!(copy, Err(FaultKind::MbarrierOverwritten { offset: 0, now, by: [0; 3] }));
    // SAFETY: the mbarriers end at offset 16.
    assert_eq!(of(|_| unsafe { SharedMemory::of_launch().take::<u32>(8).set(4, 0) }), Ok(()));
}

/// What the warp of an elected thread executes between its reads of the buffer and the arrival of the elected
/// thread, which releases the buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    Nothing,
    Shuffle,
    WarpBarrier,
    WgmmaWait,
}

#[test]
fn an_elected_arrival_releases_the_reads_of_the_warp_only_after_a_barrier() {
    let tensor = source();
    let of = |between: Between| {
        outcome(64, &|| {
            open(&[1, 1]);
            // SAFETY: the mbarriers are initialized, and all accesses are in the tile. If an access is not
            // ordered, the executor reports the fault that the test expects.
            unsafe {
                if me() >= 32 {
                    mbarrier(0).wait(0);
                    access(me(), false);
                    match between {
                        Between::Nothing => {}
                        Between::Shuffle => _ = warp::shuffle(warp::ALL, me(), 0),
                        Between::WarpBarrier => warp::sync(warp::ALL),
                        Between::WgmmaWait => wgmma::wait::<0>(),
                    }
                    if me() == 32 {
                        mbarrier(1).arrive();
                    }
                } else if me() == 0 {
                    load(&tensor);
                    mbarrier(1).wait(0);
                    mbarrier(0).wait(0);
                    load(&tensor);
                    mbarrier(0).wait(1);
                }
            }
        })
    };
    for between in [Between::WarpBarrier, Between::WgmmaWait] {
        assert_eq!(of(between), Ok(()), "{between:?}");
    }
    for between in [Between::Nothing, Between::Shuffle] {
        match of(between) {
            Err(FaultKind::AsyncRace { now: Origin::Copy, before: Origin::Thread(_), .. })
            | Err(FaultKind::UnfinishedCopy { .. } | FaultKind::MissedPhase { .. }) => {}
            other => panic!("{between:?}: {other:?}"),
        }
    }
}

/// How a warpgroup uses a buffer before thread 0 of the warpgroup releases the buffer to the producer in
/// another block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Wgmma,
    WgmmaWithoutWait,
    Load,
    Store,
    LoadBeforeWgmma,
    LoadOfAnotherLane,
}

/// In a cluster of two blocks, lets block 0 copy a box to the tiles of both blocks, twice. The warpgroup of
/// each block uses its block's tile as `used` says. Then it calls `arrive`, which arrives at an mbarrier of
/// block 0.
fn released(used: Use, arrive: impl Fn(Barrier) + Sync) -> Result<(), FaultKind> {
    const BOX: u32 = 64 * 128;
    let bytes = [0x80, 0x3F].repeat(64 * 64);
    let tensor = Tensor::new(TensorMapElement::Bf16, [64, 64], [64, 64], Swizzle::B128, &bytes);
    let body = || {
        cluster::bounds::<2>();
        open(&[1, 2]);
        cluster::sync();
        let (full, empty) = (mbarrier(0), mbarrier(1));
        let mut d = Registers::<32>::ZERO;
        for round in 0..2 {
            // SAFETY: the mbarriers are initialized, and the box fits in shared memory. If the accesses to
            // the tile are not ordered, the executor reports this.
            unsafe {
                if me() == 128 {
                    full.expect(BOX);
                    if cluster::rank() == 0 {
                        empty.wait(round ^ 1);
                        tensor.map().multicast(tile(), [0, 0], full, 0b11);
                    }
                }
                full.wait(round);
                if me() >= 128 {
                    continue;
                }
                match (used, me()) {
                    (Use::Load | Use::LoadBeforeWgmma, 0) | (Use::LoadOfAnotherLane, 1) => access(0, false),
                    (Use::Store, 0) => {
                        access(0, true);
                        publish_shared();
                    }
                    _ => {}
                }
                warp::sync(u32::MAX);
                if matches!(used, Use::Wgmma | Use::WgmmaWithoutWait | Use::LoadBeforeWgmma) {
                    let descriptor = Descriptor::swizzled_128(tile(), 16);
                    wgmma::fence();
                    wgmma::mma_shared::<bf16, _>(&mut d, descriptor, descriptor, true);
                    wgmma::commit();
                    if used != Use::WgmmaWithoutWait {
                        wgmma::wait::<0>();
                        wgmma::settle(&mut d);
                    }
                }
                if me() == 0 {
                    arrive(empty);
                }
            }
        }
        if me() < 128 {
            // SAFETY: the whole warpgroup executes this code.
            unsafe { wgmma::wait::<0>() };
        }
        cluster::sync();
    };
    run([2, 1, 1], [160, 1, 1], BYTES, &body).map_err(|fault| fault.kind)
}

#[test]
fn an_arrival_after_wgmma_releases_only_what_wgmma_has_read() {
    // SAFETY: `arrive_in` accesses the mbarrier of block 0. It is initialized, and block 0 does not exit
    // before the last barrier.
    let ordinary = |empty: Barrier| unsafe { empty.arrive_in(0) };
    // SAFETY: as above.
    let after_wgmma = |empty: Barrier| unsafe { empty.arrive_in_after_wgmma(0) };
    assert_eq!(released(Use::Wgmma, ordinary), Ok(()));
    assert_eq!(released(Use::Wgmma, after_wgmma), Ok(()));
    for used in [Use::Load, Use::Store, Use::LoadBeforeWgmma, Use::LoadOfAnotherLane] {
        assert_eq!(released(used, ordinary), Ok(()), "{used:?}");
        let fault = released(used, after_wgmma).unwrap_err();
        let FaultKind::AsyncRace {
            now: Origin::Copy, writes: true, before: Origin::Thread(_), wrote, ..
        } = fault
        else {
            panic!("{used:?}: {fault:?}")
        };
        assert_eq!(wrote, used == Use::Store, "{used:?}");
    }
    let fault = released(Use::WgmmaWithoutWait, after_wgmma).unwrap_err();
    assert!(matches!(fault, FaultKind::AsyncRace { before: Origin::Wgmma, .. }), "{fault:?}");
}

#[test]
fn a_block_waits_for_arrivals_after_wgmma() {
    // There are three variants. Block 0 waits for the arrival at its mbarrier, or at a barrier of the
    // cluster, or does not wait at all.
    let of = |waits: bool, synced: bool| {
        let body = || {
            cluster::bounds::<2>();
            open(&[if waits { 1 } else { 2 }]);
            cluster::sync();
            // SAFETY: the mbarrier of block 0 is initialized. If block 0 exits before the arrival, the
            // executor reports this.
            unsafe {
                if me() == 0 && cluster::rank() == 1 {
                    mbarrier(0).arrive_in_after_wgmma(0);
                } else if me() == 0 && waits {
                    mbarrier(0).wait(0);
                } else if me() == 0 {
                    // The phase does not end, but block 1 runs and arrives.
                    mbarrier(0).test(0);
                }
            }
            if synced {
                cluster::sync();
            }
        };
        run([2, 1, 1], [32, 1, 1], BYTES, &body).map_err(|fault| fault.kind)
    };
    assert_eq!(of(true, false), Ok(()));
    assert_eq!(of(false, true), Ok(()));
    assert!(matches!(
        of(false, false),
        Err(FaultKind::EarlyExit { rank: 0 } | FaultKind::ExitedBlock { .. })
    ));
}
