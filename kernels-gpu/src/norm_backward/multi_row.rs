//! Computes the gradients of LayerNorm, one or two rows at a time. Each thread has the same number of packs
//! (16-byte vectors) of a row, and a row must fill the packs of all threads.
//!
//! The weight (in f32) and the partial sums for the gradients of weight and bias stay in registers.
//!
//! The kernel computes all sums of a row in one pass over the row and one block reduction. A second pass
//! would be slower, because it needs too many instructions per element. In a single pass, the variance is the
//! difference of `mean(x^2)` and `mean(x)^2`, which can lose bits by cancellation. To reduce the
//! cancellation, the sums use `x - shift` instead of `x`. `shift` is the mean of the first [`SAMPLES`]
//! elements of the row:
//!
//! - In a row of `n` elements, `shift` differs from the mean of the row by at most `sqrt(n / SAMPLES)`
//!   standard deviations.
//! - For 4096 columns, the variance loses at most 8 of its 24 significant bits.
//! - If the first elements are a random sample of the row, the variance loses practically no bits.
//!
//! The comments use three abbreviations: `d` is `x - mean(x)`, `r` is `1 / sqrt(mean(d^2) + eps)`, and `g` is
//! `dy * (offset + w)`. `w` is the weight, and `offset` is a constant.
use cuda_std::prelude::*;

use super::block_reduce::{BlockMoments, BlockReduction, MAX_ROWS, OF_ROW};
use super::block_sums::{BlockRows, SumsRow};
use super::params::{NormBackwardParams, Operands, PartialSums};
use super::prefetch;
use crate::layout::operand_kind::OperandKind;
use crate::rms::weight::Weight;

/// Number of elements at the start of a row whose mean is the `shift` of the row, an estimate of the row's
/// mean. Each lane of half a warp loads one of these elements.
const SAMPLES: u32 = 16;

/// A thread's packs (16-byte vectors) of `x` and `dy` for one row.
type Pairs<T, const IN_REGISTERS: usize> = [[Pack<T>; 2]; IN_REGISTERS];

/// The addresses of the thread's columns in one row.
#[derive(Clone, Copy)]
struct RowPointers<T> {
    x: Row<T, true>,
    dy: Row<T, true>,
    dsum: Row<T, true>,
    dx: RowMut<T, true>,
    exists: bool,
}

impl<T: Elem> RowPointers<T> {
    /// Returns the addresses of row `row`. If `row` is `end` or larger, the row does not exist. `exists` is
    /// then false, and the addresses belong to row `end - 1`.
    ///
    /// # Safety
    /// The requirements of [`multi_row`] apply.
    #[inline(always)]
    unsafe fn of(operands: &Operands, row: u32, end: u32, inner: u32) -> Self {
        // Recompute the pointers for each row. If the kernel incremented the pointers instead, each pack
        // (16-byte vector) would need a register pair for its pointer.
        let [row, rank] = thread::opaque([row, thread::index()[0]]);
        let team = Team { rank, size: thread::block_dim()[0], row: 0, cluster: false };
        // SAFETY: CUDA allows at most 1024 threads per block.
        unsafe { core::hint::assert_unchecked(rank < 1024 && team.size <= 1024) };
        let (exists, row) = (row < end, row.min(end - 1));
        let (within, outer) = if inner == 0 { (row, 0) } else { (row % inner, row / inner) };
        let of = |rows: Rows| {
            let elements = i64::from(within) * rows.inner_stride;
            let elements =
                if inner == 0 { elements } else { elements + i64::from(outer) * rows.outer_stride };
            let base = rows.base.cast::<T>().wrapping_offset(elements as isize).cast();
            Rows { base, inner_stride: 0, outer_stride: 0 }
        };
        let (at, cols) = (RowIndex::FIRST, u32::MAX);
        // `cols` is `u32::MAX`, so that the compiler removes the bounds checks from accesses through these
        // rows.
        // SAFETY: the accesses read and write packs (16 bytes each) of the rows. The caller guarantees that
        // the rows have all `IN_REGISTERS` packs of each thread.
        unsafe {
            Self {
                x: Row::of(&of(operands.x), team, at, cols),
                dy: Row::of(&of(operands.dy), team, at, cols),
                dsum: Row::of(&of(operands.dsum), team, at, cols),
                dx: RowMut::of(&of(operands.dx), team, at, cols),
                exists,
            }
        }
    }

    /// Loads the thread's packs (16 bytes each) of `tile`. If the row does not exist, the pack of `dy` is
    /// zero, so that it adds nothing to the sums.
    #[inline(always)]
    fn load(&self, tile: u32) -> [Pack<T>; 2] {
        let (x, dy) = (self.x.load(tile, Load::ReadOnly), self.dy.load(tile, Load::ReadOnly));
        [x, if self.exists { dy } else { Pack::ZERO }]
    }
}

