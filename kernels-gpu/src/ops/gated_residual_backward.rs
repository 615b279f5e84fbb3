//! Gradients of [`gated_residual`](super::gated_residual) with respect to `y` and the gate. `dsum` is the
//! incoming gradient of the sum:
//!
//! - `dy = gate * dsum`;
//! - `dgate`, the sum of `dsum * y` over the elements that share a value of the gate.
//!
//! The products and the sum are computed in f32, and each result is rounded once. The gradient of `x` is
//! `dsum`.
//!
//! There is one kernel for each form of the gate:
//!
//! - `per_group`: consecutive rows form a group, and the rows of a group share a row of the gate. Each block
//!   processes some rows and columns of a group. It writes its partial sums of `dgate` to one row of a
//!   workspace, and the kernel `sums` adds the rows of the workspace.
//! - `per_token`: the gate has the shape of `y`, so `dgate = dsum * y`.
//! - `per_row`: the gate has one column. A warp processes a row, and adds the products of its columns.
//!
//! The kernels with the suffix `_any` take any layout. The others need rows that allow 16-byte accesses
//! ([`Rows::is_vector`]).
use cuda_std::prelude::*;

use crate::elementwise::partition::{self, Extent, ThreadElements, blocks};
use crate::layout::operand_kind::OperandKind;
use crate::norm::broadcast_elements::BroadcastElements;
use crate::norm::operand::Operand;
use crate::norm_backward::block_sums::{BlockRows, SumsRow};
use crate::norm_backward::column_sums::{self, ColumnSums, column_sums};

/// Threads per row in the kernels `per_group` and `per_row`: one warp. In `per_group`, these threads process
/// one pack (16-byte vector) each, so a block processes only a part of the columns.
pub const TEAM: u32 = 32;
/// Rows that a block of the kernel `per_group` processes at the same time.
pub const TEAMS: u32 = 8;
/// Blocks of the kernel `per_group` that run on an SM at the same time. With four blocks, a thread would have
/// too few registers, and ptxas would spill some of them.
pub const BLOCKS_PER_SM: u32 = 3;
/// Rows that a block of the kernel `per_row` processes.
pub const ROWS_PER_BLOCK: u32 = 4;

/// Kernel argument: the operands whose rows the kernels have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GateGradients {
    /// The incoming gradient of the sum.
    pub dsum: Rows,
    /// The output of the branch, which the gate multiplied.
    pub y: Rows,
    /// The output: the gradient of `y`.
    pub dy: Rows,
    /// The gate. In `per_group`, its row `n` belongs to group `n`.
    pub gate: Operand,
}

/// Kernel argument: the rows of a launch of `per_group` or `per_row`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GateParams {
    /// Rows per group in `per_group`, and all rows in `per_row`.
    pub rows: u64,
    /// Number of rows per run. Within a run, consecutive rows are [`Rows::inner_stride`] elements apart.
    /// Consecutive runs start [`Rows::outer_stride`] elements apart. 0 means that all rows are in one run.
    pub inner: u32,
    /// Number of columns.
    pub cols: u32,
}

/// Loads the thread's elements of `tile` of a row, as f32. `operand.kind` states the element type.
///
/// # Safety
/// The requirements of [`Row::of`] apply to `operand.rows` and its element type.
#[inline(always)]
unsafe fn lanes_of<T: Elem, const VECTOR: bool>(
    operand: &Operand,
    team: Team,
    at: RowIndex,
    cols: u32,
    tile: u32,
) -> T::F32Vec {
    // SAFETY: the load reads a row of the operand. The caller guarantees that `operand.kind` states the
    // element type of its rows.
    unsafe {
        match operand.kind {
            OperandKind::F32 => {
                Row::<f32, VECTOR>::of(&operand.rows, team, at, cols).lanes(tile, Load::ReadOnly)
            }
            _ => Row::<T, VECTOR>::of(&operand.rows, team, at, cols).load(tile, Load::ReadOnly).lanes(),
        }
    }
}

