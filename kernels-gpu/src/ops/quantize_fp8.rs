//! Quantizes rows to 8-bit floats: `values[r, c] = x[r, c] / scale`, with one scale per row, or one scale per
//! row and 128 columns. The module `fp8::scale` has the formulas.
//!
//! - `quantize_fp8_per_row_any_<dtype>` takes any layout. It reads each row twice, the second time mostly
//!   from L2. The second pass runs from the end of the row to its start, because the end of the row is
//!   still in the cache.
//! - `quantize_fp8_per_row_block<n>_<dtype>` keeps up to `n` packs (16 bytes) per thread in registers, so it
//!   reads each row only once.
//! - `quantize_fp8_per_block_any_<dtype>` and `quantize_fp8_per_block_block4_<dtype>` compute one scale for
//!   each 128 columns. The threads whose packs cover 128 columns are 16 or 32 lanes of a warp, so only these
//!   lanes exchange data.
use cuda_std::prelude::*;

use crate::fp8::scale::{BLOCK, Peak};

/// Kernel argument: the parameters of the kernels, without the tensors.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QuantizeParams {
    /// Number of rows of the operands.
    pub rows: u64,
    /// Elements between the scales of consecutive blocks of 128 columns. Kernels with one scale per row
    /// ignore this field.
    pub block_stride: i64,
    /// Number of rows per run. Within a run, consecutive rows are `Rows::inner_stride` elements apart.
    /// Consecutive runs start `Rows::outer_stride` elements apart. 0 means that all rows are in one run.
    pub inner: u32,
    /// Columns per row.
    pub cols: u32,
    /// 1 if the values are e5m2, and 0 if they are e4m3.
    pub e5m2: u32,
    /// 1 if `x` allows 16-byte accesses (`Rows::is_vector`) and the values allow the stores of
    /// `Rows::is_fp8_vector`, otherwise 0.
    pub vector: u32,
}

/// The operands of a launch. `scales` are f32, and their rows are those of `x`.
#[derive(Clone, Copy)]
struct QuantizeOperands {
    x: Rows,
    values: Rows,
    scales: Rows,
    p: QuantizeParams,
}

impl QuantizeOperands {
    /// Stores the scale of row `at` for block number `block`, if this block exists. The thread of rank 0 in
    /// `team` stores it.
    ///
    /// # Safety
    /// The host checked that `scales` has `p.rows` rows, and a scale for each block of a row.
    #[inline(always)]
    unsafe fn store_scale(&self, team: Team, at: RowIndex, block: u32, scale: f32) {
        let offset = i64::from(block) * self.p.block_stride * size_of::<f32>() as i64;
        let rows = Rows { base: self.scales.base.wrapping_offset(offset as isize), ..self.scales };
        let exists = u32::from(block * BLOCK < self.p.cols);
        // SAFETY: `set` writes the scale of one row and block. The block exists, or the row has no columns.
        // The host checked the scales. No other thread writes this scale.
        unsafe { RowMut::<f32, false>::of(&rows, team, at, exists) }.set(0, scale, Store::Default);
    }
}