/// The addresses of `ROWS` consecutive rows. The first of these rows always exists. The other rows may be
/// after the last row of the group (the rows that share a weight).
#[derive(Clone, Copy)]
struct Places<T, const ROWS: usize>([RowPointers<T>; ROWS]);

impl<T: Elem, const ROWS: usize> Places<T, ROWS> {
    /// Returns the addresses of the `ROWS` rows from row `first` on.
    ///
    /// # Safety
    /// The requirements of [`multi_row`] apply.
    #[inline(always)]
    unsafe fn of(operands: &Operands, first: u32, end: u32, inner: u32) -> Self {
        // SAFETY: the caller guarantees the requirements of `multi_row`.
        Self(core::array::from_fn(|nth| unsafe { RowPointers::of(operands, first + nth as u32, end, inner) }))
    }

    /// Loads the thread's packs (16 bytes each) of all `ROWS` rows.
    #[inline(always)]
    fn load<const IN_REGISTERS: usize>(&self) -> [Pairs<T, IN_REGISTERS>; ROWS] {
        self.0.map(|pointers| core::array::from_fn(|tile| pointers.load(tile as u32)))
    }

    /// Returns the mean of the first [`SAMPLES`] elements of `x` for each row. If there are two rows, each
    /// half of a warp computes the mean of one row.
    #[inline(always)]
    fn shifts(&self) -> [f32; ROWS] {
        let is_last = warp::lane() >= SAMPLES;
        let x = if is_last { self.0[ROWS - 1].x } else { self.0[0].x };
        let sample = x.get(warp::lane() % SAMPLES, Load::ReadOnly).unwrap_or(0.0);
        let own = warp::sum(sample, SAMPLES) * (1.0 / SAMPLES as f32);
        let other = warp::shuffle_xor(warp::ALL, own, SAMPLES);
        core::array::from_fn(|row| if is_last == (row > 0) { own } else { other })
    }
}

/// Returns a thread's sums of `x - shift`, `g`, `(x - shift)^2` and `g * (x - shift)`, with `g = dy * scale`.
///
/// Even and odd elements have separate accumulators, which halves the number of dependent additions.
#[inline(always)]
fn sums<T: Elem, const IN_REGISTERS: usize>(
    pairs: Pairs<T, IN_REGISTERS>,
    scale: &[T::F32Vec; IN_REGISTERS],
    shift: f32,
) -> [f32; OF_ROW] {
    let mut sums = [[0.0; OF_ROW]; 2];
    for tile in 0..IN_REGISTERS {
        let [x, dy] = pairs[tile].map(Pack::lanes);
        for i in 0..T::F32Vec::LEN as usize {
            let [a, b, c, e] = sums[i % 2];
            let (d, g) = (x.get(i) - shift, dy.get(i) * scale[tile].get(i));
            sums[i % 2] = [a + d, b + g, fma(d, d, c), fma(g, d, e)];
        }
    }
    core::array::from_fn(|i| sums[0][i] + sums[1][i])
}

