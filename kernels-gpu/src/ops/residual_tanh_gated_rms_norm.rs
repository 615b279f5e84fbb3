//! The gated residual of the Mochi video model: `out = x + rms(branch) * tanh(gate)`. `branch` is the output
//! of attention or of the MLP. Kernels with `modulated` in their names also compute the next norm,
//! `normed = rms(out) * (1 + scale)`, in the same launch. Here, `rms` is RMSNorm without a weight.
//!
//! The kernels round after the same steps as two implementations of Mochi: the implementation in diffusers,
//! and the implementation by genmo, who published Mochi. The product `rms(branch) * tanh(gate)` is computed
//! in f32 and rounded. The sum `out` is rounded. `normed` is computed in f32 from the rounded sum and rounded
//! once.
//!
//! Kernels with the suffix `_any` take any layout. Kernels with the suffix `_block6` keep Mochi's rows of
//! 3072 columns in the registers of a block's four warps.
use cuda_std::libdevice::tanh;
use cuda_std::prelude::*;
use cuda_std::vec4::{
    Access, BlockRegistersStaged, MAX_IN_REGISTERS, Scalar, Vectorized, WholeTiles, round, tiles_in_registers,
};

use crate::layout::operand_kind::OperandKind;
use crate::norm::io::{Sink, Source};
use crate::norm::operand::{Modulation, ModulationRow, Operand, OperandRow, zip};
use crate::norm::operand_forms::ModulationSource;
use crate::norm::params::{NormParams, RowAccess};
use crate::norm::reduce::stats::Stats;
use crate::norm::reduce::warp::MeanSquare;
use crate::norm::row_context::RowContext;

/// The operands of the gated residual: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TanhGated {
    /// The residual stream.
    pub x: Rows,
    /// The branch (the output of attention or of the MLP), which is normalized, gated and added to `x`.
    pub branch: Rows,
    /// The gate. The kernel computes `tanh(gate)` and rounds it to the element type of the gate. Then it
    /// multiplies the normalized `branch` by the rounded `tanh(gate)`.
    pub gate: Operand,
    /// The output for the sum.
    pub out: Rows,
}

/// The operands of the second norm: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scaled {
    /// Scale: the second norm is multiplied by `1 + scale`.
    pub scale: Modulation,
    /// The output for the second norm.
    pub normed: Rows,
}

/// # Safety
/// The host checked that `x`, `branch`, `out` and `normed` hold `p.rows` rows of `p.cols` elements. Gate and
/// scale broadcast to these rows, and their fields `kind` state their element types. All operands allow the
/// access type `A` (how many elements one load reads). The outputs overlap no other operand.
#[inline(always)]
unsafe fn residual<T: Elem, A: Access>(gated: TanhGated, chained: Option<Scaled>, p: NormParams) {
    let Some(row) = RowContext::<T, A>::of_warp(p) else { return };
    let (at, columns) = (row.at, row.columns);
    // SAFETY: the kernel reads `x`, `branch` and `gate` and writes `out`. The host checked all four. No
    // thread outside of the calling warp (or of its block, if four warps share a row) writes row `at` of
    // `out`.
    let sum = unsafe {
        SumRows {
            row,
            x: Vec4Row::<T, A>::of(&gated.x, at, columns),
            branch: Vec4Row::<T, A>::of(&gated.branch, at, columns),
            gate: OperandRow::<T, A>::of(&gated.gate, at, columns),
            out: Vec4RowMut::<T, A>::of(&gated.out, at, columns),
            stats: Stats { mean: 0.0, inv: 0.0 },
        }
    };
    // SAFETY: the kernel reads the scale and writes `normed`. The host checked both. No thread outside of the
    // calling warp (or of its block, if four warps share a row) writes row `at` of `normed`.
    let sink = chained.map(|Scaled { scale, normed }| unsafe {
        ModulatedSink {
            scale: ModulationRow::<T, A>::of(&scale, at, columns),
            normed: Vec4RowMut::<T, A>::of(&normed, at, columns),
        }
    });
    if tiles_in_registers::<A>() > 0 {
        return run_in_registers(&row, sum, sink);
    }
    let sum = SumRows { stats: row.reduce::<MeanSquare, _>(sum.branch), ..sum };
    let Some(sink) = sink else { return sum.write() };
    // The row of `branch` may be staged in shared memory. The reduction below then overwrites it there with
    // the row of sums.
    let stats = row.reduce::<MeanSquare, _>(sum);
    row.write(sum, stats, sink);
}

