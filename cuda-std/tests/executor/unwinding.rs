//! Tests of destructors that call device functions while their thread unwinds after a fault. If device
//! functions did not handle this case, such a call would wait forever, or raise a second fault, which aborts
//! the process.
use cuda_std::cpu::FaultKind;
use cuda_std::hopper::barrier::{Named, publish};
use cuda_std::hopper::tensor_map::{self, close_stores, wait_for_writes};
use cuda_std::hopper::wgmma;
use cuda_std::mma::MatrixElem;
use cuda_std::{cluster, hopper};

use super::hopper::{BYTES, mbarrier, open, tile, tile_of};
use super::*;

/// Calls the closure when it is dropped.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Launches a block in which thread 40 panics while the others wait. All threads call `last` when they
/// unwind. Expects that the launch ends with the panic as its fault.
fn unwind(name: &str, last: Body) {
    let ends = AtomicU32::new(0);
    let fault = fault(128, BYTES, &|| {
        let _end = AtEnd(|| {
            last();
            ends.fetch_add(1, Relaxed);
        });
        open(&[1]);
        assert!(me() != 40, "thread 40 gives up");
        // SAFETY: the mbarrier is initialized.
        unsafe { mbarrier(0).wait(0) };
    });
    assert_eq!(fault.kind, FaultKind::Panic("thread 40 gives up".to_owned()), "{name}");
    assert_eq!(ends.into_inner(), 128, "{name}");
}

#[test]
fn destructors_may_wait_and_synchronize() {
    // SAFETY: the operations do nothing.
    unsafe {
        unwind("wait", &|| mbarrier(0).wait(0));
        unwind("test", &|| while !mbarrier(0).test(0) {});
        unwind("arrive", &|| mbarrier(0).arrive());
        unwind("init", &|| mbarrier(0).init(0));
        unwind("publish", &publish);
        unwind("named", &|| Named::<96>(1).sync());
        unwind("named arrival", &|| Named::<64>(17).arrive());
        unwind("cluster", &|| {
            cluster::sync();
            cluster::sync();
        });
        unwind("block", &block::sync);
        unwind("registers", &|| hopper::take_registers::<240>());
    }
}

#[test]
fn destructors_may_exchange() {
    unwind("shuffle", &|| _ = warp::shuffle_xor(warp::ALL, me(), 1));
    unwind("wrong mask", &|| warp::sync(if me() == 3 { 1 } else { warp::ALL }));
    unwind("lanes", &|| {
        if me() % 2 == 0 {
            warp::sync(warp::ALL);
        }
    });
    unwind("mma", &|| _ = core::hint::black_box(half::bf16::mma([0; 4], [0; 2], [1.0; 4])));
    // SAFETY: the operation does nothing.
    unwind("wgmma", &|| unsafe { wgmma::wait::<0>() });
}

#[test]
fn destructors_do_not_meet_with_suspended_lanes() {
    // Lanes 32 to 39 and 41 to 63 wait at an `mma` when lane 40 panics. The matrix fragments of these lanes
    // are on their stacks, so they no longer exist when the last lane of the warp unwinds.
    let multiply = || core::hint::black_box(half::bf16::mma([0; 4], [0; 2], [1.0; 4]));
    let fault = fault(64, 0, &|| {
        let _end = AtEnd(|| assert_eq!(multiply(), [1.0; 4]));
        assert!(me() != 40, "thread 40 gives up");
        multiply();
    });
    assert_eq!(fault.kind, FaultKind::Panic("thread 40 gives up".to_owned()));
}

#[test]
fn destructors_may_access_memory() {
    let global = [0_u128; 4];
    let address = global.as_ptr().expose_provenance();
    // SAFETY: the accesses are races, or operations that do nothing.
    unsafe {
        unwind("shared", &|| tile_of::<u32>().set(0, me()));
        unwind("remote", &|| {
            cluster::RemoteWord::of(&tile_of::<u32>(), 0, 5).set(1);
        });
        unwind("copy", &|| {
            let from = core::ptr::with_exposed_provenance_mut::<u8>(address);
            tensor_map::copy_bytes(tile(), from, 7, mbarrier(0));
            tensor_map::store_bytes(from, tile() + BYTES, 16);
            close_stores();
            wait_for_writes();
        });
    }
    // The same race before the first operation of Hopper.
    let race = fault(64, 4, &|| {
        let words = SharedMemory::of_launch().take::<u32>(1);
        // SAFETY: the race is the fault that the test expects.
        let _end = AtEnd(|| unsafe { words.set(0, me()) });
        block::sync();
        assert!(me() != 40, "thread 40 gives up");
        block::sync();
    });
    assert_eq!(race.kind, FaultKind::Panic("thread 40 gives up".to_owned()));
}