/// Computes the gradients of LayerNorm for the rows of this block, `ROWS` rows at a time: `dx`, and partial
/// sums of `dw` and `db`. If `DSUM` is true, the kernel adds a second gradient `dsum` to `dx`.
///
/// # Safety
/// The requirements of [`norm_backward`](super::gradients::norm_backward) apply. In addition:
///
/// - All operands allow 16-byte accesses (`Rows::is_vector`) and have fewer than 2^31 rows.
/// - All threads of a block share one row. Each thread has exactly `IN_REGISTERS` packs (16 bytes each) of
///   the row, and all of these packs are inside the row.
#[inline(always)]
pub(super) unsafe fn multi_row<T: Elem, const IN_REGISTERS: usize, const ROWS: usize, const DSUM: bool>(
    operands: Operands,
    weight: Weight,
    sums_of: PartialSums,
    p: NormBackwardParams,
) {
    let block_rows = BlockRows::of_block(p.rows);
    let start = block_rows.group * p.rows as u32;
    let (end, step) = (start + p.rows as u32, thread::grid_dim()[0] * ROWS as u32);
    let (mut first, mut reduction) = (start + thread::block_index()[0] * ROWS as u32, BlockReduction::FIRST);
    // SAFETY: the function reads a row of the weight. The caller guarantees that the weight has one row per
    // group (rows that share a weight).
    let scale = unsafe { scale::<T, IN_REGISTERS>(&block_rows, weight, &p) };
    let [mut dweight, mut dbias] = [[T::F32Vec::splat(0.0); IN_REGISTERS]; 2];
    while first < end {
        // SAFETY: the function requires that row `first` exists. The caller guarantees that all rows below
        // `end` exist, and `first` is below `end`.
        let places = unsafe { Places::<T, ROWS>::of(&operands, first, end, p.inner) };
        let pairs = places.load::<IN_REGISTERS>();
        let shifts = places.shifts();
        let mut values = [0.0; MAX_ROWS];
        for row in 0..ROWS {
            let sums = sums::<T, IN_REGISTERS>(pairs[row], &scale, shifts[row]);
            for i in 0..OF_ROW {
                values[row * OF_ROW + i] = sums[i];
            }
        }
        // SAFETY: the host checked the operands, and the caller guarantees that they allow 16-byte accesses.
        unsafe { prefetch::prefetch::<T>(&operands, [first + step, ROWS as u32, end], &p) };
        let means = reduction.sums(values, (ROWS * OF_ROW) as u32).map(|sum| sum * p.inv_cols);
        for row in 0..ROWS {
            let of_this = core::array::from_fn(|i| means[row * OF_ROW + i]);
            let pointers = places.0[row];
            let stats = BlockMoments::of(of_this, shifts[row], row == 0 || pointers.exists, p.eps);
            for tile in 0..IN_REGISTERS {
                let [x, dy] = pairs[row][tile].map(|pack| pack.opaque_lanes().lanes());
                let xhat = stats.xhat(x);
                dweight[tile] = T::F32Vec::from_fn(|i| fma(dy.get(i), xhat.get(i), dweight[tile].get(i)));
                dbias[tile] = dbias[tile].zip(dy, |sum, dy| sum + dy);
                let mut dx = stats.dx(dy.zip(scale[tile], |dy, w| dy * w), xhat);
                if DSUM {
                    dx = dx.zip(pointers.dsum.load(tile as u32, Load::Once).lanes(), |dx, dsum| dx + dsum);
                }
                if row == 0 || pointers.exists {
                    pointers.dx.store(tile as u32, Pack::from_lanes(dx), Store::Default);
                }
            }
        }
        first += step;
    }
    // SAFETY: the code writes this block's row of each workspace. The host checked that each workspace is
    // null or has a row of `p.cols` f32 for each block.
    unsafe {
        leave(&block_rows, sums_of.dweight, dweight, p.cols);
        leave(&block_rows, sums_of.dbias, dbias, p.cols);
    }
}

/// Returns the factors `offset + w` in `g = dy * (offset + w)` for the thread's columns. Without a weight,
/// all factors are 1.
///
/// # Safety
/// The requirements of [`norm_backward`](super::gradients::norm_backward) apply.
#[inline(always)]
unsafe fn scale<T: Elem, const IN_REGISTERS: usize>(
    block_rows: &BlockRows,
    weight: Weight,
    p: &NormBackwardParams,
) -> [T::F32Vec; IN_REGISTERS] {
    let rows = Rows { base: weight.base.cast_mut(), inner_stride: i64::from(p.cols), outer_stride: 0 };
    let group = RowIndex::of(Team { row: u64::from(block_rows.group), ..block_rows.team }, u64::MAX, 0);
    // SAFETY: `same` reads the weight as type `T`, and `single` reads it as f32. The kernel reads only
    // through the one that matches `weight.kind`. The host checked that the weight has one row per group
    // (rows that share a weight).
    let (same, single) = unsafe {
        (
            Row::<T, true>::of(&rows, block_rows.team, group, p.cols),
            Row::<f32, true>::of(&rows, block_rows.team, group, p.cols),
        )
    };
    core::array::from_fn(|tile| {
        let of_kind: T::F32Vec = match weight.kind {
            OperandKind::ABSENT => return T::F32Vec::splat(1.0),
            OperandKind::SAME => same.lanes(tile as u32, Load::ReadOnly),
            _ => single.lanes(tile as u32, Load::ReadOnly),
        };
        of_kind.map(|w| w + p.weight_offset)
    })
}

/// Writes the block's row of partial sums to the workspace at `base`, unless `base` is null.
///
/// # Safety
/// The requirements of [`SumsRow::of`] apply.
#[inline(always)]
unsafe fn leave<L: F32Vec, const IN_REGISTERS: usize>(
    block_rows: &BlockRows,
    base: *mut u8,
    sums: [L; IN_REGISTERS],
    cols: u32,
) {
    // SAFETY: the function writes this block's row of the workspace. The caller guarantees that the workspace
    // is null or has a row of `cols` f32 for each block.
    let row = unsafe { SumsRow::<true>::of(base, block_rows, cols) };
    for tile in 0..IN_REGISTERS {
        row.put(tile as u32, sums[tile]);
    }
}