/// Quantizes the row of the calling team (the threads that share the row), with one scale. If `IN_REGISTERS`
/// is not 0, each thread keeps its elements of the row in `IN_REGISTERS` packs (16 bytes each).
///
/// # Safety
/// The host checked that `x`, the values and the scales have `p.rows` rows, and that rows of `x` and of the
/// values have `p.cols` elements. The values and the scales overlap no other operand. If `VECTOR` is true,
/// `x` and the values allow vector accesses (`p.vector`).
#[inline(always)]
unsafe fn per_row<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool>(operands: QuantizeOperands) {
    let (team, p) = (Team::of_block(), operands.p);
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: the kernel reads `x`, whose rows the host checked.
    let x = unsafe { Row::<T, VECTOR>::of(&operands.x, team, at, p.cols) };
    thread::wait_for_earlier_launches(x.first());
    let mut in_registers = [Pack::<T>::ZERO; IN_REGISTERS];
    for tile in 0..IN_REGISTERS {
        in_registers[tile] = x.load(tile as u32, Load::ReadOnly);
    }
    let mut peak = Peak::NONE;
    for tile in 0..IN_REGISTERS {
        peak = peak.with(in_registers[tile].lanes());
    }
    let streamed = if IN_REGISTERS == 0 { x.tiles() } else { 0 };
    for tile in 0..streamed {
        peak = peak.with(x.load(tile, Load::ReadOnly).lanes());
    }
    let row = (x, in_registers, peak.of_team(team));
    // SAFETY: the caller satisfies the requirements, which are the same.
    unsafe {
        match p.e5m2 {
            0 => write_row::<T, E4m3, IN_REGISTERS, VECTOR>(&operands, team, at, row),
            _ => write_row::<T, E5m2, IN_REGISTERS, VECTOR>(&operands, team, at, row),
        }
    }
}

/// Writes the values and the scale of the row `x`, whose elements a thread may have in registers.
///
/// # Safety
/// The requirements of [`per_row`] apply.
#[inline(always)]
unsafe fn write_row<T: Elem, E: Fp8, const IN_REGISTERS: usize, const VECTOR: bool>(
    operands: &QuantizeOperands,
    team: Team,
    at: RowIndex,
    (x, in_registers, peak): (Row<T, VECTOR>, [Pack<T>; IN_REGISTERS], Peak),
) {
    let scale = peak.scale::<E>();
    // SAFETY: the kernel writes the values and the scales. The host checked their rows. No thread outside of
    // the calling team writes row `at`.
    let values = unsafe {
        operands.store_scale(team, at, 0, scale.scale);
        Fp8RowMut::<E, VECTOR>::of(&operands.values, team, at, operands.p.cols)
    };
    for tile in 0..IN_REGISTERS {
        let lanes = in_registers[tile].opaque_lanes().lanes();
        values.store(tile as u32, scale.apply(lanes), Store::Default);
    }
    let streamed = if IN_REGISTERS == 0 { x.tiles() } else { 0 };
    for tile in (0..streamed).rev() {
        let lanes = x.load(tile, Load::ReadOnly).lanes();
        values.store(tile, scale.apply(lanes), Store::Default);
    }
}

/// Quantizes the row of the calling team (the threads that share the row), with one scale per 128 columns. A
/// thread loads `STEP` packs (16 bytes each) before it uses them.
///
/// # Safety
/// The requirements of [`per_row`] apply. The scales have one element per row and block of 128 columns. A
/// team has at least as many threads as 128 columns have packs, and it has a multiple of this number.
#[inline(always)]
unsafe fn per_block<T: Elem, const STEP: usize, const VECTOR: bool>(operands: QuantizeOperands) {
    let (team, p) = (Team::of_block(), operands.p);
    let at = RowIndex::of(team, p.rows, p.inner);
    // The threads whose packs cover a block form a team of their own, so that each of their tiles is a block.
    let width = BLOCK / Pack::<T>::LEN;
    let lanes = Team { rank: team.rank % width, size: width, ..team };
    let (first, groups) = (team.rank / width, team.size / width);
    // SAFETY: the kernel reads `x`, whose rows the host checked.
    let x = unsafe { Row::<T, VECTOR>::of(&operands.x, lanes, at, p.cols) };
    thread::wait_for_earlier_launches(x.first());
    // Every thread of a warp makes the same number of steps, because all lanes take part in the shuffles.
    for step in 0..p.cols.div_ceil(BLOCK * groups * STEP as u32) {
        let block = |i: usize| (step * STEP as u32 + i as u32) * groups + first;
        let mut packs = [Pack::<T>::ZERO; STEP];
        for i in 0..STEP {
            packs[i] = x.load(block(i), Load::ReadOnly);
        }
        for i in 0..STEP {
            let peak = Peak::NONE.with(packs[i].lanes()).of_lanes(width);
            // SAFETY: the caller satisfies the requirements, which are the same.
            unsafe {
                match p.e5m2 {
                    0 => write_block::<T, E4m3, VECTOR>(&operands, lanes, at, block(i), packs[i], peak),
                    _ => write_block::<T, E5m2, VECTOR>(&operands, lanes, at, block(i), packs[i], peak),
                }
            }
        }
    }
}

