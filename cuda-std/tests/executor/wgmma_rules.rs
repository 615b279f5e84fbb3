//! Tests the rules of `wgmma` groups, accumulators, descriptors, and of `setmaxnreg`. Some kernels follow the
//! rules. Other kernels break a rule, and the executor must report them.
use cuda_std::cpu::{FaultKind, Swizzle, TensorMapElement};
use cuda_std::hopper::wgmma::{self, Accumulator, Descriptor, Registers};
use cuda_std::hopper::{give_registers, take_registers};
use cuda_std::warp;

use super::hopper::{BYTES, Tensor, mbarrier, open, tile};
use super::*;

/// Bytes of a box of [`ones`].
const BOX: u32 = 64 * 128;

/// A tensor of 64 x 64 elements, all 1.
fn ones() -> Tensor {
    let bytes: Vec<u8> = [0x80, 0x3F].repeat(64 * 64);
    Tensor::new(TensorMapElement::Bf16, [64, 64], [64, 64], Swizzle::B128, &bytes)
}

/// Starts a TMA copy of the box to the buffer at `to`. Mbarrier `number` counts its bytes. One thread calls
/// this function.
fn load(tensor: &Tensor, to: u32, number: u32) {
    // SAFETY: the box fits, and the mbarrier counts its bytes.
    unsafe {
        mbarrier(number).expect(BOX);
        tensor.map().copy(to, [0, 0], mbarrier(number));
    }
}

/// Runs one warpgroup with the tile of ones in shared memory.
fn with_tile(body: impl Fn() + Sync) -> Result<(), FaultKind> {
    let tensor = ones();
    run([1; 3], [128, 1, 1], BYTES, &|| {
        open(&[1]);
        if me() == 0 {
            load(&tensor, tile(), 0);
        }
        // SAFETY: the mbarrier is initialized.
        unsafe { mbarrier(0).wait(0) };
        body();
    })
    .map_err(|fault| fault.kind)
}

fn good() -> Descriptor {
    Descriptor::swizzled_128(tile(), 16)
}

/// Starts the multiplication `d += a b`, or `d = a b` if `add` is false. `a` and `b` are both the first 16
/// columns of the tile.
fn multiply(d: &mut Registers<32>, add: bool) {
    // SAFETY: the multiplication reads the tile, which has been written to shared memory. The whole warpgroup
    // executes this code.
    unsafe { wgmma::mma_shared::<bf16, _>(d, good(), good(), add) };
}

/// Waits for all multiplications and returns the first value of `d`.
fn finish(d: &mut Registers<32>) -> f32 {
    // SAFETY: the whole warpgroup executes this code.
    unsafe { wgmma::wait::<0>() };
    wgmma::settle(d);
    d.as_ref()[0]
}

fn fence() {
    // SAFETY: the whole warpgroup executes this code.
    unsafe { wgmma::fence() };
}

fn commit() {
    // SAFETY: the whole warpgroup executes this code.
    unsafe { wgmma::commit() };
}

#[test]
fn one_thread_of_a_warpgroup_may_release_a_buffer_after_the_wait() {
    let tensor = ones();
    // The arriving thread is in another warp in each iteration.
    run([4, 1, 1], [160, 1, 1], BYTES, &|| {
        open(&[1, 1, 1, 1]);
        let mut d = Registers::<32>::ZERO;
        for number in 0..8 {
            let (stage, parity) = (number % 2, number / 2 % 2);
            let (full, empty) = (mbarrier(stage), mbarrier(2 + stage));
            let buffer = tile() + stage * BOX;
            // SAFETY: the mbarriers order the accesses to the buffers.
            unsafe {
                if me() == 128 {
                    empty.wait(parity ^ 1);
                    load(&tensor, buffer, stage);
                } else if me() < 128 {
                    full.wait(parity);
                    let descriptor = Descriptor::swizzled_128(buffer, 16);
                    wgmma::fence();
                    wgmma::mma_shared::<bf16, _>(&mut d, descriptor, descriptor, true);
                    wgmma::commit();
                    wgmma::wait::<0>();
                    wgmma::settle(&mut d);
                    if me() == 32 * (number % 4) {
                        empty.arrive();
                    }
                }
            }
        }
        assert!(me() >= 128 || d.as_ref().iter().all(|&value| value == 128.0));
    })
    .unwrap();
}