/// Computes `dy` and partial sums of `dgate` for some rows and columns of a group. Each thread loads its
/// elements of `STEP` rows before it computes their products, so that these loads are in flight together.
///
/// # Safety
/// The host checked the operands. `dsum`, `y` and `dy` have `p.rows` rows of `p.cols` elements for each
/// group, and the gate has one row for each group. If `sums` is not null, it has a row of `p.cols` f32 for
/// each block of the first two dimensions of the grid. If `VECTOR` is true, all operands allow 16-byte
/// accesses (`Rows::is_vector`). `dy` and `sums` overlap no other operand.
#[inline(always)]
unsafe fn per_group<T: Elem, const STEP: usize, const VECTOR: bool>(
    operands: GateGradients,
    sums: *mut u8,
    p: GateParams,
) {
    thread::launch_bounds::<{ TEAM * TEAMS }, BLOCKS_PER_SM>();
    let block_rows = BlockRows::of_block(p.rows);
    let team = block_rows.team;
    let of_group = RowIndex::of(Team { row: u64::from(block_rows.group), ..team }, u64::MAX, 0);
    let memory = SharedMemory::of_launch().take(TEAM * TEAMS * T::F32Vec::LEN);
    let mut tile = thread::block_index()[2];
    while tile < p.cols.div_ceil(TEAM * T::F32Vec::LEN) {
        // SAFETY: the load reads a row of the gate. The host checked that the gate has one row for each group
        // of rows, and that `gate.kind` states its element type.
        let gate = unsafe { lanes_of::<T, VECTOR>(&operands.gate, team, of_group, p.cols, tile) };
        let mut sum = T::F32Vec::splat(0.0);
        let mut first = block_rows.first;
        while first < block_rows.end {
            let rows: [RowIndex; STEP] =
                core::array::from_fn(|i| block_rows.at(first + i as u64 * block_rows.step, p.inner));
            // SAFETY: the loads read rows of `dsum` and `y`, which the host checked. For a row after the end
            // of the group, which does not exist, `load` returns zeros without an access.
            let pairs: [[Pack<T>; 2]; STEP] = core::array::from_fn(|i| unsafe {
                [&operands.dsum, &operands.y]
                    .map(|of| Row::<T, VECTOR>::of(of, team, rows[i], p.cols).load(tile, Load::ReadOnly))
            });
            for i in 0..STEP {
                let [dsum, y] = pairs[i].map(Pack::lanes);
                let dy = Pack::from_lanes(gate.zip(dsum, |gate, dsum| gate * dsum));
                // SAFETY: the store writes a row of `dy`, which the host checked. No other team (threads that
                // share a row) writes this row.
                let row = unsafe { RowMut::<T, VECTOR>::of(&operands.dy, team, rows[i], p.cols) };
                row.store(tile, dy, Store::Default);
                sum = T::F32Vec::from_fn(|i| fma(dsum.get(i), y.get(i), sum.get(i)));
            }
            first += STEP as u64 * block_rows.step;
        }
        // SAFETY: the store writes this block's row of the workspace. The host checked that the workspace is
        // null or has a row for each block.
        let sums = unsafe { SumsRow::<VECTOR>::of(sums, &block_rows, p.cols) };
        sums.write_over_teams(tile, sum, team, memory);
        tile += thread::grid_dim()[2];
    }
}

/// # Safety
/// The host checked that `dsum`, `y`, `dy`, the gate and `dgate` have the rows that the kernel argument
/// `extent` describes. `dgate.kind` states the element type of `dgate`. If `VECTOR` is true, all operands
/// allow 16-byte accesses (`Rows::is_vector`). `dy` and `dgate` overlap no other operand.
#[inline(always)]
unsafe fn per_token<T: Elem, const VECTOR: bool, const MIN_BLOCKS: u32>(
    operands: GateGradients,
    dgate: Operand,
    extent: Extent,
) {
    thread::launch_bounds::<{ partition::THREADS }, MIN_BLOCKS>();
    let Some(elements) = ThreadElements::<T, VECTOR>::of_thread(extent) else { return };
    // SAFETY: the kernel accesses only its operands. The host checked all of them, and the kernel argument
    // `extent` describes their rows.
    unsafe {
        let (dsum, y) = (elements.load(&operands.dsum).lanes(), elements.load(&operands.y).lanes());
        let gate = BroadcastElements::of(&operands.gate, &elements).lanes();
        elements.store(&operands.dy, Pack::from_lanes(gate.zip(dsum, |gate, dsum| gate * dsum)));
        let product = dsum.zip(y, |dsum, y| dsum * y);
        match dgate.kind {
            OperandKind::ABSENT => {}
            OperandKind::F32 => elements.store_lanes(&dgate.rows, product),
            _ => elements.store(&dgate.rows, Pack::from_lanes(product)),
        }
    }
}