/// Writes the values and the scale of block number `block`.
///
/// # Safety
/// The requirements of [`per_block`] apply.
#[inline(always)]
unsafe fn write_block<T: Elem, E: Fp8, const VECTOR: bool>(
    operands: &QuantizeOperands,
    lanes: Team,
    at: RowIndex,
    block: u32,
    pack: Pack<T>,
    peak: Peak,
) {
    let scale = peak.scale::<E>();
    // SAFETY: the kernel writes the values and the scales. The host checked their rows. No other thread
    // writes this block.
    let values = unsafe {
        operands.store_scale(lanes, at, block, scale.scale);
        Fp8RowMut::<E, VECTOR>::of(&operands.values, lanes, at, operands.p.cols)
    };
    values.store(block, scale.apply(pack.lanes()), Store::Default);
}

/// # Safety
/// The requirements of [`per_row`] apply.
#[inline(always)]
unsafe fn any_layout<T: Elem>(operands: QuantizeOperands) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` to 1 only if `x` and the values allow vector accesses.
    unsafe {
        if operands.p.vector != 0 {
            per_row::<T, 0, true>(operands)
        } else {
            per_row::<T, 0, false>(operands)
        }
    }
}

/// # Safety
/// The requirements of [`per_row`] apply, and `x` and the values allow vector accesses.
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    operands: QuantizeOperands,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment.
    unsafe { per_row::<T, IN_REGISTERS, true>(operands) }
}

/// # Safety
/// The requirements of [`per_block`] apply.
#[inline(always)]
unsafe fn blocks<T: Elem, const STEP: usize, const VECTOR: bool>(operands: QuantizeOperands) {
    thread::launch_bounds::<256, 4>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment.
    unsafe { per_block::<T, STEP, VECTOR>(operands) }
}

entry! {
    @shared(|block| Team::shared_bytes(block))
    quantize_fp8_per_row_any<T: [f32, f16, bf16]>(x: Rows, values: Rows, scales: Rows, p: QuantizeParams)
        => any_layout::<T>(QuantizeOperands { x, values, scales, p });
    @shared(|block| Team::shared_bytes(block))
    quantize_fp8_per_row_block2<T: [f32, f16, bf16]>(x: Rows, values: Rows, scales: Rows, p: QuantizeParams)
        => in_registers::<T, 2, 256, 4>(QuantizeOperands { x, values, scales, p });
    @shared(|block| Team::shared_bytes(block))
    quantize_fp8_per_row_block4<T: [f32, f16, bf16]>(x: Rows, values: Rows, scales: Rows, p: QuantizeParams)
        => in_registers::<T, 4, 512, 2>(QuantizeOperands { x, values, scales, p });
    @shared(|block| Team::shared_bytes(block))
    quantize_fp8_per_row_block8<T: [f32, f16, bf16]>(x: Rows, values: Rows, scales: Rows, p: QuantizeParams)
        => in_registers::<T, 8, 1024, 1>(QuantizeOperands { x, values, scales, p });
    quantize_fp8_per_block_any<T: [f32, f16, bf16]>(x: Rows, values: Rows, scales: Rows, p: QuantizeParams)
        => blocks::<T, 1, false>(QuantizeOperands { x, values, scales, p });
    quantize_fp8_per_block_block4<T: [f32, f16, bf16]>(x: Rows, values: Rows, scales: Rows, p: QuantizeParams)
        => blocks::<T, 4, true>(QuantizeOperands { x, values, scales, p })
}
