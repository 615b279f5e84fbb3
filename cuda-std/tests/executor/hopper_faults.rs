//! Tests of kernels that use Hopper's operations incorrectly. The executor must report the right kind of
//! fault for each kernel.
use cuda_std::cpu::{FaultKind, Origin, Swizzle, TensorMapElement, TensorMapShape};
use cuda_std::hopper::barrier::Named;
use cuda_std::hopper::tensor_map::{self, close_stores, wait_for_stores};
use cuda_std::hopper::wgmma::{self, Accumulator, Descriptor, Registers};
use cuda_std::hopper::{self, publish_shared};
use cuda_std::tensor_map::TensorMap;
use cuda_std::{cluster, warp};

use super::hopper::{AlignedMap, BYTES, Tensor, mbarrier, open, tile, tile_of};
use super::*;

/// Offset of the first tile in shared memory, and offset of the first mbarrier.
const TILE: usize = 1008;
const MBARRIER: usize = 0;

fn kind(threads: u32, body: Body) -> FaultKind {
    fault(threads, BYTES, body).kind
}

fn source() -> Tensor {
    Tensor::new(TensorMapElement::Bf16, [64, 64], [64, 64], Swizzle::B128, &[0; 64 * 128])
}

/// Bytes of a box of [`source`].
const BOX: u32 = 64 * 128;

/// Lets thread 0 start a TMA copy of the box. Mbarrier 0 counts the bytes of the copy.
fn load(tensor: &Tensor) {
    if me() == 0 {
        // SAFETY: the box fits, and the mbarrier counts its bytes.
        unsafe {
            mbarrier(0).expect(BOX);
            tensor.map().copy(tile(), [0, 0], mbarrier(0));
        }
    }
}

/// Initializes mbarrier 0, and starts a TMA copy of the box, whose bytes mbarrier 0 counts.
fn open_and_load(tensor: &Tensor) {
    open(&[1]);
    load(tensor);
}

#[test]
fn a_missing_arrival() {
    let fault = kind(64, &|| {
        open(&[64]);
        // SAFETY: the mbarrier is initialized.
        unsafe {
            if me() != 5 {
                mbarrier(0).arrive();
            }
            mbarrier(0).wait(0);
        }
    });
    assert_eq!(fault, FaultKind::Mbarrier { offset: MBARRIER, phase: 0, missing: 1, arrivals: 64, bytes: 0 });
    let text =
        "waits for phase 0 (parity 0) of the mbarrier at offset 0, which misses 1 of 64 arrivals and 0 bytes";
    assert_eq!(fault.to_string(), text);
}

#[test]
fn a_fault_names_the_line_of_the_call() {
    let line = AtomicU32::new(0);
    // SAFETY: the missing initialization is the fault that the test expects.
    let fault = fault(32, BYTES, &|| unsafe {
        line.store(line!() + 1, Relaxed);
        mbarrier(0).wait(0);
    });
    let place = fault.location.unwrap();
    assert_eq!((place.file(), place.line()), (file!(), line.into_inner()), "{fault}");
    // Only lane 0 calls the wait, although all lanes of the warp must call it together.
    let line = AtomicU32::new(0);
    // SAFETY: the missing lanes are the fault that the test expects.
    let fault = fault_of(32, &|| unsafe {
        if me() == 0 {
            line.store(line!() + 1, Relaxed);
            wgmma::wait::<0>();
        }
    });
    let place = fault.location.unwrap();
    assert_eq!((place.file(), place.line()), (file!(), line.into_inner()), "{fault}");
}

fn fault_of(threads: u32, body: Body) -> Fault {
    fault(threads, BYTES, body)
}

#[test]
fn missing_bytes() {
    let tensor = source();
    let fault = kind(32, &|| {
        open(&[1]);
        // SAFETY: the copy writes a box that fits at `tile()`. The mbarrier expects too many bytes, which is
        // the fault that the test expects.
        unsafe {
            if me() == 0 {
                mbarrier(0).expect(BOX + 16);
                tensor.map().copy(tile(), [0, 0], mbarrier(0));
            }
            mbarrier(0).wait(0);
        }
    });
    assert_eq!(fault, FaultKind::Mbarrier { offset: MBARRIER, phase: 0, missing: 0, arrivals: 1, bytes: 16 });
}

