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
use crate::params::{Params, with_access};
use crate::passes::Passes;
use crate::side::Form;
use crate::source::{Sink, Source};

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
/// of the types that their kinds say, all as `ACCESS` says, and that the outputs overlap nothing.
#[inline(always)]
unsafe fn residual<T: Elem, const ACCESS: u32>(gated: TanhGated, chained: Option<Scaled>, p: Params) {
    let Some(passes) = Passes::<T, ACCESS>::of_warp(p) else { return };
    let (at, columns) = (passes.at, passes.columns);
    // SAFETY: as the caller promises; a warp's row is its own.
    let sum = unsafe {
        Sum {
            passes,
            x: QuadRow::<T, ACCESS>::of(&gated.x, at, columns),
            branch: QuadRow::<T, ACCESS>::of(&gated.branch, at, columns),
            gate: OperandRow::<T, ACCESS>::of(&gated.gate, at, columns),
            out: QuadRowMut::<T, ACCESS>::of(&gated.out, at, columns),
            stats: Stats { mean: 0.0, inv: 0.0 },
        }
    };
    let sum = Sum { stats: passes.reduce::<MeanSquare, _>(sum.branch), ..sum };
    let Some(Scaled { scale, normed }) = chained else { return sum.write() };
    // Now the sums wait where the branch did.
    let stats = passes.reduce::<MeanSquare, _>(sum);
    // SAFETY: as above.
    let sink = unsafe {
        Scale {
            scale: ModulationRow::<T, ACCESS>::of(&scale, at, columns),
            normed: QuadRowMut::<T, ACCESS>::of(&normed, at, columns),
        }
    };
    passes.write(sum, stats, sink);
}

/// The rows of the sum.
#[derive(Clone, Copy)]
struct Sum<T, const ACCESS: u32> {
    passes: Passes<T, ACCESS>,
    x: QuadRow<T, ACCESS>,
    branch: QuadRow<T, ACCESS>,
    gate: OperandRow<T, ACCESS>,
    out: QuadRowMut<T, ACCESS>,
    stats: Stats,
}

impl<T: Elem, const ACCESS: u32> Sum<T, ACCESS> {
    /// The thread's sum of `tile`, written.
    #[inline(always)]
    fn add(&self, tile: u32, x: Quad<T>) -> Quad<T> {
        let branch = self.passes.waiting(tile).unwrap_or_else(|| self.branch.get(tile));
        let gate = self.gate.lanes(tile).unwrap_or([0.0; 4]).map(tanh);
        let gate = if self.gate.kind == Operand::SAME { round::<T>(gate) } else { gate };
        let product = zip(branch.lanes(), gate, |branch, gate| branch * self.stats.inv * gate);
        let sum = x.plus(Quad::from_lanes(product));
        self.out.put(tile, sum);
        sum
    }

    /// All of them, where nothing follows.
    #[inline(always)]
    fn write(&self) {
        if self.passes.has_room() {
            return self.stage(&self.passes);
        }
        for tile in 0..self.passes.tiles() {
            self.add(tile, self.x.get(tile));
        }
    }
}

impl<T: Elem, const ACCESS: u32> Source<T, ACCESS> for Sum<T, ACCESS> {
    type Parts = ();
    const NOTHING: () = ();
    #[inline(always)]
    fn stage(&self, passes: &Passes<T, ACCESS>) {
        passes.fill(|tile| self.x.get(tile), |tile, x| self.add(tile, x));
    }
    #[inline(always)]
    fn parts(&self, _: &Passes<T, ACCESS>, _: u32) {}
    #[inline(always)]
    fn make(&self, passes: &Passes<T, ACCESS>, tile: u32, (): ()) -> Quad<T> {
        passes.waiting(tile).unwrap_or_else(|| self.add(tile, self.x.get(tile)))
    }
    #[inline(always)]
    fn again(&self, tile: u32) -> Quad<T> {
        self.out.written(tile)
    }
}

/// `normed = sum * inv * (1 + scale)`, as the last pass.
struct Scale<T, const ACCESS: u32> {
    scale: ModulationRow<T, ACCESS>,
    normed: QuadRowMut<T, ACCESS>,
}

impl<T: Elem, const ACCESS: u32> Sink<T> for Scale<T, ACCESS> {
    const GROUPED: bool = false;
    type Fetched = [f32; 4];
    const EMPTY: [f32; 4] = [0.0; 4];
    #[inline(always)]
    fn fetch(&self, tile: u32) -> [f32; 4] {
        self.scale.lanes(tile).unwrap_or([0.0; 4])
    }
    #[inline(always)]
    fn put(&self, stats: Stats, tile: u32, sum: Quad<T>, scale: [f32; 4]) {
        let normed = zip(sum.lanes(), scale, |sum, scale| sum * stats.inv * (1.0 + scale));
        self.normed.put(tile, Quad::from_lanes(normed));
    }
}

/// # Safety
/// As [`residual`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem, const MIN_BLOCKS: u32>(gated: TanhGated, chained: Option<Scaled>, p: Params) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    // SAFETY: the host sets `p.access` to what every operand is.
    unsafe { with_access!(p, ACCESS => residual::<T, ACCESS>(gated, chained, p)) }
}

entry! {
    residual_tanh_gated_rms_norm<T: [f32, f16, bf16]>(gated: TanhGated, p: Params)
        => any_layout::<T, 5>(gated, None, p);
    residual_tanh_gated_rms_norm_modulated<T: [f32]>(gated: TanhGated, chained: Scaled, p: Params)
        => any_layout::<T, 4>(gated, Some(chained), p);
    residual_tanh_gated_rms_norm_modulated<T: [f16, bf16]>(gated: TanhGated, chained: Scaled, p: Params)
        => any_layout::<T, 5>(gated, Some(chained), p)
}
