//! Mochi's residual: `out = x + rms(branch) * tanh(gate)`; and, chained, `normed = rms(out) * (1 + scale)` in
//! the same launch.
//!
//! The roundings are those of diffusers' and of genmo's Mochi: the product is computed in f32 and rounded,
//! the sum is rounded, `normed` is computed in f32 from the rounded sum and rounded once.
use cuda_std::libdevice::tanh;
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, BlockRegistersStaged, MOST_HELD, Scalar, Vec4, WholeTiles, round, tiles_held};

use crate::layout::operand_kind::OperandKind;
use crate::norm::io::{Sink, Source};
use crate::norm::operand::{Modulation, ModulationRow, Operand, OperandRow, zip};
use crate::norm::operand_forms::Form;
use crate::norm::params::{Params, RowAccess};
use crate::norm::reduce::stats::Stats;
use crate::norm::reduce::warp::MeanSquare;
use crate::norm::row_context::RowContext;

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
/// The host checked that `x`, `branch`, `out` and `normed` hold `p.rows` rows of `p.cols` elements, gate and
/// scale as many of the types that their kinds say, all as `A` says, and that the outputs overlap nothing.
#[inline(always)]
unsafe fn residual<T: Elem, A: Access>(gated: TanhGated, chained: Option<Scaled>, p: Params) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    let (at, columns) = (row.at, row.columns);
    // SAFETY: as the caller promises; a warp's row is its own.
    let sum = unsafe {
        Sum {
            row,
            x: QuadRow::<T, A>::of(&gated.x, at, columns),
            branch: QuadRow::<T, A>::of(&gated.branch, at, columns),
            gate: OperandRow::<T, A>::of(&gated.gate, at, columns),
            out: QuadRowMut::<T, A>::of(&gated.out, at, columns),
            stats: Stats { mean: 0.0, inv: 0.0 },
        }
    };
    // SAFETY: as above.
    let sink = chained.map(|Scaled { scale, normed }| unsafe {
        Scale {
            scale: ModulationRow::<T, A>::of(&scale, at, columns),
            normed: QuadRowMut::<T, A>::of(&normed, at, columns),
        }
    });
    if tiles_held::<A>() > 0 {
        return run_held(&row, sum, sink);
    }
    let sum = Sum { stats: row.reduce::<MeanSquare, _>(sum.branch), ..sum };
    let Some(sink) = sink else { return sum.write() };
    // Now the sums wait where the branch did.
    let stats = row.reduce::<MeanSquare, _>(sum);
    row.write(sum, stats, sink);
}

/// The same of a row that stays in registers, all of what it is made of on its way at once.
#[inline(always)]
fn run_held<T: Elem, A: Access>(row: &RowContext<T, A>, sum: Sum<T, A>, sink: Option<Scale<T, A>>) {
    let (branch, x) = (row.held_row(|tile| sum.branch.get(tile)), row.held_row(|tile| sum.x.get(tile)));
    let sum = Sum { stats: row.reduce_held::<MeanSquare>(&branch), ..sum };
    let mut sums = x;
    for nth in 0..MOST_HELD {
        if let Some(tile) = row.own(nth) {
            sums[nth] = sum.add_to(tile, branch[nth].forget_lanes(), x[nth]);
        }
    }
    let Some(sink) = sink else { return };
    let stats = row.reduce_held::<MeanSquare>(&sums);
    for nth in 0..MOST_HELD {
        if let Some(tile) = row.own(nth) {
            sink.put(stats, tile, sums[nth].forget_lanes(), sink.fetch(tile));
        }
    }
}

/// The rows of the sum.
#[derive(Clone, Copy)]
struct Sum<T, A> {
    row: RowContext<T, A>,
    x: QuadRow<T, A>,
    branch: QuadRow<T, A>,
    gate: OperandRow<T, A>,
    out: QuadRowMut<T, A>,
    stats: Stats,
}

impl<T: Elem, A: Access> Sum<T, A> {
    /// The thread's sum of `tile`, written.
    #[inline(always)]
    fn add(&self, tile: u32, x: Quad<T>) -> Quad<T> {
        self.add_to(tile, self.row.waiting(tile).unwrap_or_else(|| self.branch.get(tile)), x)
    }