#[test]
fn a_warp_that_does_not_commit() {
    let fault = with_tile(|| {
        let mut d = Registers::ZERO;
        fence();
        multiply(&mut d, false);
        if me() / 32 != 2 {
            commit();
        }
        finish(&mut d);
    });
    let fault = fault.unwrap_err();
    // Two faults are possible, depending on the order of the warps. Warp 2 has nothing to wait for. If it
    // runs first, it calls `settle` for accumulators whose multiplication is still in flight.
    let expected = FaultKind::WgmmaCommit { group: 1, warp: 2, committed: 0 };
    assert!(fault == expected || fault == FaultKind::WgmmaRegisters, "{fault:?}");
    let fault = with_tile(|| {
        let mut d = Registers::ZERO;
        fence();
        multiply(&mut d, false);
        if me() / 32 == 2 {
            // SAFETY: the mbarrier is initialized. No thread ever completes the phase that this call waits
            // for, which is the fault that the test expects.
            unsafe { mbarrier(0).wait(1) };
        }
        commit();
        finish(&mut d);
    });
    assert!(matches!(fault, Err(FaultKind::Mbarrier { .. })), "{fault:?}");
}

#[test]
fn a_warp_that_returns_while_others_wait() {
    let tensor = ones();
    let fault = run([1; 3], [160, 1, 1], BYTES, &|| {
        open(&[1, 1]);
        if me() == 0 {
            load(&tensor, tile(), 0);
        }
        // SAFETY: the missing warp is the fault that the test expects.
        unsafe {
            match me() / 32 {
                0..3 => {
                    mbarrier(0).wait(0);
                    let mut d = Registers::ZERO;
                    fence();
                    multiply(&mut d, false);
                    commit();
                    finish(&mut d);
                    mbarrier(1).arrive();
                }
                3 => {}
                _ => mbarrier(1).wait(0),
            }
        }
    });
    assert_eq!(fault.unwrap_err().kind, FaultKind::WgmmaWarpgroup { own: 1, other: 0 });
}

#[test]
fn each_warp_waits_itself() {
    let fault = with_tile(|| {
        let mut d = Registers::ZERO;
        fence();
        multiply(&mut d, false);
        commit();
        if me() / 32 != 1 {
            finish(&mut d);
            warp::sync(warp::ALL);
        } else {
            wgmma::settle(&mut d);
        }
    });
    assert_eq!(fault, Err(FaultKind::WgmmaRegisters));
}

#[test]
fn descriptors_that_differ_between_warps() {
    let fault = with_tile(|| {
        let mut d = Registers::<32>::ZERO;
        fence();
        // SAFETY: the different descriptors are the fault that the test expects.
        unsafe { wgmma::mma_shared::<bf16, _>(&mut d, good(), good().offset(me() / 64 * 32), false) };
        commit();
        finish(&mut d);
    });
    let Err(FaultKind::WgmmaDescriptor { own, other }) = fault else { panic!("{fault:?}") };
    assert_eq!(own.abs_diff(other), 2);
    let fault = with_tile(|| {
        let mut d = Registers::<32>::ZERO;
        fence();
        multiply(&mut d, me() < 96);
        commit();
        finish(&mut d);
    });
    assert_eq!(fault, Err(FaultKind::WgmmaLanes));
}

#[test]
fn accumulators_that_are_written_in_flight() {
    let of = |write: fn(&mut Registers<32>)| {
        with_tile(|| {
            let mut d = Registers::ZERO;
            fence();
            multiply(&mut d, false);
            commit();
            write(&mut d);
            finish(&mut d);
        })
    };
    assert_eq!(of(|_| {}), Ok(()));
    assert_eq!(of(|d| *d = Registers::ZERO), Err(FaultKind::WgmmaOverwritten));
    assert_eq!(
        of(|d| {
            *d = Registers::ZERO;
            multiply(d, true);
        }),
        Err(FaultKind::WgmmaOverwritten)
    );
}

#[test]
fn accumulators_that_are_moved_in_flight() {
    let of = |use_copy: fn(&mut Registers<32>)| {
        with_tile(|| {
            let mut d = Registers::ZERO;
            fence();
            multiply(&mut d, false);
            commit();
            let mut moved = core::hint::black_box(d);
            // SAFETY: the whole warpgroup executes this code.
            unsafe { wgmma::wait::<0>() };
            use_copy(&mut moved);
        })
    };
    assert_eq!(of(|d| wgmma::settle(d)), Err(FaultKind::WgmmaMoved));
    assert_eq!(of(|d| _ = core::hint::black_box(d.as_ref())), Err(FaultKind::WgmmaMoved));
    assert_eq!(of(|d| multiply(d, true)), Err(FaultKind::WgmmaMoved));
}

