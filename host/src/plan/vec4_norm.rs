//! Launch plans for the norm kernels that read four elements (a vec4) at a time. A plan has the kernel, the
//! numbers of threads, the shared memory and the kernel parameters.
//!
//! A tile is the part of a row that one warp reads per step: [`TILE`] (128) columns. A norm reads each row in
//! more than one pass. Between the passes, the row stays in registers or in shared memory.
use crate::launch::launch_override;
use cuda_std::row::Rows;
use cuda_std::vec4::TILE;
use kernels_gpu::norm::params::{NormParams, OperandForm, RowAccess};

use super::row_launch::launch_rows;
use crate::DEFAULT_SMEM_BYTES;
use crate::arguments::choices;
use crate::launch::Rung;
use crate::library::LaunchSite;
use crate::operands::numbers::finite;
use crate::operands::rows::RowLayout;
use crate::{Device, Result, Stream};

/// The norm that is applied to each row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Norm {
    /// `(x - mean) / sqrt(variance + eps)`.
    #[default]
    Layer,
    /// `x / sqrt(mean of squares + eps)`.
    Rms,
}

choices! { Norm: Rms, Layer; }

/// Threads per row for kernels that assign one warp to a row. With one warp, these kernels add the columns in
/// the same order as torch's norm kernel.
const TEAM_THREADS: u32 = 32;
/// Rows per block if this number of rows fits in shared memory. More rows per block would have no advantage,
/// because the rows of a block are independent. Fewer SMs would then be busy in the last wave of blocks.
const TEAMS: u32 = 4;
/// Rows per block if rows stay in registers.
const ROWS_PER_BLOCK_IN_REGISTERS: u32 = 2;
/// Shared memory carveout in percent for kernels that stage rows in shared memory. The remaining memory of
/// the SM is L1, which caches scales and shifts. With a carveout of 100 %, L1 was too small for rows of 5120
/// columns. Every row then loaded its scales and shifts from L2.
const CARVEOUT: u32 = 57;
/// Shared memory carveout in percent for kernels in which the warps of a block share one row. These kernels
/// need a smaller carveout than kernels with one row per warp, because fewer rows are in shared memory at the
/// same time. In measurements with 2048, 3072 and 5120 columns, this value was the fastest.
const CARVEOUT_OF_BLOCKS: u32 = 44;
/// Shared memory carveout in percent for the kernels of two variants of [`Access`]. With `WarpRegisters`, a
/// warp keeps a row in registers. With `BlockRegistersStaged`, a block keeps a row in registers and also in
/// shared memory.
///
/// [`Access::BlockRegisters`] uses shared memory only for the reduction across warps. Its launches set no
/// carveout.
const CARVEOUT_IN_REGISTERS: u32 = 30;
/// Bytes of shared memory that the warps of one row use for a reduction.
const SCRATCH_BYTES: u32 = 4 * NormParams::SHARING;

/// Parameters of a norm launch other than its rows.
#[derive(Clone, Copy)]
pub(crate) struct NormLaunch {
    /// Epsilon, which is added to the variance (LayerNorm) or to the mean of squares (RMSNorm).
    pub eps: f32,
    /// See [`NormParams::form`].
    pub form: OperandForm,
    /// See [`NormParams::round_each`].
    pub round_each: bool,
    /// Number of rows, of different tensors, that a kernel stages in shared memory to compute one output row.
    pub staged_vec4: u32,
}

impl NormLaunch {
    /// A launch that computes each element of a row by itself. It has no norm, and stages no rows.
    pub const ELEMENTWISE: Self =
        Self { eps: 0.0, form: OperandForm::ANY, round_each: false, staged_vec4: 0 };
}

/// How a kernel reads its rows, and where the kernel keeps a row between two passes. Each kernel is compiled
/// for one type that implements the trait [`Access`](cuda_std::vec4::Access). This enum has one variant for
/// each of these types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The kernel reads one element at a time.
    Scalar,
    /// The kernel reads four elements at a time.
    Vectorized,
    /// The row consists of whole tiles of 128 columns. Each warp has its own row, and keeps this row in
    /// shared memory between two passes.
    WholeTiles,
    /// The row consists of whole tiles of 128 columns. Each block has one row, and keeps this row in shared
    /// memory between two passes.
    BlockTiles,
    /// One warp keeps the row in registers. The value is the number of tiles (of 128 columns) in the row.
    WarpRegisters(u32),
    /// The four warps of a block keep the row in registers. The value is the number of tiles (of 128 columns)
    /// per warp, a quarter of the tiles in the row.
    BlockRegisters(u32),
    /// Like [`Self::BlockRegisters`], and the row is also staged in shared memory.
    BlockRegistersStaged(u32),
}

impl Access {
    /// Returns whether the warps of a block share each row.
    fn is_block_shared(self) -> bool {
        matches!(self, Self::BlockTiles | Self::BlockRegisters(_) | Self::BlockRegistersStaged(_))
    }

    /// Returns whether a kernel with this access supports the length of the rows of `layout`. The caller has
    /// checked that the rows consist of whole tiles (of 128 columns).
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