#[test]
fn a_wait_for_a_later_phase() {
    let fault = kind(32, &|| {
        open(&[1]);
        // SAFETY: the mbarrier is initialized.
        unsafe {
            if me() == 0 {
                mbarrier(0).arrive();
            } else {
                warp::sync(!1);
                mbarrier(0).wait(1);
                mbarrier(0).wait(1);
            }
        }
    });
    assert!(
        matches!(fault, FaultKind::WrongPhase { offset: MBARRIER, phase: 1, bytes_at: None }),
        "{fault:?}"
    );
}

#[test]
fn a_wait_for_an_earlier_phase() {
    let tensor = source();
    let fault = kind(32, &|| {
        open_and_load(&tensor);
        // SAFETY: the mbarrier is initialized. The second wait passes the wrong parity, which is the fault
        // that the test expects.
        unsafe {
            mbarrier(0).wait(0);
            warp::sync(warp::ALL);
            load(&tensor);
            warp::sync(warp::ALL);
            mbarrier(0).wait(0);
            tile_of::<u32>().get(me());
        }
    });
    let expected = |at| FaultKind::WrongPhase { offset: MBARRIER, phase: 1, bytes_at: Some(at) };
    assert!((0..32).any(|lane| fault == expected(TILE + 4 * lane)), "{fault:?}");
}

#[test]
fn an_mbarrier_that_is_not_initialized() {
    // SAFETY: the missing initialization is the fault that the test expects.
    let fault = kind(32, &|| unsafe { mbarrier(0).arrive() });
    assert_eq!(fault, FaultKind::NoMbarrier { offset: MBARRIER });
}

#[test]
fn an_mbarrier_whose_initialization_is_not_visible() {
    let fault = kind(32, &|| {
        // SAFETY: the missing barrier is the fault that the test expects.
        unsafe {
            if me() == 0 {
                mbarrier(0).init(31);
            }
            warp::any(warp::ALL, true);
            if me() > 0 {
                mbarrier(0).arrive();
            }
        }
    });
    assert_eq!(fault, FaultKind::MbarrierNotVisible { offset: MBARRIER, by: [0; 3], fenced: false });
    let tensor = source();
    let fault = kind(32, &|| {
        // SAFETY: the missing fence is the fault that the test expects.
        unsafe {
            if me() == 0 {
                mbarrier(0).init(1);
            }
            block::sync();
        }
        load(&tensor);
    });
    assert_eq!(fault, FaultKind::MbarrierNotVisible { offset: MBARRIER, by: [0; 3], fenced: false });
}

#[test]
fn too_many_arrivals() {
    let tensor = source();
    let fault = kind(32, &|| {
        open_and_load(&tensor);
        // SAFETY: the mbarrier is initialized. It expects one arrival per phase, and this arrival has already
        // occurred. A further arrival is the fault that the test expects.
        unsafe { mbarrier(0).arrive() };
    });
    assert_eq!(fault, FaultKind::MbarrierCount { offset: MBARRIER, count: 0 });
}

#[test]
fn a_read_of_a_copy_that_is_not_done() {
    let tensor = source();
    let fault = kind(64, &|| {
        open_and_load(&tensor);
        // SAFETY: the access reads the word that the copy writes. Thread 40 does not wait for the copy, which
        // is the fault that the test expects.
        unsafe {
            block::sync();
            if me() != 40 {
                mbarrier(0).wait(0);
            }
            tile_of::<u32>().get(0);
        }
    });
    let expected =
        FaultKind::UnfinishedCopy { offset: TILE, bytes: 4, writes: false, mbarrier: MBARRIER, phase: 0 };
    assert_eq!(fault, expected);
}