/// Computes the results of [`residual`] for a row that stays in registers. The loads of whole rows of
/// `branch` and `x` are in flight together.
#[inline(always)]
fn run_in_registers<T: Elem, A: Access>(
    row: &RowContext<T, A>,
    sum: SumRows<T, A>,
    sink: Option<ModulatedSink<T, A>>,
) {
    let (branch, x) =
        (row.register_row(|tile| sum.branch.get(tile)), row.register_row(|tile| sum.x.get(tile)));
    let sum = SumRows { stats: row.reduce_in_registers::<MeanSquare>(&branch), ..sum };
    let mut sums = x;
    for nth in 0..MAX_IN_REGISTERS {
        if let Some(tile) = row.warp_tile(nth) {
            sums[nth] = sum.add_to(tile, branch[nth].opaque_lanes(), x[nth]);
        }
    }
    let Some(sink) = sink else { return };
    let stats = row.reduce_in_registers::<MeanSquare>(&sums);
    for nth in 0..MAX_IN_REGISTERS {
        if let Some(tile) = row.warp_tile(nth) {
            sink.put(stats, tile, sums[nth].opaque_lanes(), sink.fetch(tile));
        }
    }
}

/// A row of the sum `x + rms(branch) * tanh(gate)`, and the operands from which the sum is computed.
#[derive(Clone, Copy)]
struct SumRows<T, A> {
    row: RowContext<T, A>,
    x: Vec4Row<T, A>,
    branch: Vec4Row<T, A>,
    gate: OperandRow<T, A>,
    out: Vec4RowMut<T, A>,
    stats: Stats,
}

impl<T: Elem, A: Access> SumRows<T, A> {
    /// Computes and writes this thread's vec4 (four columns) of the sum in `tile`. This method loads the vec4
    /// of `branch`.
    #[inline(always)]
    fn add(&self, tile: u32, x: Vec4<T>) -> Vec4<T> {
        self.add_to(tile, self.row.staged_vec4(tile).unwrap_or_else(|| self.branch.get(tile)), x)
    }

    /// Computes and writes this thread's vec4 (four columns) of the sum in `tile`. The caller passes the vec4
    /// of `branch`.
    #[inline(always)]
    fn add_to(&self, tile: u32, branch: Vec4<T>, x: Vec4<T>) -> Vec4<T> {
        let gate = self.gate.lanes(tile).unwrap_or([0.0; 4]).map(tanh);
        let gate = if let OperandKind::SAME = self.gate.kind { round::<T>(gate) } else { gate };
        let product = zip(branch.lanes(), gate, |branch, gate| branch * self.stats.inv * gate);
        let sum = x.plus(Vec4::from_lanes(product));
        self.out.put(tile, sum);
        sum
    }

