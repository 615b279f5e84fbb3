//! Compares the results of shuffles and votes with a simple model. The file also tests which fault occurs if
//! the mask of a call contains a lane that does not make the call.
use cuda_std::cpu::{Absence, FaultKind};
use cuda_std::hopper::{self, wgmma};
use cuda_std::mma::{self, MatrixElem};
use half::bf16;
use proptest::prelude::*;

use super::hopper::{BYTES, tile, tile_of};
use super::*;

/// Returns the lane from which a shuffle reads, according to the PTX manual. If this lane is not in the mask,
/// the result of the shuffle is undefined, and the function returns `None`.
fn source(kind: u32, mask: u32, lane: i64, argument: u32) -> Option<u32> {
    let argument = i64::from(argument & 31);
    let target = [lane ^ argument, lane + argument, lane - argument, argument][kind as usize];
    let target = if (0..32).contains(&target) { target } else { lane } as u32;
    (mask >> target & 1 == 1).then_some(target)
}

fn shuffle(kind: u32, mask: u32, value: u32, argument: u32) -> u32 {
    match kind {
        0 => warp::shuffle_xor(mask, value, argument),
        1 => warp::shuffle_down(mask, value, argument),
        2 => warp::shuffle_up(mask, value, argument),
        _ => warp::shuffle(mask, value, argument),
    }
}

proptest! {
    /// Compares shuffles in a block of two warps with the model `source`. The second warp may have fewer than
    /// 32 threads. The lanes of a warp that are in `mask` make one shuffle, and the other lanes make another
    /// shuffle.
    #[test]
    fn shuffles_follow_the_manual(
        (kind, mask, threads) in (0..4_u32, any::<u32>(), 33..=64_u32),
        arguments in proptest::array::uniform32(0..40_u32),
        seed in any::<u32>(),
    ) {
        let value = |thread: u32| seed.wrapping_mul(2 * thread + 1);
        let existing = |thread: u32| if thread < 32 { u32::MAX } else { u32::MAX >> (64 - threads) };
        let side = |thread: u32| existing(thread) & if mask >> (thread % 32) & 1 == 1 { mask } else { !mask };
        let out = zeros(threads);
        run([1; 3], [threads, 1, 1], 0, &|| {
            let result = shuffle(kind, side(me()), value(me()), arguments[warp::lane() as usize]);
            out[me() as usize].store(result, Relaxed);
        }).unwrap();
        for (thread, got) in (0..threads).zip(values(&out)) {
            let lane = thread % 32;
            let expected = source(kind, side(thread), i64::from(lane), arguments[lane as usize])
                .map_or(u32::MAX, |source| value(thread - lane + source));
            prop_assert_eq!(got, expected, "thread {} of kind {}", thread, kind);
        }
    }

    #[test]
    fn votes_count_the_lanes_of_the_mask(mask in 1..=u32::MAX, yes in any::<u32>()) {
        let out = zeros(32);
        run([1; 3], [32, 1, 1], 0, &|| {
            if mask >> me() & 1 == 1 {
                let mine = yes >> me() & 1 == 1;
                warp::sync(mask);
                assert_eq!(warp::any(mask, mine), yes & mask != 0);
                assert_eq!(warp::all(mask, mine), yes & mask == mask);
                out[me() as usize].store(warp::ballot(mask, mine), Relaxed);
            }
        }).unwrap();
        for (lane, got) in values(&out).into_iter().enumerate() {
            prop_assert_eq!(got, if mask >> lane & 1 == 1 { yes & mask } else { 0 }, "lane {}", lane);
        }
    }
}

#[test]
fn folds_give_every_lane_the_same() {
    run([1; 3], [96, 1, 1], 0, &|| {
        assert_eq!(warp::sum(1.0 + warp::lane() as f32, 32), 528.0);
        assert_eq!(warp::max(warp::lane() as f32, 8), (warp::lane() / 8 * 8 + 7) as f32);
    })
    .unwrap();
}

/// Runs `body` in a block of `threads` threads. Expects the fault `MissingLanes` in thread `thread`: a lane
/// in the mask of a call does not make this call. Returns the fields of this fault and its message.
fn missing(threads: u32, thread: u32, body: Body) -> (&'static str, u32, u32, Absence, String) {
    let fault = fault(threads, 0, body);
    assert_eq!((fault.kernel, fault.block, fault.thread), ("probe", [0; 3], [thread, 0, 0]), "{fault}");
    let text = message(&fault);
    let FaultKind::MissingLanes { operation, mask, missing, first } = fault.kind else { panic!("{text}") };
    (operation, mask, missing, first, text)
}