#[test]
fn a_buffer_that_is_overwritten_before_its_release() {
    let tensor = source();
    let fault = kind(64, &|| {
        open(&[1, 32]);
        // SAFETY: the second copy overwrites the tile. It does not wait until the readers have released the
        // tile, which is the fault that the test expects.
        unsafe {
            if me() < 32 {
                load(&tensor);
                mbarrier(0).wait(0);
                warp::sync(warp::ALL);
                load(&tensor);
            } else {
                mbarrier(0).wait(0);
                tile_of::<u32>().get(me());
                mbarrier(1).arrive();
            }
        }
    });
    match fault {
        FaultKind::AsyncRace {
            now: Origin::Copy,
            writes: true,
            before: Origin::Thread(_),
            wrote: false,
            ..
        }
        | FaultKind::UnfinishedCopy { writes: false, .. } => {}
        other => panic!("{other:?}"),
    }
}

/// Multiplies the tile by itself. Each element of the argument says whether the function executes one step:
/// the fence of the registers, the wait, and `settle`.
fn multiply([fence, wait, settle]: [bool; 3], descriptor: Descriptor) {
    let mut d = Registers::<32>::ZERO;
    // SAFETY: the missing steps are the faults that the tests expect.
    unsafe {
        if fence {
            wgmma::fence();
        }
        wgmma::mma_shared::<bf16, _>(&mut d, descriptor, descriptor, false);
        wgmma::commit();
        if wait {
            wgmma::wait::<0>();
        }
        if settle {
            wgmma::settle(&mut d);
        }
    }
    core::hint::black_box(d.as_ref());
}

/// Loads the tile with TMA, waits, and multiplies it.
fn product(steps: [bool; 3], descriptor: impl Fn() -> Descriptor + Sync) -> Result<(), Fault> {
    let tensor = source();
    run([1; 3], [128, 1, 1], BYTES, &|| {
        open_and_load(&tensor);
        // SAFETY: the mbarrier is initialized.
        unsafe { mbarrier(0).wait(0) };
        multiply(steps, descriptor());
    })
}

fn good() -> Descriptor {
    Descriptor::swizzled_128(tile(), 16)
}

#[test]
fn registers_of_a_wgmma_before_the_wait() {
    let of = |steps| product(steps, good).map_err(|fault| fault.kind);
    assert_eq!(of([true; 3]), Ok(()));
    assert_eq!(of([true, false, false]), Err(FaultKind::WgmmaRegisters));
    assert_eq!(of([true, false, true]), Err(FaultKind::WgmmaRegisters));
    assert_eq!(of([true, true, false]), Err(FaultKind::WgmmaRegisters));
    assert_eq!(of([false, true, true]), Err(FaultKind::WgmmaFence));
}

#[test]
fn a_wgmma_that_is_never_waited_for() {
    let tensor = source();
    let fault = kind(128, &|| {
        open_and_load(&tensor);
        let mut d = Registers::<32>::ZERO;
        // SAFETY: the missing wait is the fault that the test expects.
        unsafe {
            mbarrier(0).wait(0);
            wgmma::fence();
            wgmma::mma_shared::<bf16, _>(&mut d, good(), good(), false);
            wgmma::commit();
        }
    });
    assert_eq!(fault, FaultKind::WgmmaUnfinished);
}

#[test]
fn a_wgmma_of_three_warps() {
    let tensor = source();
    let fault = kind(128, &|| {
        open_and_load(&tensor);
        // SAFETY: the mbarrier is initialized.
        unsafe { mbarrier(0).wait(0) };
        if me() < 96 {
            multiply([true; 3], good());
        }
    });
    let FaultKind::WgmmaWarpgroup { own, other } = fault else { panic!("{fault:?}") };
    assert_eq!(own + other, 1);
}

#[test]
fn wrong_descriptors() {
    let of = |descriptor: fn() -> Descriptor| product([true; 3], descriptor).unwrap_err().kind;
    let fault = of(|| Descriptor::of(tile(), 16, 512, 64));
    assert!(matches!(fault, FaultKind::Swizzle { written: 128, read: 64, .. }), "{fault:?}");
    let fault = of(|| Descriptor::swizzled_128(tile() + 128, 16));
    assert_eq!(fault, FaultKind::Descriptor { address: 2048 + 128, swizzle: 128 });
    let fault = of(|| Descriptor::swizzled_128(tile() + 22 * 1024, 16));
    assert!(matches!(fault, FaultKind::SharedOutOfBounds { .. }), "{fault:?}");
}

