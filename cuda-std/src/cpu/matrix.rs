//! Emulates `mma.sync`. Each lane of a warp passes its fragments, the elements of the matrices that this lane
//! has in registers. The module [`mma`](crate::matrix::mma) documents which elements belong to which lane.
use super::warp::exchange_fragments;

/// One lane's elements of the matrices `a`, `b` and `c`, for the operation `c + a b`.
pub(crate) struct Fragments {
    pub a: [u32; 4],
    pub b: [u32; 2],
    pub c: [f32; 4],
    /// Converts the bits of an f16 or bf16 element of `a` or `b` to f32, which represents each such element
    /// exactly.
    pub widen: fn(u16) -> f32,
}

/// Returns the calling lane's elements of the matrix `c + a b`. Every lane of the warp must call the
/// function.
#[inline(always)]
pub(crate) fn multiply(mut fragments: Fragments) -> [f32; 4] {
    exchange_fragments(&mut fragments);
    fragments.c
}

/// Computes `c + a b` for a warp, and writes each lane's elements of the result to its `c`. Each element is
/// summed in f64 and then rounded to f32.
///
/// # Safety
/// The pointers in `lanes` are valid and distinct. No other code uses the fragments during the call.
pub(super) unsafe fn multiply_all(lanes: [*mut Fragments; 32]) {
    let (mut a, mut b) = ([[0.0_f64; 16]; 16], [[0.0_f64; 8]; 16]);
    for (lane, fragments) in lanes.iter().enumerate() {
        // SAFETY: the caller passes valid pointers.
        let fragments = unsafe { &**fragments };
        let (g, t) = (lane / 4, lane % 4);
        let widen = |word: u32, half: usize| f64::from((fragments.widen)((word >> (16 * half)) as u16));
        for half in 0..2 {
            for word in 0..4 {
                a[g + word % 2 * 8][2 * t + word / 2 * 8 + half] = widen(fragments.a[word], half);
            }
            for word in 0..2 {
                b[2 * t + word * 8 + half][g] = widen(fragments.b[word], half);
            }
        }
    }
    for (lane, fragments) in lanes.into_iter().enumerate() {
        // SAFETY: the caller passes valid, distinct pointers.
        let c = unsafe { &mut (*fragments).c };
        for (at, sum) in c.iter_mut().enumerate() {
            let (row, col) = (lane / 4 + at / 2 * 8, lane % 4 * 2 + at % 2);
            let product: f64 = (0..16).map(|k| a[row][k] * b[k][col]).sum();
            *sum = (f64::from(*sum) + product) as f32;
        }
    }
}