    /// Returns whether a kernel with this access is faster than a kernel with `WholeTiles`. A `WholeTiles`
    /// kernel has one row per warp and keeps the rows in shared memory. Measured on an H200:
    ///
    /// - Kernels that keep rows in the registers of a warp or a block are always faster.
    /// - A block that keeps its row in shared memory is faster for rows of 4096 columns or more. Such a block
    ///   is also faster for rows of 2048 columns or more if there are at most 16,384 rows.
    ///
    /// With few rows, the last wave of blocks dominates the time, and it is shorter if a block shares a row.
    /// With many rows, the fixed cost of each row dominates, and it is smaller if one warp processes a row.
    fn is_faster<const N: usize>(self, layout: &RowLayout<N>) -> bool {
        match self {
            Self::BlockTiles => layout.cols >= 4096 || layout.cols >= 2048 && layout.rows <= 1 << 14,
            _ => true,
        }
    }

    /// Returns the argument `access` of a kernel. Some kernels support several ways of reading a row, and
    /// this argument selects one of these ways.
    fn argument(self) -> RowAccess {
        match self {
            Self::Scalar => RowAccess::SCALAR,
            Self::Vectorized => RowAccess::VECTORIZED,
            _ => RowAccess::WHOLE_TILES,
        }
    }
}

/// A kernel for some of the rows that consist of whole tiles (of 128 columns).
#[derive(Clone, Copy)]
pub(crate) struct TileKernel<K> {
    pub kernel: K,
    /// How the kernel reads and keeps rows. The access determines which row lengths the kernel supports.
    pub access: Access,
    /// The kernel supports only operands of this form. The form says which operands are present, and which
    /// dtypes they have. `None` means that the kernel supports all forms.
    pub form: Option<OperandForm>,
}

/// The kernels of one op that read four elements (a vec4) at a time. `K` is the type of the function that
/// launches a kernel.
#[derive(Clone, Copy)]
pub(crate) struct NormKernels<K: 'static> {
    /// Kernel for any layout.
    pub any: K,
    /// Kernel for rows that consist of whole tiles (of 128 columns). The kernel keeps a row in shared memory
    /// between two passes. The value is `None` if the kernel `any` also does this.
    pub whole: Option<K>,
    /// Kernels for some lengths of rows that consist of whole tiles (of 128 columns). A launch uses the first
    /// of these kernels that supports its rows. A kernel for a single [`OperandForm`] (dtypes and presence of
    /// operands) needs fewer registers, so it comes before a kernel for all forms.
    pub special: &'static [TileKernel<K>],
    /// Shared memory carveout in percent, for kernels that keep rows in shared memory. With `None`, the
    /// driver chooses the carveout.
    pub carveout: Option<u32>,
}

impl<K: Copy> NormKernels<K> {
    /// Returns a set of two kernels: one for any layout, and one for rows that consist of whole tiles.
    pub const fn of(any: K, whole: K) -> Self {
        Self { any, whole: Some(whole), special: &[], carveout: Some(CARVEOUT) }
    }

    /// Returns a set of one kernel for all rows.
    pub const fn one(any: K) -> Self {
        Self { any, whole: None, special: &[], carveout: Some(CARVEOUT) }
    }
}

/// A kernel whose threads read four elements at a time (vec4), with its launch configuration and parameters.
pub(crate) struct Vec4Launch<K> {
    pub params: NormParams,
    kernel: K,
    rung: Rung,
    carveout: Option<u32>,
}

impl<K: Copy> Vec4Launch<K> {
    /// Plans the launch for the rows of `layout`. Between the kernel's two passes over a row, the row stays
    /// in registers or shared memory if it fits. Fails if `eps` is negative or not finite.
    pub fn of<const N: usize>(
        op: &'static str,
        device: &Device,
        layout: &RowLayout<N>,
        norm: NormLaunch,
        kernels: NormKernels<K>,
    ) -> Result<Self> {
        let over = launch_override(device);
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
        // The general kernel branches at run time on the dtype and layout of its operands. Specialized
        // kernels are therefore at least as fast as the general kernel. If the op has no separate kernel for
        // rows of whole tiles, prefer every specialized kernel to the general kernel. Otherwise `is_faster`
        // decides between a specialized kernel and the kernel for whole tiles.
        let looks_up = kernels.whole.is_none();
        let special = |first| {
            let takes = move |kernel: &&TileKernel<K>| {
                let of_form = kernel.form.is_none_or(|only| only == form);
                let fast = looks_up || kernel.access.is_faster(layout);
                of_form && able(kernel.access) && fast == first
            };
            kernels.special.iter().filter(takes).map(|kernel| (kernel.access, kernel.kernel))
        };
        let whole = is_whole.then_some((Access::WholeTiles, kernels.whole.unwrap_or(kernels.any)));
        let mut in_order = special(true).chain(whole).chain([any]).chain(special(false));
        let (access, kernel) = in_order.nth(over.skip).unwrap_or(any);
        let (team, teams) = match access {
            _ if access.is_block_shared() => (NormParams::SHARING, 1),
            Access::WarpRegisters(_) => (TEAM_THREADS, of_override(ROWS_PER_BLOCK_IN_REGISTERS)),
            _ => (TEAM_THREADS, teams.unwrap_or_else(|| of_override(TEAMS))),
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
        Ok(Self { params, kernel, rung, carveout })
    }

    /// Calls the function `launch` with the planned kernel and a `LaunchSite` (device, stream, launch shape
    /// and element type). If there are no rows, `launch` is not called.
    pub fn launch<const N: usize>(
        &self,
        op: &'static str,
        device: &Device,
        layout: &RowLayout<N>,
        stream: Stream,
        launch: impl FnOnce(K, LaunchSite) -> Result<()>,
    ) -> Result<()> {
        launch_rows(op, device, self.rung, self.carveout, layout, stream, |site| launch(self.kernel, site))
    }
}
