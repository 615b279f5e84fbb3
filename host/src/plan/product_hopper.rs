//! Launch plans of matrix products with the kernels for Hopper.
use cuda_std::tensor_map::TensorMap;
use kernels_gpu::gemm::hopper::params::{self, DEPTH, GemmParams, GemmTile, SLICE, WARP_ROWS};
use kernels_gpu::gemm::tile_order::TileOrder;

use super::product::GROUP_ROWS;
use crate::library::{LaunchSite, library};
use crate::operands::matrix::Matrix;
use crate::operands::product::Product;
use crate::plan::attention::block_shape;
use crate::{Arch, Device, HeadsMap, Result, Stream};

/// The tile sizes of a Hopper kernel, and the times that its variant for the op `linear` takes on an H200
/// (benches/results/decisions/linear_hopper.txt).
#[derive(Clone, Copy)]
pub(crate) struct TimedTile {
    tile: GemmTile,
    /// Time for a tile and 64 elements of K, in nanoseconds.
    step: f64,
    /// The part of the time for a tile that does not depend on K, in nanoseconds. It is short in ping-pong
    /// kernels, in which one warpgroup multiplies while the other one writes its results.
    rest: f64,
}

pub(crate) const T128X192: TimedTile = TimedTile { tile: params::T128X192, step: 613.0, rest: 420.0 };
pub(crate) const T128X128: TimedTile = TimedTile { tile: params::T128X128, step: 428.0, rest: 170.0 };
pub(crate) const T192X192: TimedTile = TimedTile { tile: params::T192X192, step: 896.0, rest: 2_050.0 };
pub(crate) const T256X128: TimedTile = TimedTile { tile: params::T256X128, step: 789.0, rest: 2_300.0 };
pub(crate) const T128X256: TimedTile = TimedTile { tile: params::T128X256, step: 792.0, rest: 2_250.0 };
pub(crate) const T256X192: TimedTile = TimedTile { tile: params::T256X192, step: 1_144.0, rest: 2_870.0 };

/// Number of SMs that the launch plan assumes for the CPU executor: one cluster of two blocks, which computes
/// all tiles.
const EXECUTOR_SMS: u32 = 2;

/// Cost of an idle SM in the last wave of tiles, relative to an SM that computes a tile. It is below 1,
/// because the other SMs then run at a higher clock rate, within the same power limit.
const IDLE: f64 = 0.7;
pub(crate) const T128X192_OPERAND: TimedTile = T128X192.with_tile(params::T128X192_OPERAND);
pub(crate) const T128X128_OPERAND: TimedTile = T128X128.with_tile(params::T128X128_OPERAND);
pub(crate) const T192X192_OPERAND: TimedTile = T192X192.with_tile(params::T192X192_OPERAND);
pub(crate) const T128X128_PROMOTED: TimedTile = T128X128.with_tile(params::T128X128_PROMOTED);
pub(crate) const T128X192_PROMOTED: TimedTile = T128X192.with_tile(params::T128X192_PROMOTED);

impl TimedTile {
    /// Returns the same times for another tile.
    const fn with_tile(self, tile: GemmTile) -> Self {
        Self { tile, ..self }
    }

    /// Returns the number of tiles of clusters, in rows and columns.
    fn tiles(&self, a: &Product) -> [u32; 2] {
        let [height, width] = self.tile.cluster_size();
        [a.y.rows.div_ceil(height), a.weight.rows.div_ceil(width)]
    }

    /// Returns the estimated time of a launch in nanoseconds.
    fn time(&self, a: &Product, device: &Device) -> f64 {
        let waves =
            self.tiles(a).map(f64::from).iter().product::<f64>() / f64::from(clusters(&self.tile, device));
        let waves = waves + IDLE * (waves.ceil() - waves);
        waves * (f64::from(a.x.columns.div_ceil(DEPTH)) * self.step + self.rest)
    }
}

/// Returns the number of clusters that run at the same time.
fn clusters(tile: &GemmTile, device: &Device) -> u32 {
    (device.multiprocessors().unwrap_or(EXECUTOR_SMS) / tile.cluster).max(1)
}