#[test]
fn a_lane_that_has_returned_is_missing() {
    let (operation, mask, lanes, first, text) = missing(128, 65, &|| {
        if ![64, 67, 68].contains(&me()) {
            warp::sum(1.0, 32);
        }
    });
    assert_eq!((operation, mask, lanes, first), ("shfl_xor", u32::MAX, 0b11001, Absence::Returned));
    assert_eq!(
        text,
        "probe: block (0,0,0) thread (65,0,0): shfl_xor with mask 0xffffffff misses lanes 0, 3-4: lane 0 has returned"
    );
}

#[test]
fn a_lane_at_the_barrier_is_missing() {
    let (operation, mask, lanes, first, _) = missing(32, 0, &|| {
        if me() < 31 {
            warp::ballot(warp::ALL, true);
        }
        block::sync();
    });
    assert_eq!((operation, mask, lanes, first), ("ballot", u32::MAX, 1 << 31, Absence::AtBarrier));
}

#[test]
fn a_lane_at_another_call_is_missing() {
    let (operation, _, lanes, first, _) = missing(32, 0, &|| {
        if me() == 5 {
            warp::sync(warp::ALL);
        } else {
            warp::shuffle(warp::ALL, 0, 0);
        }
    });
    let at = Absence::AtCall { operation: "sync_warp", mask: u32::MAX };
    assert_eq!((operation, lanes, first), ("shfl_idx", 1 << 5, at));
}

#[test]
fn a_lane_with_another_mask_is_missing() {
    let (_, mask, lanes, first, _) = missing(16, 0, &|| {
        warp::shuffle_down(if me() < 8 { 0xFFFF } else { 0xFF01 }, 0, 0);
    });
    assert_eq!((mask, lanes), (0xFFFF, 0xFF00));
    assert_eq!(first, Absence::AtCall { operation: "shfl_down", mask: 0xFF01 });
}

#[test]
fn a_lane_that_skips_an_instruction_of_the_warp() {
    // SAFETY: the missing lane is the fault that the test expects.
    let instructions: [(&str, Body); 7] = unsafe {
        [
            ("mma", &|| _ = core::hint::black_box(bf16::mma([0; 4], [0; 2], [0.0; 4]))),
            ("ldmatrix", &|| _ = mma::load(&tile_of(), me())),
            ("ldmatrix", &|| _ = mma::load_transposed(&tile_of(), me())),
            ("ldmatrix", &|| _ = hopper::shared_load_matrices(tile() + 16 * me())),
            ("stmatrix", &|| hopper::shared_store_matrices(tile() + 16 * me(), [0; 4])),
            ("setmaxnreg", &|| hopper::give_registers::<24>()),
            ("wgmma.wait_group", &|| wgmma::wait::<0>()),
        ]
    };
    for (name, instruction) in instructions {
        let fault = fault(128, BYTES, &|| {
            if me() == 7 {
                warp::sync(1 << 7);
            } else {
                instruction();
            }
        });
        assert!(fault.location.is_some_and(|place| place.file() == file!()), "{fault}");
        let FaultKind::MissingLanes { operation, mask, missing, first } = fault.kind else {
            panic!("{fault}")
        };
        assert_eq!((operation, mask, missing, first), (name, warp::ALL, 1 << 7, Absence::Returned));
    }
}

#[test]
fn lanes_at_different_instructions_of_the_warp() {
    // SAFETY: the different instructions are the fault that the test expects.
    let fault = fault(128, BYTES, &|| unsafe {
        if me() % 32 == 7 {
            hopper::give_registers::<24>();
        } else {
            wgmma::wait::<0>();
        }
    });
    assert!(matches!(fault.kind, FaultKind::MissingLanes { .. }), "{fault}");
}

#[test]
fn a_lane_that_the_block_does_not_have_is_missing() {
    let (_, _, lanes, first, text) = missing(48, 40, &|| {
        if me() < 32 || me() == 40 {
            warp::shuffle_up(warp::ALL, 0, 1);
        }
    });
    assert_eq!((lanes, first), (0xFFFF_0000, Absence::NotInBlock { threads: 48 }));
    assert!(text.ends_with("misses lanes 16-31: lane 16 does not exist, the block has 48 threads"), "{text}");
}

#[test]
fn a_mask_must_name_its_caller() {
    let (_, mask, lanes, first, text) = missing(32, 0, &|| warp::sync(0xFFFF_FFFE));
    assert_eq!((mask, lanes, first), (0xFFFF_FFFE, 1, Absence::NotInMask));
    assert!(
        text.ends_with("sync_warp with mask 0xfffffffe misses lane 0: lane 0 is the calling lane"),
        "{text}"
    );
}