#[test]
fn a_wgmma_on_a_copy_that_is_not_done() {
    let tensor = source();
    let fault = kind(128, &|| {
        open_and_load(&tensor);
        block::sync();
        multiply([true; 3], good());
    });
    assert!(matches!(fault, FaultKind::UnfinishedCopy { mbarrier: MBARRIER, phase: 0, .. }), "{fault:?}");
}

#[test]
fn a_missing_proxy_fence() {
    let of = |fence: bool| {
        run([1; 3], [128, 1, 1], BYTES, &|| {
            for at in (me()..BOX / 4).step_by(128) {
                // SAFETY: each thread writes its own words.
                unsafe { tile_of::<u32>().set(at, 0) };
            }
            if fence {
                publish_shared();
            }
            block::sync();
            multiply([true; 3], good());
        })
    };
    assert_eq!(of(true), Ok(()));
    let fault = of(false).unwrap_err().kind;
    assert!(matches!(fault, FaultKind::ProxyFence { now: Origin::Wgmma, .. }), "{fault:?}");
    let tensor = source();
    let fault = kind(32, &|| {
        // SAFETY: the missing fence is the fault that the test expects.
        unsafe {
            tile_of::<u32>().set(me(), 0);
            block::sync();
            if me() == 0 {
                tensor.map().store(tile(), [0, 0]);
                close_stores();
                wait_for_stores();
            }
        }
    });
    assert!(matches!(fault, FaultKind::ProxyFence { now: Origin::Copy, .. }), "{fault:?}");
}

#[test]
fn a_store_that_is_never_waited_for() {
    let tensor = source();
    for committed in [true, false] {
        let fault = kind(32, &|| {
            if me() == 0 {
                // SAFETY: the missing wait is the fault that the test expects.
                unsafe { tensor.map().store(tile(), [0, 0]) };
                if committed {
                    close_stores();
                }
            }
        });
        assert_eq!(fault, FaultKind::UnfinishedStore { committed });
    }
}

#[test]
fn a_buffer_that_is_overwritten_while_it_is_stored() {
    let tensor = source();
    let fault = kind(32, &|| {
        if me() == 0 {
            // SAFETY: thread 0 writes to the tile before the store has read it. The missing wait before this
            // write is the fault that the test expects.
            unsafe {
                tensor.map().store(tile(), [0, 0]);
                close_stores();
                tile_of::<u32>().set(0, 1);
                wait_for_stores();
            }
        }
    });
    let FaultKind::AsyncRace { now: Origin::Thread([0, 0, 0]), writes: true, before: Origin::Copy, .. } =
        fault
    else {
        panic!("{fault:?}")
    };
}

