//! The kernels of the op `linear` for Hopper.
use std::num::NonZero;

use cuda_std::tensor_map::TensorMap;
use kernels_gpu::gemm::hopper::params::{
    DEPTH, GemmParams, GemmTile, SLICE, T64X16, T64X32, T64X64, T128X128, T128X192, T128X256, T192X192,
    T256X128, T256X192, WARP_ROWS,
};
use kernels_gpu::ops::linear_hopper::launch;

use crate::library::{LaunchSite, library};
use crate::operands::matrix::Matrix;
use crate::plan::attention::block_shape;
use crate::{Arch, Device, HeadsMap, Result, Stream};

/// A function that launches a kernel.
type LinearKernel = unsafe fn(LaunchSite, TensorMap, TensorMap, TensorMap, GemmParams) -> Result<()>;

/// A kernel, and its times on an H200 (benches/results/decisions/linear_hopper.txt).
struct TimedKernel {
    tile: GemmTile,
    /// Time for a tile and 64 elements of K, in nanoseconds.
    step: f64,
    /// Time for a tile that does not depend on K, in nanoseconds. It is short in ping-pong kernels, in which
    /// one warpgroup multiplies while the other one writes its results.
    rest: f64,
    launch: LinearKernel,
}

const KERNELS: [TimedKernel; 6] = [
    TimedKernel { tile: T128X192, step: 613.0, rest: 420.0, launch: launch::linear_hopper_128x192_smem },
    TimedKernel { tile: T128X128, step: 428.0, rest: 170.0, launch: launch::linear_hopper_128x128_smem },
    TimedKernel { tile: T192X192, step: 896.0, rest: 2_050.0, launch: launch::linear_hopper_192x192_smem },
    TimedKernel { tile: T256X128, step: 789.0, rest: 2_300.0, launch: launch::linear_hopper_256x128_smem },
    TimedKernel { tile: T128X256, step: 792.0, rest: 2_250.0, launch: launch::linear_hopper_128x256_smem },
    TimedKernel { tile: T256X192, step: 1_144.0, rest: 2_870.0, launch: launch::linear_hopper_256x192_smem },
];

/// A kernel for results with few rows.
struct FewRowsKernel {
    tile: GemmTile,
    launch: LinearKernel,
}

/// The kernels for results with few rows: with at most as many rows as the tile has columns. They read `weight`
/// once, at the speed of memory.
const FEW_ROWS: [FewRowsKernel; 3] = [
    FewRowsKernel { tile: T64X16, launch: launch::linear_hopper_64x16_smem },
    FewRowsKernel { tile: T64X32, launch: launch::linear_hopper_64x32_smem },
    FewRowsKernel { tile: T64X64, launch: launch::linear_hopper_64x64_smem },
];

/// Number of SMs that the CPU executor has: a cluster, which computes all tiles.
const EXECUTOR_SMS: u32 = 2;

/// Number of rows of tiles (of clusters) that the blocks compute together. Of the values 4, 8 and 16, 8 is
/// the fastest or takes at most 1 % more time.
const GROUP_ROWS: u32 = 8;

/// The share of the time of a full wave that the last, partly filled wave takes in addition to its share of
/// tiles. It is below 1, because the power of idle SMs goes to the others, which then run at a higher clock.
const IDLE: f64 = 0.7;

impl TimedKernel {
    /// Returns the number of tiles of clusters, in rows and columns.
    fn tiles(&self, y: &Matrix) -> [u32; 2] {
        let [height, width] = self.tile.cluster_size();
        [y.rows.div_ceil(height), y.columns.div_ceil(width)]
    }

    /// Returns the estimated time of a launch in nanoseconds.
    fn time(&self, a: &Operands, clusters: u32) -> f64 {
        let waves = self.tiles(&a.y).map(f64::from).iter().product::<f64>() / f64::from(clusters);
        let waves = waves + IDLE * (waves.ceil() - waves);
        waves * (f64::from(a.x.columns.div_ceil(DEPTH)) * self.step + self.rest)
    }
}

/// The operands of a product `y = x wᵀ + bias`.
pub(crate) struct Operands {
    pub x: Matrix,
    pub weight: Matrix,
    pub y: Matrix,
    pub bias: *const u8,
}

/// Launches a Hopper kernel and returns `true`. If no Hopper kernel supports the call, returns `false`
/// without a launch. The first kernel is the one for few rows, if there is one. The others are ordered by their
/// estimated times. `skip` is the number of kernels to skip. If there are no more kernels, the function
/// decreases `skip` by the number of kernels.
pub(crate) fn linear_hopper(device: &Device, a: &Operands, skip: &mut usize, stream: Stream) -> Result<bool> {
    // The kernels load the bias of two columns at once.
    let aligned_bias = (a.bias as usize).is_multiple_of(4);
    if !library(device)?.has(Arch::Sm90a)
        || !(a.x.is_tma() && a.weight.is_tma() && a.y.is_tma() && aligned_bias)
    {
        return Ok(false);
    }
    let few = FEW_ROWS.iter().find(|kernel| a.y.rows <= kernel.tile.columns);
    let time = |kernel: &TimedKernel| kernel.time(a, clusters(device, &kernel.tile));
    let mut kernels = KERNELS.each_ref();
    kernels.sort_by(|one, other| time(one).total_cmp(&time(other)));
    let kernels = few.map(|kernel| (kernel.tile, kernel.launch)).into_iter();
    let kernels = kernels.chain(kernels_by_time.map(|kernel| (kernel.tile, kernel.launch)));
    todo!()
}

/// Returns the description of a matrix from which the driver makes a tensor map. One TMA copy moves `part`
/// columns and rows.
fn map(matrix: &Matrix, part: [u32; 2]) -> HeadsMap {
    HeadsMap {
        base: matrix.base.cast_const().cast(),
        dtype: matrix.dtype,
        sizes: [matrix.columns, matrix.rows, 1, 1].map(u64::from),
        strides: [matrix.row_bytes, 16, 16],
        part,
    }
}
