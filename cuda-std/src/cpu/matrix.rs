//! Emulates `mma.sync`. Each lane of a warp passes its fragments, the elements of the matrices that this lane
//! has in registers. The module [`mma`](crate::matrix::mma) documents which elements belong to which lane.
use core::cell::RefCell;

use super::tensor_core::{DecodedA, DecodedB, OperandType, STEP_BYTES, multiply_step};
use super::warp::exchange_fragments;

/// One lane's elements of the matrices `a`, `b` and `c`, for the operation `c + a b`.
pub(crate) struct Fragments {
    pub a: [u32; 4],
    pub b: [u32; 2],
    pub c: [f32; 4],
    /// The element type of `a` and `b`.
    pub elements: OperandType,
}

/// Returns the calling lane's elements of the matrix `c + a b`. Every lane of the warp must call the
/// function.
#[inline(always)]
#[track_caller]
pub(crate) fn multiply(mut fragments: Fragments) -> [f32; 4] {
    exchange_fragments(&mut fragments);
    fragments.c
}

/// Computes `c + a b` for a warp, and writes each lane's elements of the result to its `c`.
///
/// # Safety
/// The pointers in `lanes` are valid and distinct. During the call, no other code uses the fragments that
/// they point to.
pub(super) unsafe fn multiply_all(lanes: [*mut Fragments; 32]) {
    let (mut a, mut b, mut c) = ([[0; STEP_BYTES]; 16], [[0; STEP_BYTES]; 8], [0.0; 16 * 8]);
    // SAFETY: the caller passes valid pointers.
    let elements = unsafe { (*lanes[0]).elements };
    let place = |lane: usize, at: usize| (lane / 4 + at / 2 * 8) * 8 + lane % 4 * 2 + at % 2;
    for (lane, fragments) in lanes.iter().enumerate() {
        // SAFETY: the caller passes valid pointers.
        let fragments = unsafe { &**fragments };
        let (g, t) = (lane / 4, lane % 4);
        for (word, bits) in fragments.a.iter().enumerate() {
            a[g + word % 2 * 8][4 * t + word / 2 * 16..][..4].copy_from_slice(&bits.to_le_bytes());
        }
        for (word, bits) in fragments.b.iter().enumerate() {
            b[g][4 * t + word * 16..][..4].copy_from_slice(&bits.to_le_bytes());
        }
        for (at, &value) in fragments.c.iter().enumerate() {
            c[place(lane, at)] = value;
        }
    }
    DECODED.with_borrow_mut(|(left, right)| {
        left.decode(elements, 16, |row| a[row]);
        right.decode(elements, 8, |column| b[column]);
        multiply_step(left, right, &mut c);
    });
    for (lane, fragments) in lanes.into_iter().enumerate() {
        // SAFETY: the caller passes valid, distinct pointers.
        let own = unsafe { &mut (*fragments).c };
        own.iter_mut().enumerate().for_each(|(at, value)| *value = c[place(lane, at)]);
    }
}

thread_local! {
    /// Buffers for the decoded operands. Calls reuse these buffers, because their creation allocates memory.
    static DECODED: RefCell<(DecodedA, DecodedB)> = const { RefCell::new((DecodedA::new(), DecodedB::new())) };
}