/// Computes `dy` and `dgate` for the row of the calling team (the threads that share a row). Each thread
/// loads `STEP` packs (16 bytes each) of `dsum` and of `y` before it computes their products, so that these
/// loads are in flight together.
///
/// # Safety
/// The host checked that `dsum`, `y` and `dy` have `p.rows` rows of `p.cols` elements. The gate and `dgate`
/// have one element for each row. `dgate.kind` states the element type of `dgate`. If `VECTOR` is
/// true, `dsum`, `y` and `dy` allow 16-byte accesses (`Rows::is_vector`). `dy` and `dgate` overlap no other
/// operand.
#[inline(always)]
unsafe fn per_row<T: Elem, const STEP: usize, const VECTOR: bool>(
    operands: GateGradients,
    dgate: Operand,
    p: GateParams,
) {
    thread::launch_bounds::<{ TEAM * ROWS_PER_BLOCK }, { blocks(TEAM * ROWS_PER_BLOCK, 8) }>();
    let team = Team::of_block();
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: all threads of the team (threads that share a row) load the gate's element of this row. The
    // host checked that the gate has one element for each row, and that `gate.kind` states its type.
    let gate = unsafe {
        let alone = Team { rank: 0, size: 1, ..team };
        lanes_of::<T, false>(&operands.gate, alone, at, 1, 0).get(0)
    };
    // SAFETY: the store writes a row of `dy`, which the host checked. No other team (threads that share a
    // row) writes this row.
    let ([dsum_row, y_row], dy_row) = unsafe {
        (
            [&operands.dsum, &operands.y].map(|of| Row::<T, VECTOR>::of(of, team, at, p.cols)),
            RowMut::<T, VECTOR>::of(&operands.dy, team, at, p.cols),
        )
    };
    let mut sums = T::F32Vec::splat(0.0);
    for step in 0..p.cols.div_ceil(TEAM * T::F32Vec::LEN * STEP as u32) {
        let first = step * STEP as u32;
        let pairs: [[Pack<T>; 2]; STEP] = core::array::from_fn(|i| {
            [dsum_row.load(first + i as u32, Load::ReadOnly), y_row.load(first + i as u32, Load::ReadOnly)]
        });
        for i in 0..STEP {
            let [dsum, y] = pairs[i].map(Pack::lanes);
            dy_row.store(first + i as u32, Pack::from_lanes(dsum.map(|dsum| gate * dsum)), Store::Default);
            sums = T::F32Vec::from_fn(|i| fma(dsum.get(i), y.get(i), sums.get(i)));
        }
    }
    let mut sum = 0.0;
    for i in 0..T::F32Vec::LEN as usize {
        sum += sums.get(i);
    }
    let sum = T::F32Vec::splat(team.sum(sum, &mut SharedMemory::of_launch()));
    // SAFETY: the store writes this row's element of `dgate`, unless `dgate` is absent. `dgate` has one
    // element for each row, and only the first thread of the team (threads that share a row) writes it.
    unsafe {
        match dgate.kind {
            OperandKind::ABSENT => {}
            OperandKind::F32 => RowMut::<f32, false>::of(&dgate.rows, team, at, 1).store_lanes(0, sum),
            _ => RowMut::<T, false>::of(&dgate.rows, team, at, 1).store(
                0,
                Pack::from_lanes(sum),
                Store::Default,
            ),
        }
    }
}

entry! {
    @overlap(Before) @shared(|block| block[0] * block[1] * (64 / size_of::<T>() as u32))
    gated_residual_backward_per_group_any<T: [f32, f16, bf16]>(operands: GateGradients, sums: *mut u8, p: GateParams)
        => per_group::<T, 1, false>(operands, sums, p);
    @overlap(Before) @shared(|block| block[0] * block[1] * (64 / size_of::<T>() as u32))
    gated_residual_backward_per_group_block1<T: [f32, f16, bf16]>(operands: GateGradients, sums: *mut u8, p: GateParams)
        => per_group::<T, 2, true>(operands, sums, p);
    @overlap(Before) @shared(|_block| column_sums::SHARED_BYTES)
    gated_residual_backward_sums_any<T: [f32, f16, bf16]>(dgate: ColumnSums, p: column_sums::ColumnSumsParams)
        => column_sums::<T>([dgate, dgate], p);
    gated_residual_backward_per_token_any<T: [f32, f16, bf16]>(operands: GateGradients, dgate: Operand, extent: Extent)
        => per_token::<T, false, 6>(operands, dgate, extent);
    gated_residual_backward_per_token_block1<T: [f32, f16, bf16]>(operands: GateGradients, dgate: Operand, extent: Extent)
        => per_token::<T, true, { blocks(partition::THREADS, 8) }>(operands, dgate, extent);
    gated_residual_backward_per_row_any<T: [f32, f16, bf16]>(operands: GateGradients, dgate: Operand, p: GateParams)
        => per_row::<T, 1, false>(operands, dgate, p);
    gated_residual_backward_per_row_warp2<T: [f32, f16, bf16]>(operands: GateGradients, dgate: Operand, p: GateParams)
        => per_row::<T, 2, true>(operands, dgate, p)
}
