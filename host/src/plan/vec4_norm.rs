//! Launches of the kernels that read rows in quads: threads, shared memory, parameters.
use std::ffi::c_void;

use cuda_std::row::Rows;
use cuda_std::vec4::TILE;
use kernels_gpu::norm::params::{NormParams, OperandForm, RowAccess};

use super::row_launch::launch_rows_with;
use crate::arguments::choices;
use crate::device::launch::{DEFAULT_SMEM_BYTES, Rung};
use crate::error::finite;
use crate::operands::rows::RowLayout;
use crate::{Device, Result, Stream};

/// Which norm a row gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Norm {
    /// `(x - mean) / sqrt(variance + eps)`.
    #[default]
    Layer,
    /// `x / sqrt(mean of squares + eps)`.
    Rms,
}

choices! { Norm: Rms, Layer; }

/// Threads of a row: torch's order of the sums is that of a warp.
const TEAM_THREADS: u32 = 32;
/// Rows of a block, if shared memory has room for them: no row waits for another, so more would only coarsen the tail.
const TEAMS: u32 = 4;
/// The same where rows stay in registers.
const ROWS_PER_BLOCK_IN_REGISTERS: u32 = 2;
/// The share of a multiprocessor's memory for rows that wait, in percent: what is left is L1, in which scales and shifts
/// stay. With all of it, rows of 5120 columns left no L1 for them, and each row read them from L2.
const CARVEOUT: u32 = 57;
/// The same where blocks share their rows, of which fewer wait: what was fastest at 2048, 3072 and 5120 columns.
const CARVEOUT_OF_BLOCKS: u32 = 44;
/// The same where rows stay in registers, and in a block's shared memory. Where warps exchange but a few numbers there, no
/// share is asked for: asked for 30 %, the driver gave all (`layer_norm` of 5120 columns then took 179 us and not 163).
const CARVEOUT_IN_REGISTERS: u32 = 30;
/// What the warps of a row meet in.
const SCRATCH_BYTES: u32 = 4 * NormParams::SHARING;

/// What the launch of a norm over quads depends on, besides its rows.
#[derive(Clone, Copy)]
pub(crate) struct NormLaunch {
    /// Added to the variance, or to the mean of squares.
    pub eps: f32,
    /// See [`NormParams::form`].
    pub form: OperandForm,
    /// See [`NormParams::round_each`].
    pub round_each: bool,
    /// Rows that wait together for one row's result.
    pub staged_vec4: u32,
}

/// How a kernel reads its rows, and where a row is between two passes over it: a value for each
/// [`Access`](cuda_std::vec4::Access) that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// One element at a time.
    Scalar,
    /// Four elements at a time.
    Vectorized,
    /// Rows of whole tiles, a row in a warp's part of shared memory.
    WholeTiles,
    /// The same, a row in its block's shared memory.
    BlockTiles,
    /// Rows of so many tiles, in the registers of a warp.
    WarpRegisters(u32),
    /// Rows of four times so many tiles, in the registers of a block's warps.
    BlockRegisters(u32),
    /// The same, with room for the row in shared memory.
    BlockRegistersStaged(u32),
}

impl Access {
    /// Does a block share each row?
    fn is_block_shared(self) -> bool {
        matches!(self, Self::BlockTiles | Self::BlockRegisters(_) | Self::BlockRegistersStaged(_))
    }

    /// Can a kernel that reads rows like this take those of whole tiles?
    fn can<const N: usize>(self, layout: &RowLayout<N>) -> bool {
        let tiles = layout.cols / TILE;
        match self {
            Self::Scalar | Self::Vectorized | Self::WholeTiles | Self::BlockTiles => true,
            Self::WarpRegisters(tiles_per_thread) => tiles == tiles_per_thread,
            Self::BlockRegisters(tiles_per_thread) | Self::BlockRegistersStaged(tiles_per_thread) => {
                tiles == 4 * tiles_per_thread
            }
        }
    }

    /// And is it then faster than those for any such rows? On an H200:
    ///
    /// - from the registers of a warp or a block: always;
    /// - by a block, from shared memory: where rows are long, or of 2048 columns and more but few.
    ///
    /// Few are so many that the time is that of the last ones. Otherwise what a warp does once for its row weighs more.
    fn is_faster<const N: usize>(self, layout: &RowLayout<N>) -> bool {
        match self {
            Self::BlockTiles => layout.cols >= 4096 || layout.cols >= 2048 && layout.rows <= 1 << 14,
            _ => true,
        }
    }

    /// What a kernel that is compiled for several ways is told.
    fn argument(self) -> RowAccess {
        match self {
            Self::Scalar => RowAccess::SCALAR,
            Self::Vectorized => RowAccess::VECTORIZED,
            _ => RowAccess::WHOLE_TILES,
        }
    }
}

/// A kernel for some of the rows of whole tiles.
#[derive(Clone, Copy)]
pub(crate) struct TileKernel {
    pub name: &'static str,
    /// How it reads rows, which says which ones.
    pub access: Access,
    /// The only form of the operands that it takes; `None`: each.
    pub form: Option<OperandForm>,
}

/// The kernels of an op over quads.
#[derive(Clone, Copy)]
pub(crate) struct NormKernels {
    /// For any layout, and for rows of whole tiles where `whole` is the same.
    pub any: &'static str,
    /// For rows of whole tiles, which wait in shared memory.
    pub whole: &'static str,
    /// For some of these rows: the first that takes a row has it. Those for one form leave more registers, and stand first.
    pub special: &'static [TileKernel],
    /// The share of a multiprocessor's memory that `whole` asks for; without one the driver decides.
    pub carveout: Option<u32>,
}