/// Chooses a Hopper kernel, calls `launch` with it, and returns `true`. If no Hopper kernel supports the
/// call, returns `false` without a launch. The function orders the kernels by their estimated times, and
/// skips the first `skip` kernels. With this number, a tuning program can time each kernel. If no kernel is
/// left, the function returns `false`. It also subtracts the number of skipped kernels from `skip`, because
/// the caller then continues with its next list of kernels.
pub(crate) fn launch_hopper<L: Copy>(
    device: &Device,
    a: &Product,
    kernels: &[(TimedTile, L)],
    skip: &mut usize,
    stream: Stream,
    launch: impl FnOnce(L, LaunchSite, [TensorMap; 3], GemmParams) -> Result<()>,
) -> Result<bool> {
    if !is_supported(device, a)? {
        return Ok(false);
    }
    let mut kernels: Vec<_> = kernels.iter().collect();
    kernels.sort_by(|one, other| one.0.time(a, device).total_cmp(&other.0.time(a, device)));
    let Some(&&(timed, kernel)) = kernels.get(*skip) else {
        *skip -= kernels.len();
        return Ok(false);
    };
    let Some(order) = TileOrder::new(timed.tiles(a), GROUP_ROWS) else { return Ok(false) };
    let [x_rows, w_rows] = timed.tile.box_rows(a.has_halves());
    let maps = [
        map(device, &a.x, [DEPTH, x_rows])?,
        map(device, &a.weight, [DEPTH, w_rows])?,
        result_map(device, &a.y)?,
    ];
    let (site, params) = site(device, a, &timed.tile, order, stream)?;
    launch(kernel, site, maps, params)?;
    Ok(true)
}

/// A function that launches a kernel with an epilogue, whose kernel argument has the type `E`.
pub(crate) type EpilogueKernel<E> =
    unsafe fn(LaunchSite, TensorMap, TensorMap, TensorMap, GemmParams, E) -> Result<()>;

/// Launches a kernel for few rows with the function [`launch_few_rows`] if one supports the call. Otherwise
/// launches one of `kernels` with the function [`launch_hopper`]. `e` is the kernel argument of the epilogue.
///
/// # Safety
/// The caller has checked the tensors that `e` describes.
pub(crate) unsafe fn launch_with_epilogue<E: Copy>(
    device: &Device,
    a: &Product,
    few_rows: Option<&FewRows<EpilogueKernel<E>>>,
    kernels: &[(TimedTile, EpilogueKernel<E>)],
    e: E,
    skip: &mut usize,
    stream: Stream,
) -> Result<bool> {
    let launch =
        |kernel: EpilogueKernel<E>, site: LaunchSite, [x, w, y]: [TensorMap; 3], params: GemmParams| {
            // SAFETY: the kernel accesses only the tensors that the tensor maps, `params` and `e` describe.
            // They are those of `a`, which were checked when `a` was created, and those that the caller has
            // checked.
            unsafe { kernel(site, x, w, y, params, e) }
        };
    if let Some(few_rows) = few_rows
        && launch_few_rows(device, a, few_rows, skip, stream, launch)?
    {
        return Ok(true);
    }
    launch_hopper(device, a, kernels, skip, stream, launch)
}

/// The kernels of an op for results with few rows. The field `t64x16` is the kernel with the tile sizes
/// `T64X16`, and so on. These kernels compute tiles of `yᵀ`.
pub(crate) struct FewRows<L> {
    pub t64x16: L,
    pub t64x16_half: L,
    pub t64x32: L,
    pub t64x32_half: L,
    pub t64x64: L,
}

/// Maximum number of columns for which two blocks of a cluster share the rows of `w`, so that more blocks
/// read `w`. With more columns, there is a tile of 64 columns for each SM even without this sharing.
const NARROW: u32 = 8192;

