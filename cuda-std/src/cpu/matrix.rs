//! Emulates `mma.sync`. Each lane of a warp passes its fragments, which are the matrix elements of one lane.
//! The module [`mma`](crate::matrix::mma) documents the layout of fragments.
use super::warp::exchange_fragments;

/// The fragments (matrix elements) of one lane for the operation `c + a b`.
pub(crate) struct Fragments {
    pub a: [u32; 4],
    pub b: [u32; 2],
    pub c: [f32; 4],
    /// Converts the bits of an element of `a` or `b` to f32. This conversion is exact.
    pub widen: fn(u16) -> f32,
}

/// Returns the calling lane's fragment (matrix elements) of `c + a b`. Every lane of the warp must call the
/// function.
#[inline(always)]
pub(crate) fn multiply(mut fragments: Fragments) -> [f32; 4] {
    exchange_fragments(&mut fragments);
    fragments.c
}

/// Computes `c + a b` for all lanes of a warp. Each element is summed in f64 and rounded once.
///
/// # Safety
/// The pointers are valid and distinct. No other code uses the fragments during the call.
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