#[test]
fn accumulators_may_be_abandoned_after_the_wait() {
    let result = with_tile(|| {
        let mut d = Registers::ZERO;
        for _ in 0..2 {
            fence();
            multiply(&mut d, true);
            commit();
            // SAFETY: the whole warpgroup executes this code.
            unsafe { wgmma::wait::<0>() };
            d = Registers::ZERO;
        }
        assert_eq!(d.as_ref(), [0.0; 32]);
        fence();
        multiply(&mut d, true);
        commit();
        assert_eq!(finish(&mut d), 16.0);
    });
    assert_eq!(result, Ok(()));
}

#[test]
fn fences_follow_the_accesses() {
    let of = |access: fn(&mut Registers<32>), fence_after: bool| {
        with_tile(|| {
            let mut d = Registers::ZERO;
            fence();
            multiply(&mut d, false);
            commit();
            finish(&mut d);
            fence();
            access(&mut d);
            if fence_after {
                fence();
            }
            multiply(&mut d, true);
            commit();
            finish(&mut d);
        })
    };
    assert_eq!(of(|_| {}, false), Ok(()));
    assert_eq!(of(|d| d.as_mut()[0] = 1.0, false), Err(FaultKind::WgmmaFence));
    assert_eq!(of(|d| d.as_mut()[0] = 1.0, true), Ok(()));
}

/// Rounds scores to the left operand of another product.
fn round(scores: &Registers<32>) -> [u32; 4] {
    core::array::from_fn(|word| {
        let [low, high] = [0, 1].map(|half| bf16::from_f32(scores.as_ref()[2 * word + half]));
        u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16
    })
}

#[test]
fn left_operands_that_are_computed_after_the_fence() {
    let of = |fences_after: bool| {
        with_tile(|| {
            let (mut scores, mut result) = (Registers::ZERO, Registers::<32>::ZERO);
            fence();
            multiply(&mut scores, false);
            commit();
            finish(&mut scores);
            fence();
            let left = round(&scores);
            if fences_after {
                fence();
            }
            // SAFETY: the missing fence is the fault that the test expects.
            unsafe {
                wgmma::mma_registers_along_k::<bf16, _>(&mut result, left, good());
                // The second operand may come from before the fence.
                core::hint::black_box(scores.as_ref());
                wgmma::mma_registers_along_k::<bf16, _>(&mut result, left, good());
            }
            commit();
            assert_eq!(finish(&mut result), 2.0 * 16.0 * 16.0);
        })
    };
    assert_eq!(of(true), Ok(()));
    assert_eq!(of(false), Err(FaultKind::WgmmaFence));
}

#[test]
fn descriptors_with_a_base_offset() {
    let fault = with_tile(|| {
        let descriptor = Descriptor::from_bits(good().bits() | 1 << 49);
        let mut d = Registers::<32>::ZERO;
        fence();
        // SAFETY: the base offset is the fault that the test expects.
        unsafe { wgmma::mma_shared::<bf16, _>(&mut d, descriptor, descriptor, false) };
    });
    assert_eq!(fault, Err(FaultKind::DescriptorOffset { offset: 1 }));
}

#[test]
fn setmaxnreg_has_only_the_registers_of_the_launch() {
    // Each of the 384 threads gets 168 registers. The remaining 1,024 registers of the SM are not available
    // to any block.
    let of = |body: Body| run([1; 3], [384, 1, 1], BYTES, body).map_err(|fault| fault.kind);
    // SAFETY: each warpgroup executes one instruction.
    unsafe {
        let body = || if me() < 128 { give_registers::<24>() } else { take_registers::<240>() };
        assert_eq!(of(&body), Ok(()));
        let body = || {
            if me() < 128 {
                take_registers::<176>()
            }
        };
        assert_eq!(of(&body), Err(FaultKind::Registers { free: 0 }));
    }
}

#[test]
fn setmaxnreg_by_some_warps() {
    let of = |body: Body| run([1; 3], [256, 1, 1], BYTES, body).unwrap_err().kind;
    // SAFETY: the different instructions are the faults that the test expects.
    unsafe {
        let fault = of(&|| {
            if me() < 96 {
                give_registers::<24>()
            }
        });
        let FaultKind::RegisterWarps { own, other } = fault else { panic!("{fault:?}") };
        assert!([(Some(24), None), (None, Some(24))].contains(&(own, other)), "{fault:?}");
        let fault = of(&|| if me() < 96 { give_registers::<24>() } else { give_registers::<32>() });
        let FaultKind::RegisterWarps { own: Some(own), other: Some(other) } = fault else {
            panic!("{fault:?}")
        };
        assert_eq!(own + other, 56);
    }
}