impl<L: Copy> FewRows<L> {
    /// Returns the kernel in which one cluster has tiles for all rows of `y`, or `None` if no kernel has.
    fn choose(&self, a: &Product) -> Option<(GemmTile, L)> {
        let narrow = a.y.columns <= NARROW;
        Some(match a.y.rows {
            ..=16 => (params::T64X16, self.t64x16),
            17..=32 if narrow => (params::T64X16_HALF, self.t64x16_half),
            17..=32 => (params::T64X32, self.t64x32),
            33..=64 if narrow => (params::T64X32_HALF, self.t64x32_half),
            33..=64 => (params::T64X64, self.t64x64),
            _ => return None,
        })
    }
}

/// Launches a kernel for results with few rows, and returns `true`. If no kernel supports the call, the
/// function returns `false` without a launch. If `skip` is not 0, it decreases `skip` by 1 and returns
/// `false`.
pub(crate) fn launch_few_rows<L: Copy>(
    device: &Device,
    a: &Product,
    kernels: &FewRows<L>,
    skip: &mut usize,
    stream: Stream,
    launch: impl FnOnce(L, LaunchSite, [TensorMap; 3], GemmParams) -> Result<()>,
) -> Result<bool> {
    let Some((tile, kernel)) = kernels.choose(a) else { return Ok(false) };
    if !is_supported(device, a)? {
        return Ok(false);
    }
    if *skip > 0 {
        *skip -= 1;
        return Ok(false);
    }
    let [height, _] = tile.cluster_size();
    let tiles = [a.weight.rows.div_ceil(height), 1];
    let Some(order) = TileOrder::new(tiles, GROUP_ROWS) else { return Ok(false) };
    let [w_rows, x_rows] = tile.box_rows(false);
    let maps = [
        map(device, &a.weight, [DEPTH, w_rows])?,
        map(device, &a.x, [DEPTH, x_rows])?,
        map(device, &a.y, [SLICE, tile.columns])?,
    ];
    let (site, params) = site(device, a, &tile, order, stream)?;
    launch(kernel, site, maps, params)?;
    Ok(true)
}

/// Returns whether the Hopper kernels support the call. The GPU must run their PTX, and TMA must be able to
/// access the operands and the result. Bias and epilogue operands must permit accesses to two elements at a
/// time. The CPU executor can run the kernels of every op. It does so only if there are no others, or if
/// `OXIWARP_EXECUTOR_HOPPER` is 1.
fn is_supported(device: &Device, a: &Product) -> Result<bool> {
    // The kernels load the bias of two columns at once.
    let aligned_bias = (a.bias as usize).is_multiple_of(4);
    let library = library(device)?;
    let has_kernels = library.has(Arch::Sm90a) || (a.is_fp8 && library.arch().is_none());
    Ok(has_kernels && a.x.is_tma() && a.weight.is_tma() && a.y.is_tma() && aligned_bias && a.reads_pairs)
}

/// Returns the launch site (device, stream and launch shape) and the kernel argument, for tiles in the order
/// `order`.
fn site(
    device: &Device,
    a: &Product,
    tile: &GemmTile,
    order: TileOrder,
    stream: Stream,
) -> Result<(LaunchSite, GemmParams)> {
    let blocks = clusters(tile, device).min(order.count()) * tile.cluster;
    let site = LaunchSite::new(device, a.y.dtype, block_shape(blocks, tile.threads()), stream)?;
    let depth_tiles = a.x.columns.div_ceil(DEPTH);
    Ok((site, GemmParams { bias: a.bias, columns: a.y.columns, depth_tiles, order }))
}

/// Makes the tensor map of a matrix with the rows and columns of the result. One TMA copy moves a staging
/// buffer of a warp.
pub(crate) fn result_map(device: &Device, matrix: &Matrix) -> Result<TensorMap> {
    map(device, matrix, [SLICE, WARP_ROWS])
}

/// Makes the tensor map of a matrix. `part` has the number of columns and rows that one TMA copy moves.
fn map(device: &Device, matrix: &Matrix, part: [u32; 2]) -> Result<TensorMap> {
    device.tensor_map(&HeadsMap {
        base: matrix.base.cast_const().cast(),
        dtype: matrix.dtype,
        sizes: [matrix.columns, matrix.rows, 1, 1].map(u64::from),
        strides: [matrix.row_bytes, 16, 16],
        part,
    })
}