    /// Computes the sum for all columns of the row and writes it, in launches without a second norm.
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

impl<T: Elem, A: Access> Source<T, A> for SumRows<T, A> {
    type Parts = ();
    const NOTHING: () = ();
    #[inline(always)]
    fn stage(&self, _: &RowContext<T, A>) {
        self.row.fill(|tile| self.x.get(tile), |tile, x| self.add(tile, x));
    }
    #[inline(always)]
    fn parts(&self, _: &RowContext<T, A>, _: u32) {}
    #[inline(always)]
    fn make(&self, row: &RowContext<T, A>, tile: u32, (): ()) -> Vec4<T> {
        row.staged_vec4(tile).unwrap_or_else(|| self.add(tile, self.x.get(tile)))
    }
    #[inline(always)]
    fn again(&self, tile: u32) -> Vec4<T> {
        self.out.written(tile)
    }
}

/// Writes `normed = sum * inv * (1 + scale)` after the second reduction, which computes `inv`.
struct ModulatedSink<T, A> {
    scale: ModulationRow<T, A>,
    normed: Vec4RowMut<T, A>,
}

impl<T: Elem, A: Access> Sink<T> for ModulatedSink<T, A> {
    const GROUPED: bool = false;
    type Fetched = [f32; 4];
    const EMPTY: [f32; 4] = [0.0; 4];
    #[inline(always)]
    fn fetch(&self, tile: u32) -> [f32; 4] {
        self.scale.lanes(tile).unwrap_or([0.0; 4])
    }
    #[inline(always)]
    fn put(&self, stats: Stats, tile: u32, sum: Vec4<T>, scale: [f32; 4]) {
        let normed = zip(sum.lanes(), scale, |sum, scale| sum * stats.inv * (1.0 + scale));
        self.normed.put(tile, Vec4::from_lanes(normed));
    }
}

/// # Safety
/// The requirements of [`residual`] apply, for the access type (how many elements one load reads) that
/// `p.access` specifies.
#[inline(always)]
unsafe fn any_layout<T: Elem, const MIN_BLOCKS: u32>(
    gated: TanhGated,
    chained: Option<Scaled>,
    p: NormParams,
) {
    thread::launch_bounds::<128, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.access` to an access type (how many elements one load reads) that all
    // operands allow.
    unsafe {
        match p.access {
            RowAccess::WHOLE_TILES => residual::<T, WholeTiles>(gated, chained, p),
            RowAccess::VECTORIZED => residual::<T, Vectorized>(gated, chained, p),
            _ => residual::<T, Scalar>(gated, chained, p),
        }
    }
}

/// # Safety
/// The requirements of [`residual`] apply. A row has `4 * TILES` tiles (128 columns each). Gate and scale
/// have the element type of the rows, and the scale has no table.
#[inline(always)]
unsafe fn team<T: Elem, const MIN_BLOCKS: u32>(gated: TanhGated, chained: Option<Scaled>, p: NormParams) {
    // A Turing SM runs at most 1024 threads, fewer than a newer SM, but both have the same number of
    // registers. For Turing, the launch bounds therefore require only 4 blocks per SM, so that each thread
    // can use more registers.
    thread::launch_bounds_by_generation::<{ NormParams::SHARING }, 4, MIN_BLOCKS, MIN_BLOCKS>();
    // Set each field `kind` to a constant, so that the compiler removes the branches on `kind`. Otherwise,
    // the kernel would execute these branches for each vec4 (four columns).
    let same = |operand: Operand| Operand { kind: OperandKind::SAME, ..operand };
    let gated = TanhGated { gate: same(gated.gate), ..gated };
    let chained = chained.map(|Scaled { scale, normed }| Scaled {
        scale: Modulation { value: same(scale.value), table: Operand::ABSENT },
        normed,
    });
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The operands have no tables (tensors that are added to them). A row has `4 * TILES` tiles
    // (128 columns each).
    unsafe { residual::<T, BlockRegistersStaged<TILES>>(gated, chained, p) }
}

/// Number of tiles (128 columns each) per warp, for Mochi's rows of 3072 columns and four warps per row.
const TILES: usize = 6;

entry! {
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    residual_tanh_gated_rms_norm_any<T: [f32, f16, bf16]>(gated: TanhGated, p: NormParams)
        => any_layout::<T, 5>(gated, None, p);
    @shared(|block| p.staged_bytes::<T>(1) * block[1])
    residual_tanh_gated_rms_norm_modulated_any<T: [f32]>(gated: TanhGated, chained: Scaled, p: NormParams)
        => any_layout::<T, 4>(gated, Some(chained), p),
            [f16, bf16] => any_layout::<T, 5>(gated, Some(chained), p);
    @shared(|_block| NormParams::SCRATCH_BYTES + p.staged_bytes::<T>(1))
    residual_tanh_gated_rms_norm_block6<T: [f16, bf16]>(gated: TanhGated, p: NormParams)
        => team::<T, 9>(gated, None, p),
            [f32] => team::<T, 4>(gated, None, p);
    @shared(|_block| NormParams::SCRATCH_BYTES + p.staged_bytes::<T>(1))
    residual_tanh_gated_rms_norm_modulated_block6<T: [f16, bf16]>(gated: TanhGated, chained: Scaled, p: NormParams)
        => team::<T, 9>(gated, Some(chained), p),
            [f32] => team::<T, 4>(gated, Some(chained), p)
}