impl NormKernels {
    /// For any layout and for rows of whole tiles, and no others.
    pub const fn of([any, whole]: [&'static str; 2]) -> Self {
        Self { any, whole, special: &[], carveout: Some(CARVEOUT) }
    }
}

/// How a kernel over quads is launched, and its parameters.
pub(crate) struct Vec4Launch {
    pub params: NormParams,
    kernel: &'static str,
    rung: Rung,
    shared_bytes: u32,
    carveout: Option<u32>,
}

impl Vec4Launch {
    /// For the rows of `layout`, which wait in registers or in shared memory between the passes if there is room.
    pub fn of<const N: usize>(
        op: &'static str,
        device: &Device,
        layout: &RowLayout<N>,
        norm: NormLaunch,
        kernels: NormKernels,
    ) -> Result<Self> {
        let over = device.launch_override();
        let NormLaunch { eps, form, .. } = norm;
        finite(op, "eps", eps, 0.0)?;
        let row_bytes = u64::from(layout.cols.next_multiple_of(TILE)) * layout.dtype.size() as u64;
        let staged_bytes = row_bytes * u64::from(norm.staged_vec4);
        let fits = |teams: &u32| staged_bytes * u64::from(*teams) <= u64::from(DEFAULT_SMEM_BYTES);
        let of_override = |teams: u32| over.threads.map_or(teams, |threads| threads / TEAM_THREADS);
        let teams = [TEAMS, TEAMS / 2, 1].map(of_override).into_iter().find(fits);
        let staged = teams.map_or(0, |_| layout.cols.div_ceil(TILE));
        let tiled = layout.cols.is_multiple_of(TILE) && layout.cols >= 4 * TILE;
        let near = layout.rows < 1 << 30 && layout.operands.iter().all(Rows::is_near);
        let is_whole =
            staged > 0 && layout.vector && layout.vec4s && tiled && near && form != OperandForm::ANY;
        let may_synchronize = staged_bytes + u64::from(SCRATCH_BYTES) <= u64::from(DEFAULT_SMEM_BYTES);
        let any = (if layout.vec4s { Access::Vectorized } else { Access::Scalar }, kernels.any);
        let able =
            |access: Access| is_whole && access.can(layout) && (may_synchronize || !access.is_block_shared());
        // A kernel that looks up what its operands are is never faster.
        let looks_up = kernels.any == kernels.whole;
        let special = |first| {
            let takes = move |kernel: &&TileKernel| {
                let of_form = kernel.form.is_none_or(|only| only == form);
                let fast = looks_up || kernel.access.is_faster(layout);
                of_form && able(kernel.access) && fast == first
            };
            kernels.special.iter().filter(takes).map(|kernel| (kernel.access, kernel.name))
        };
        let whole = is_whole.then_some((Access::WholeTiles, kernels.whole));
        let mut in_order = special(true).chain(whole).chain([any]).chain(special(false));
        let (access, kernel) = in_order.nth(over.skip).unwrap_or(any);
        let (staged_vec4, row) = (staged_bytes as u32, row_bytes as u32);
        let (team, teams, shared_bytes) = match (access, teams) {
            (Access::BlockTiles, _) => (NormParams::SHARING, 1, SCRATCH_BYTES + staged_vec4),
            (Access::BlockRegisters(_), _) => (NormParams::SHARING, 1, SCRATCH_BYTES),
            (Access::BlockRegistersStaged(_), _) => (NormParams::SHARING, 1, SCRATCH_BYTES + row),
            (Access::WarpRegisters(_), _) => (TEAM_THREADS, of_override(ROWS_PER_BLOCK_IN_REGISTERS), 0),
            (_, None) => (TEAM_THREADS, of_override(TEAMS), 0),
            (_, Some(teams)) => (TEAM_THREADS, teams, staged_vec4 * teams),
        };
        let params = NormParams {
            rows: layout.rows,
            inner: layout.inner,
            cols: layout.cols,
            inv_cols: 1.0 / layout.cols as f32,
            eps,
            staged,
            form,
            round_each: u32::from(norm.round_each),
            access: access.argument(),
            packs: u32::from(layout.vector),
        };
        let rung = Rung {
            max_packs: u32::MAX,
            packs_per_thread: 0,
            threads_per_row: team,
            rows_per_block: teams,
            cluster: 0,
        };
        let carveout = match access {
            Access::WholeTiles => kernels.carveout,
            Access::BlockTiles => Some(CARVEOUT_OF_BLOCKS),
            Access::WarpRegisters(_) | Access::BlockRegistersStaged(_) => Some(CARVEOUT_IN_REGISTERS),
            Access::Scalar | Access::Vectorized | Access::BlockRegisters(_) => None,
        };
        Ok(Self { params, kernel, rung, shared_bytes, carveout })
    }

    /// Launches.
    ///
    /// # Safety
    /// As [`Device::launch`].
    pub unsafe fn launch<const N: usize, const ARGS: usize>(
        &self,
        op: &'static str,
        device: &Device,
        layout: &RowLayout<N>,
        stream: Stream,
        args: [*const c_void; ARGS],
    ) -> Result<()> {
        let shared = (self.shared_bytes, self.carveout);
        // SAFETY: as the caller promises.
        unsafe { launch_rows_with(op, device, self.kernel, self.rung, shared, layout, stream, args) }
    }
}