#[test]
fn a_block_that_exits_while_its_cluster_writes_to_it() {
    let body = |waits: bool| {
        move || {
            cluster::bounds::<2>();
            let words = tile_of::<u32>();
            cluster::sync();
            if cluster::rank() == 0 && me() == 0 {
                // SAFETY: the write goes to the shared memory of block 1. If `waits` is true, block 1 has not
                // exited: it waits at the second `cluster::sync` until this thread arrives there. If `waits`
                // is false, block 1 may have exited, which is the fault that the test expects.
                unsafe { cluster::RemoteWord::of(&words, 0, 1).set(1) };
            }
            if waits {
                cluster::sync();
            }
        }
    };
    assert_eq!(run([2, 1, 1], [32, 1, 1], BYTES, &body(true)), Ok(()));
    let fault = run([2, 1, 1], [32, 1, 1], BYTES, &body(false)).unwrap_err().kind;
    match fault {
        FaultKind::EarlyExit { rank: 1 } | FaultKind::ExitedBlock { rank: 1, .. } => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copy_to_a_block_that_exits() {
    let from = [0_u128; 4];
    let address = from.as_ptr().expose_provenance();
    let fault = kind(32, &|| {
        open(&[1]);
        if me() == 0 {
            // SAFETY: the copy reads 64 bytes, which is the size of the vector. The missing wait for the copy
            // is the fault that the test expects.
            unsafe {
                mbarrier(0).expect(64);
                tensor_map::copy_bytes(tile(), core::ptr::with_exposed_provenance(address), 64, mbarrier(0));
            }
        }
    });
    assert_eq!(fault, FaultKind::UnobservedCopy { mbarrier: MBARRIER, phase: 0 });
}

#[test]
fn a_copy_whose_end_no_thread_of_the_block_sees() {
    let tensor = source();
    let of = |waits: bool| {
        run([1; 3], [64, 1, 1], BYTES, &|| {
            open(&[1, 1]);
            load(&tensor);
            // The wait for another mbarrier lets the copy end.
            if me() == 0 {
                // SAFETY: the missing wait is the fault that the test expects.
                unsafe {
                    mbarrier(1).expect(64);
                    tensor_map::copy_bytes(tile() + BOX, tensor.data.as_ptr().cast(), 64, mbarrier(1));
                    mbarrier(1).wait(0);
                }
            } else if waits && me() == 40 {
                // SAFETY: the mbarrier is initialized.
                unsafe { mbarrier(0).wait(0) };
            }
        })
        .map_err(|fault| fault.kind)
    };
    assert_eq!(of(true), Ok(()));
    assert_eq!(of(false), Err(FaultKind::UnobservedCopy { mbarrier: MBARRIER, phase: 0 }));
    let text = of(false).unwrap_err().to_string();
    assert_eq!(
        text,
        "its block exits, and no thread has waited for phase 0 (parity 0) of the mbarrier at offset 0, which ends with a copy to the block's shared memory"
    );
}

#[test]
fn a_block_that_exits_before_its_bytes_are_sent() {
    // Block 1 sees the end of the copy, but block 0 does not. The copy reads the shared memory of block 0,
    // which therefore must not exit.
    let of = |last: bool| {
        run([2, 1, 1], [32, 1, 1], BYTES, &move || {
            cluster::bounds::<2>();
            open(&[1]);
            cluster::sync();
            // SAFETY: the bytes fit.
            unsafe {
                if cluster::rank() == 0 && me() == 0 {
                    tensor_map::send_bytes(tile(), tile(), 64, mbarrier(0), 1);
                } else if cluster::rank() == 1 && me() == 0 {
                    mbarrier(0).expect(64);
                    mbarrier(0).wait(0);
                }
            }
            if last {
                cluster::sync();
            }
        })
        .map_err(|fault| fault.kind)
    };
    assert_eq!(of(true), Ok(()));
    assert_eq!(of(false), Err(FaultKind::EarlyExit { rank: 0 }));
}

#[test]
fn a_phase_that_expects_too_few_bytes() {
    let tensor = source();
    // `expected` is the number of bytes that thread 0 announces at its arrival. If `early` is true, the
    // copies start before this arrival.
    let of = |expected: u32, early: bool| {
        run([1; 3], [32, 1, 1], BYTES, &|| {
            open(&[1]);
            // SAFETY: the copies write two boxes, and two boxes fit in shared memory. The wrong number of
            // expected bytes is the fault that the test expects.
            unsafe {
                if me() == 0 {
                    let copy = |at| tensor.map().copy(tile() + at * BOX, [0, 0], mbarrier(0));
                    if !early {
                        mbarrier(0).expect(expected);
                    }
                    (0..2).for_each(copy);
                    if early {
                        mbarrier(0).expect(expected);
                    }
                }
                mbarrier(0).wait(0);
            }
        })
        .map_err(|fault| fault.kind)
    };
    for early in [false, true] {
        assert_eq!(of(2 * BOX, early), Ok(()));
        for expected in [0, BOX, 2 * BOX - 16] {
            // If `early` is false, and the arrival expects no bytes, the phase ends before the copies start.
            let fault = of(expected, early).unwrap_err();
            if (expected, early) == (0, false) {
                assert_eq!(fault, FaultKind::UnobservedCopy { mbarrier: MBARRIER, phase: 1 });
                continue;
            }
            let (expected, started) = (i64::from(expected), i64::from(2 * BOX));
            assert_eq!(fault, FaultKind::MbarrierBytes { offset: MBARRIER, phase: 0, expected, started });
        }
    }
}

#[test]
fn more_bytes_than_an_mbarrier_can_count() {
    let fault = kind(32, &|| {
        open(&[2]);
        if me() < 2 {
            // SAFETY: the mbarrier is initialized. Both arrivals together expect more bytes than an mbarrier
            // can count, which is the fault that the test expects.
            unsafe { mbarrier(0).expect(600_000) };
        }
    });
    assert_eq!(fault, FaultKind::MbarrierCount { offset: MBARRIER, count: 1_200_000 });
}

#[test]
fn barriers_of_a_cluster() {
    let fault = run([2, 1, 1], [32, 1, 1], BYTES, &|| {
        cluster::bounds::<2>();
        if cluster::rank() == 0 || me() > 0 {
            cluster::sync();
        } else {
            open(&[1]);
            // SAFETY: the mbarrier is initialized.
            unsafe { mbarrier(0).wait(0) };
        }
    });
    // Thread 0 of block 1 waits at the barrier of its block, because the other threads of the block wait in
    // `cluster::sync`. The fault must name the cluster barrier.
    assert!(matches!(fault.unwrap_err().kind, FaultKind::ClusterBarrier { threads: 64, .. }));
    let fault = run([3, 1, 1], [32, 1, 1], BYTES, &|| cluster::bounds::<2>()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::ClusterSize { declared: 2, blocks: 1 });
}

#[test]
fn named_barriers() {
    // SAFETY: the wrong use is the fault that the tests expect.
    let of = |threads, body: Body| kind(threads, body);
    let fault = of(64, &|| {
        if me() < 32 {
            // SAFETY: see above.
            unsafe { Named::<64>(3).sync() };
        }
    });
    assert_eq!(fault, FaultKind::NamedBarrier { id: 3, arrived: 32, threads: 64 });
    // SAFETY: see above.
    let fault = of(64, &|| unsafe { Named::<64>(16).sync() });
    assert_eq!(fault, FaultKind::NamedBarrierUse { id: 16, threads: 64 });
    let fault = of(96, &|| {
        // SAFETY: see above.
        unsafe {
            if me() < 32 {
                Named::<64>(1).arrive();
            } else {
                Named::<96>(1).sync();
            }
        }
    });
    assert!(matches!(fault, FaultKind::NamedBarrierThreads { id: 1, .. }), "{fault:?}");
}

#[test]
fn registers_that_nobody_gives_up() {
    // SAFETY: the wrong use is the fault that the test expects.
    let fault = kind(512, &|| unsafe { hopper::take_registers::<240>() });
    assert_eq!(fault, FaultKind::Registers { free: 0 });
    // SAFETY: see above.
    let fault = kind(512, &|| unsafe { hopper::give_registers::<200>() });
    assert_eq!(fault, FaultKind::RegisterCount { count: 200, limit: Some(128) });
    // SAFETY: see above.
    let fault = kind(128, &|| unsafe { hopper::give_registers::<20>() });
    assert_eq!(fault, FaultKind::RegisterCount { count: 20, limit: None });
}

#[test]
fn a_tensor_map_that_is_none() {
    #[repr(C, align(64))]
    struct Maps([TensorMap; 2], u128, TensorMap);
    let none = TensorMap([0; 16]);
    let maps = Maps([none; 2], 0, none);
    let use_of = |map: *const TensorMap| {
        let address = map.expose_provenance();
        kind(32, &|| {
            open(&[1]);
            let map = core::ptr::with_exposed_provenance(address);
            // SAFETY: the wrong argument is the fault that the test expects.
            unsafe { tensor_map::Map::at(map).copy(tile(), [0, 0], mbarrier(0)) };
        })
    };
    assert_eq!(use_of(&maps.0[1]), FaultKind::TensorMap { dimensions: None, used: 2 });
    // The address of the second map has the alignment of its Rust type, which is less than the 64 bytes that
    // TMA requires.
    let misaligned = &raw const maps.2;
    assert_eq!(maps.1, 0);
    assert_eq!(use_of(misaligned), FaultKind::Misaligned { address: misaligned.addr(), bytes: 64 });
}

#[test]
fn tensor_maps_that_the_driver_rejects() {
    let memory = [0_u128; 16];
    let good = TensorMapShape {
        base: memory.as_ptr().cast(),
        element: TensorMapElement::U16,
        sizes: vec![64, 2],
        strides: vec![128],
        tile: vec![64, 2],
        swizzle: Swizzle::B128,
        nan_outside: false,
    };
    let error = |change: fn(&mut TensorMapShape)| {
        let mut shape = good.clone();
        change(&mut shape);
        shape.encode().map(|_| ()).unwrap_err()
    };
    assert!(good.encode().is_ok());
    let expect = |change, text: &str| {
        let error = error(change);
        assert!(error.contains(text), "{error}, expected {text}");
    };
    expect(|map| map.base = map.base.wrapping_add(8), "expected a multiple of 16");
    expect(|map| map.sizes[1] = 0, "size 0, expected 1 to 2^32");
    expect(|map| map.sizes[1] = (1 << 32) + 1, "expected 1 to 2^32");
    expect(|map| map.strides[0] = 136, "stride 136, expected a multiple of 16 below 2^40");
    expect(|map| map.strides[0] = 1 << 40, "expected a multiple of 16 below 2^40");
    expect(|map| map.tile[1] = 0, "box size 0, expected 1 to 256");
    expect(|map| map.tile[1] = 257, "box size 257, expected 1 to 256");
    expect(|map| map.tile[0] = 128, "rows of 256 bytes, expected the 128 bytes of the swizzle");
    expect(
        |map| (map.tile[0], map.swizzle) = (4, Swizzle::None),
        "rows of 8 bytes, expected a multiple of 16",
    );
    expect(|map| map.nan_outside = true, "NaN outside of a tensor of U16, expected a float type");
    expect(|map| _ = map.strides.pop(), "2 sizes, 0 strides and 2 box sizes");
    expect(
        |map| (map.sizes, map.strides, map.tile) = (vec![64; 6], vec![128; 5], vec![64; 6]),
        "6 sizes, 5 strides and 6 box sizes, expected 1 to 5 sizes",
    );
    expect(|map| (map.sizes, map.strides, map.tile) = (vec![], vec![], vec![]), "0 sizes");
}

#[test]
fn destinations_of_tma() {
    let tensor = source();
    let fault = kind(32, &|| {
        open(&[1]);
        // SAFETY: the address is the fault that the test expects.
        unsafe { tensor.map().copy(tile() + 64, [0, 0], mbarrier(0)) };
    });
    assert_eq!(fault, FaultKind::Misaligned { address: 2048 + 64, bytes: 128 });
    // The bytes of this box do not fit in 32 bits.
    let shape = TensorMapShape {
        base: tensor.data.as_ptr().cast(),
        element: TensorMapElement::U8,
        sizes: vec![256; 4],
        strides: vec![256; 3],
        tile: vec![256; 4],
        swizzle: Swizzle::None,
        nan_outside: false,
    };
    let map = AlignedMap(shape.encode().unwrap());
    let fault = kind(32, &|| {
        open(&[1]);
        // SAFETY: the size is the fault that the test expects.
        unsafe { tensor_map::Map::at(&raw const map.0).copy(tile(), [0; 4], mbarrier(0)) };
    });
    let expected = FaultKind::SharedOutOfBounds { offset: TILE, bytes: u32::MAX as usize, size: BYTES };
    assert_eq!(fault, expected);
}

#[test]
fn a_phase_that_ends_before_a_thread_saw_the_one_before() {
    let fault = kind(64, &|| {
        open(&[1]);
        // SAFETY: the mbarrier is initialized. Thread 32 arrives a second time without waiting until the
        // first warp has seen the end of the first phase. This is the fault that the test expects.
        unsafe {
            if me() < 32 {
                mbarrier(0).wait(0);
            } else if me() == 32 {
                while !mbarrier(0).test(1) {}
                mbarrier(0).arrive();
                mbarrier(0).arrive();
            }
        }
    });
    assert!(
        matches!(fault, FaultKind::MissedPhase { offset: MBARRIER, phase: 0 } | FaultKind::WrongPhase { .. }),
        "{fault:?}"
    );
}

#[test]
fn an_mbarrier_that_is_polled_in_vain() {
    let fault = kind(32, &|| {
        open(&[1]);
        // SAFETY: the missing arrival is the fault that the test expects.
        unsafe { while !mbarrier(0).test(0) {} }
    });
    assert_eq!(fault, FaultKind::Polling);
}

#[test]
fn wrong_calls_of_cluster_operations() {
    let of = |body: Body| run([2, 1, 1], [32, 1, 1], BYTES, body).unwrap_err().kind;
    let fault = of(&|| {
        cluster::bounds::<2>();
        // SAFETY: the wrong rank is the fault that the test expects.
        unsafe { cluster::RemoteWord::of(&tile_of::<u32>(), 0, 2).get() };
    });
    assert_eq!(fault, FaultKind::ClusterRank { rank: 2, blocks: 2 });
    let tensor = source();
    let fault = of(&|| {
        cluster::bounds::<2>();
        open(&[1]);
        // SAFETY: the wrong mask is the fault that the test expects.
        unsafe { tensor.map().multicast(tile(), [0, 0], mbarrier(0), 0b100) };
    });
    assert_eq!(fault, FaultKind::ClusterRank { rank: 2, blocks: 2 });
}

#[test]
fn operands_that_no_wgmma_has() {
    let tensor = source();
    let fault = kind(128, &|| {
        open_and_load(&tensor);
        let mut d = Registers::<32>::ZERO;
        // SAFETY: the operands are in shared memory. The layout of the operand is not allowed for its element
        // type, which is the fault that the test expects.
        unsafe {
            mbarrier(0).wait(0);
            wgmma::fence();
            wgmma::mma_shared_transposed::<wgmma::E4m3, _, 0, 1>(&mut d, good(), good(), false);
        }
    });
    assert_eq!(fault, FaultKind::TransposedOperand { bytes: 1 });
    let fault = kind(128, &|| {
        open_and_load(&tensor);
        let mut d = Registers::<32>::ZERO;
        // SAFETY: the operands are in shared memory. The lanes of a warp pass two different descriptors,
        // which is the fault that the test expects.
        unsafe {
            mbarrier(0).wait(0);
            wgmma::fence();
            wgmma::mma_shared::<bf16, _>(&mut d, good(), good().offset(32 * (me() % 2)), false);
            wgmma::commit();
            wgmma::wait::<0>();
        }
    });
    assert!(matches!(fault, FaultKind::WgmmaDescriptor { .. }), "{fault:?}");
}

#[test]
fn a_lane_that_skips_a_wgmma() {
    // `skip` says what lane 7 does instead of the second multiplication.
    let of = |skip: fn(&mut Registers<64>)| {
        let fault = fault(128, BYTES, &|| {
            let (mut d, mut other) = (Registers::<32>::ZERO, Registers::<64>::ZERO);
            // SAFETY: the skipped multiplication is the fault that the test expects.
            unsafe {
                wgmma::fence();
                wgmma::mma_shared::<bf16, _>(&mut d, good(), good(), false);
                if me() == 7 {
                    skip(&mut other);
                } else {
                    wgmma::mma_shared::<bf16, _>(&mut d, good(), good(), true);
                }
                wgmma::commit();
                wgmma::wait::<0>();
                wgmma::settle(&mut d);
            }
        });
        assert!(fault.location.is_some_and(|place| place.file() == file!()), "{fault}");
        assert_eq!(fault.kind, FaultKind::WgmmaLanes);
    };
    of(|_| ());
    // SAFETY: see above.
    of(|other| unsafe { wgmma::mma_shared::<bf16, _>(other, good(), good(), true) });
}

#[test]
fn a_reduction_that_tma_does_not_have() {
    let tensor = Tensor::new(TensorMapElement::U8, [8, 32], [8, 32], Swizzle::None, &[0; 256]);
    let fault = kind(32, &|| {
        if me() == 0 {
            // SAFETY: TMA cannot add elements of this type. The executor therefore writes nothing and raises
            // the fault that the test expects.
            unsafe { tensor.map().add(tile(), [0, 0]) };
        }
    });
    let reduction = cuda_std::cpu::Reduction::Add;
    assert_eq!(fault, FaultKind::Reduction { reduction, element: TensorMapElement::U8 });
}