    /// The same with the branch's quad at hand.
    #[inline(always)]
    fn add_to(&self, tile: u32, branch: Quad<T>, x: Quad<T>) -> Quad<T> {
        let gate = self.gate.lanes(tile).unwrap_or([0.0; 4]).map(tanh);
        let gate = if let OperandKind::SAME = self.gate.kind { round::<T>(gate) } else { gate };
        let product = zip(branch.lanes(), gate, |branch, gate| branch * self.stats.inv * gate);
        let sum = x.plus(Quad::from_lanes(product));
        self.out.put(tile, sum);
        sum
    }

    /// All of them, where nothing follows.
    #[inline(always)]
    fn write(&self) {
        if self.row.has_room() {
            return self.stage(&self.row);
        }
        for tile in 0..self.row.tiles() {
            self.add(tile, self.x.get(tile));
        }
    }
}

impl<T: Elem, A: Access> Source<T, A> for Sum<T, A> {
    type Parts = ();
    const NOTHING: () = ();
    #[inline(always)]
    fn stage(&self, _: &RowContext<T, A>) {
        self.row.fill(|tile| self.x.get(tile), |tile, x| self.add(tile, x));
    }
    #[inline(always)]
    fn parts(&self, _: &RowContext<T, A>, _: u32) {}
    #[inline(always)]
    fn make(&self, row: &RowContext<T, A>, tile: u32, (): ()) -> Quad<T> {
        row.waiting(tile).unwrap_or_else(|| self.add(tile, self.x.get(tile)))
    }
    #[inline(always)]
    fn again(&self, tile: u32) -> Quad<T> {
        self.out.written(tile)
    }
}

/// `normed = sum * inv * (1 + scale)`, as the last pass.
struct Scale<T, A> {
    scale: ModulationRow<T, A>,
    normed: QuadRowMut<T, A>,
}

impl<T: Elem, A: Access> Sink<T> for Scale<T, A> {
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
    unsafe {
        match p.access {
            RowAccess::WHOLE_TILES => residual::<T, WholeTiles>(gated, chained, p),
            RowAccess::VEC4 => residual::<T, Vec4>(gated, chained, p),
            _ => residual::<T, Scalar>(gated, chained, p),
        }
    }
}

/// # Safety
/// As [`residual`], for rows of four times [`TILES`] tiles, gate and scale of the rows' type and without a
/// table.
#[inline(always)]
unsafe fn team<T: Elem, const MIN_BLOCKS: u32>(gated: TanhGated, chained: Option<Scaled>, p: Params) {
    // Of Turing's half as many threads each has the registers that it wants.
    thread::launch_bounds_by_generation::<{ Params::SHARING }, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // Known when the kernel is compiled, and not looked up for each quad.
    let same = |operand: Operand| Operand { kind: OperandKind::SAME, ..operand };
    let gated = TanhGated { gate: same(gated.gate), ..gated };
    let chained = chained.map(|Scaled { scale, normed }| Scaled {
        scale: Modulation { value: same(scale.value), table: Operand::ABSENT },
        normed,
    });
    // SAFETY: as the caller promises.
    unsafe { residual::<T, BlockRegistersStaged<TILES>>(gated, chained, p) }
}

/// Tiles that a warp has of a row of Mochi's 3072 columns.
const TILES: usize = 6;

entry! {
    residual_tanh_gated_rms_norm<T: [f32, f16, bf16]>(gated: TanhGated, p: Params)
        => any_layout::<T, 5>(gated, None, p);
    residual_tanh_gated_rms_norm_modulated<T: [f32]>(gated: TanhGated, chained: Scaled, p: Params)
        => any_layout::<T, 4>(gated, Some(chained), p);
    residual_tanh_gated_rms_norm_modulated<T: [f16, bf16]>(gated: TanhGated, chained: Scaled, p: Params)
        => any_layout::<T, 5>(gated, Some(chained), p);
    residual_tanh_gated_rms_norm_team6<T: [f16, bf16]>(gated: TanhGated, p: Params)
        => team::<T, 9>(gated, None, p);
    residual_tanh_gated_rms_norm_team6<T: [f32]>(gated: TanhGated, p: Params)
        => team::<T, 4>(gated, None, p);
    residual_tanh_gated_rms_norm_modulated_team6<T: [f16, bf16]>(gated: TanhGated, chained: Scaled, p: Params)
        => team::<T, 9>(gated, Some(chained), p);
    residual_tanh_gated_rms_norm_modulated_team6<T: [f32]>(gated: TanhGated, chained: Scaled, p: Params)
        => team::<T, 4>(gated, Some(chained), p)
}
