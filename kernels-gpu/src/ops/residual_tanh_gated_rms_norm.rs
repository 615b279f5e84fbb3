//! Mochi's residual: `out = x + rms(branch) * tanh(gate)`; and, chained, `normed = rms(out) * (1 + scale)` in the same
//! launch.
//!
//! The roundings are those of diffusers' and of genmo's Mochi: the product is computed in f32 and rounded, the sum is
//! rounded, `normed` is computed in f32 from the rounded sum and rounded once.
use cuda_std::libdevice::tanh;
use cuda_std::prelude::*;
use cuda_std::quad::round;

use crate::moments::{MeanSquare, Stats};
use crate::operand::{Modulation, ModulationRow, Operand, OperandRow, zip};
use crate::passes::{Params, Passes, Sink, Source};
use crate::side::Form;

/// The operands that both kernels have: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TanhGated {
    /// The residual stream.
    pub x: Rows,
    /// What is normalised, gated and added.
    pub branch: Rows,
    /// Its hyperbolic tangent, rounded to its own type, multiplies the normalised branch.
    pub gate: Operand,
    /// Where the sum goes.
    pub out: Rows,
}

/// The second norm: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scaled {
    /// `1 + scale` multiplies it.
    pub scale: Modulation,
    /// Where it goes.
    pub normed: Rows,
}

/// # Safety
/// The host checked that `x`, `branch`, `out` and `normed` hold `p.rows` rows of `p.cols` elements, gate and scale as many
/// of the types that their kinds say, all `Rows::is_quads` if `VECTOR`, and that the outputs overlap nothing.
#[inline(always)]
unsafe fn residual<T: Elem, const VECTOR: bool>(gated: TanhGated, chained: Option<Scaled>, p: Params) {
    let Some(passes) = Passes::<T, VECTOR>::of_warp(p, 2) else { return };
    let (at, columns) = (passes.at, passes.columns);
    // SAFETY: as the caller promises; a warp's row is its own.
    let sum = unsafe {
        Sum {
            x: QuadRow::<T, VECTOR>::of(&gated.x, at, columns),
            branch: QuadRow::<T, VECTOR>::of(&gated.branch, at, columns),
            gate: OperandRow::<T, VECTOR>::of(&gated.gate, at, columns),
            out: QuadRowMut::<T, VECTOR>::of(&gated.out, at, columns),
            stats: Stats { mean: 0.0, inv: 0.0 },
        }
    };
    passes.stage(0, &sum.branch);
    passes.stage(1, &sum.x);
    passes.wait();
    let sum = Sum { stats: passes.reduce::<MeanSquare>(sum.branch, false), ..sum };
    let Some(Scaled { scale, normed }) = chained else {
        return passes.visit(sum, |_, _| ());
    };
    // Now the sums wait where the branch did.
    let stats = passes.reduce::<MeanSquare>(sum, true);
    // SAFETY: as above.
    let sink = unsafe {
        Scale {
            inv: stats.inv,
            scale: ModulationRow::<T, VECTOR>::of(&scale, at, columns),
            normed: QuadRowMut::<T, VECTOR>::of(&normed, at, columns),
        }
    };
    passes.write(sum, sink);
}

/// The rows of the sum.
#[derive(Clone, Copy)]
struct Sum<T, const VECTOR: bool> {
    x: QuadRow<T, VECTOR>,
    branch: QuadRow<T, VECTOR>,
    gate: OperandRow<T, VECTOR>,
    out: QuadRowMut<T, VECTOR>,
    stats: Stats,
}

impl<T: Elem, const VECTOR: bool> Sum<T, VECTOR> {
    #[inline(always)]
    fn add(&self, tile: u32, x: Quad<T>, branch: Quad<T>) -> Quad<T> {
        let gate = self.gate.lanes(tile).unwrap_or([0.0; 4]).map(tanh);
        let gate = if self.gate.kind == Operand::SAME { round::<T>(gate) } else { gate };
        let product = zip(branch.lanes(), gate, |branch, gate| branch * self.stats.inv * gate);
        x.add(Quad::from_lanes(product))
    }
}

/// The branch is staged as row 0, `x` as row 1.
impl<T: Elem, const VECTOR: bool> Source<T, VECTOR> for Sum<T, VECTOR> {
    type Parts = [Quad<T>; 2];
    const EMPTY: [Quad<T>; 2] = [Quad::ZERO; 2];
    #[inline(always)]
    fn parts(&self, get: impl Fn(u32, &QuadRow<T, VECTOR>) -> Quad<T>) -> [Quad<T>; 2] {
        [get(1, &self.x), get(0, &self.branch)]
    }
    #[inline(always)]
    fn take(&self, tile: u32, [x, branch]: [Quad<T>; 2]) -> Quad<T> {
        let sum = self.add(tile, x, branch);
        self.out.put(tile, sum);
        sum
    }
    #[inline(always)]
    fn again(&self, tile: u32) -> Quad<T> {
        self.out.written(tile)
    }
}

/// `normed = sum * inv * (1 + scale)`, as the last pass.
struct Scale<T, const VECTOR: bool> {
    inv: f32,
    scale: ModulationRow<T, VECTOR>,
    normed: QuadRowMut<T, VECTOR>,
}

impl<T: Elem, const VECTOR: bool> Sink<T> for Scale<T, VECTOR> {
    const GROUPED: bool = false;
    type Fetched = [f32; 4];
    const EMPTY: [f32; 4] = [0.0; 4];
    #[inline(always)]
    fn fetch(&self, tile: u32) -> [f32; 4] {
        self.scale.lanes(tile).unwrap_or([0.0; 4])
    }
    #[inline(always)]
    fn put(&self, tile: u32, sum: Quad<T>, scale: [f32; 4]) {
        let normed = zip(sum.lanes(), scale, |sum, scale| sum * self.inv * (1.0 + scale));
        self.normed.put(tile, Quad::from_lanes(normed));
    }
}

/// # Safety
/// As [`residual`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(gated: TanhGated, chained: Option<Scaled>, p: Params) {
    thread::launch_bounds::<128, 6>();
    // SAFETY: the host sets `p.vector` only where every operand is.
    unsafe {
        if p.vector != 0 {
            residual::<T, true>(gated, chained, p)
        } else {
            residual::<T, false>(gated, chained, p)
        }
    }
}

entry! {
    residual_tanh_gated_rms_norm<T: [f32, f16, bf16]>(gated: TanhGated, p: Params)
        => any_layout::<T>(gated, None, p);
    residual_tanh_gated_rms_norm_modulated<T: [f32, f16, bf16]>(gated: TanhGated, chained: Scaled, p: Params)
        => any_layout::<T>(gated, Some(chained), p)
}
