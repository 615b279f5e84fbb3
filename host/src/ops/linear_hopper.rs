//! The kernels of the op `linear` for Hopper.
use std::num::NonZero;

use cuda_std::tensor_map::TensorMap;
use kernels_gpu::gemm::hopper::params::{DEPTH, GemmParams, SLICE, Tile, WARP_ROWS};
use kernels_gpu::ops::linear_hopper::{launch, tiles};

use crate::library::{LaunchSite, library};
use crate::operands::matrix::Matrix;
use crate::plan::attention::block_shape;
use crate::{Arch, Device, HeadsMap, Result, Stream};

/// A function that launches a kernel.
type LinearKernel = unsafe fn(LaunchSite, TensorMap, TensorMap, TensorMap, GemmParams) -> Result<()>;

/// The kernels, and their tile sizes.
const KERNELS: [(LinearKernel, Tile); 12] = [
    (launch::linear_hopper_128x256_smem, tiles::T128X256),
    (launch::linear_hopper_128x256_pair_w_smem, tiles::T128X256_PAIR_W),
    (launch::linear_hopper_256x128_pair_x_smem, tiles::T256X128_PAIR_X),
    (launch::linear_hopper_256x128_smem, tiles::T256X128),
    (launch::linear_hopper_128x128_pair_w_ping_smem, tiles::T128X128_PAIR_W_PING),
    (launch::linear_hopper_64x256_pair_w_ping_smem, tiles::T64X256_PAIR_W_PING),
    (launch::linear_hopper_192x192_smem, tiles::T192X192),
    (launch::linear_hopper_192x192_pair_w_smem, tiles::T192X192_PAIR_W),
    (launch::linear_hopper_256x192_pair_x_smem, tiles::T256X192_PAIR_X),
    (launch::linear_hopper_256x192_smem, tiles::T256X192),
    (launch::linear_hopper_128x192_pair_w_ping_smem, tiles::T128X192_PAIR_W_PING),
    (launch::linear_hopper_128x128_ping_smem, tiles::T128X128_PING),
];

/// Launches kernel `number` (temporary).
fn number() -> usize {
    std::env::var("OXIWARP_LINEAR").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn group() -> u32 {
    std::env::var("OXIWARP_GROUP").ok().and_then(|text| text.parse().ok()).unwrap_or(8)
}

/// The operands of a product `y = x wᵀ + bias`.
pub(crate) struct Operands {
    pub x: Matrix,
    pub weight: Matrix,
    pub y: Matrix,
    pub bias: *const u8,
}

/// Launches a Hopper kernel and returns `true`. If no Hopper kernel supports the call, returns `false`
/// without a launch. `skip` is the number of kernels to skip. If a Hopper kernel supports the call and `skip`
/// is not 0, the function decreases `skip` by 1 and returns `false` without a launch.
pub(crate) fn linear_hopper(device: &Device, a: &Operands, skip: &mut usize, stream: Stream) -> Result<bool> {
    // The kernels load the bias of two columns at once.
    let aligned_bias = (a.bias as usize).is_multiple_of(4);
    if !library(device)?.has(Arch::Sm90a)
        || !(a.x.is_tma() && a.weight.is_tma() && a.y.is_tma() && aligned_bias)
    {
        return Ok(false);
    }
    if let Some(fewer) = skip.checked_sub(1) {
        *skip = fewer;
        return Ok(false);
    }
    let (kernel, tile) = KERNELS[number()];
    let [height, width] = tile.cluster_size();
    let (tile_rows, tile_columns) = (a.y.rows.div_ceil(height), a.y.columns.div_ceil(width));
    let Some(all) = tile_rows.checked_mul(tile_columns).filter(|&all| all <= i32::MAX as u32) else {
        return Ok(false);
    };
    let group_rows = group().min(tile_rows);
    let (Some(group_rows), Some(group_tiles)) =
        (NonZero::new(group_rows), NonZero::new(group_rows * tile_columns))
    else {
        return Ok(true);
    };
    let params = GemmParams {
        bias: a.bias,
        columns: a.y.columns,
        depth_tiles: a.x.columns.div_ceil(DEPTH),
        tile_rows,
        tile_columns,
        group_rows,
        group_tiles,
    };
    let [x_rows, w_rows] = tile.box_rows();
    let map = |matrix: &Matrix, columns, rows| device.tensor_map(&map(matrix, [columns, rows]));
    let (x, w) = (map(&a.x, DEPTH, x_rows)?, map(&a.weight, DEPTH, w_rows)?);
    let y = map(&a.y, SLICE, WARP_ROWS)?;
    let clusters = (device.multiprocessors().unwrap_or(2) / tile.cluster).clamp(1, all);
    let site =
        LaunchSite::new(device, a.y.dtype, block_shape(clusters * tile.cluster, tile.threads()), stream)?;
    // SAFETY: the kernel accesses only the tensors that the tensor maps and `params` describe. The caller has
    // checked these tensors.
    unsafe { kernel(site, x, w, y, params) }?;
    Ok(true)
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
