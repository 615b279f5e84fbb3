//! Launch plans of matrix products with `mma.sync`.
use kernels_gpu::gemm::mma::params::{LinearParams, MatrixRows, THREADS, WarpTile};
use kernels_gpu::gemm::tile_order::TileOrder;

use crate::library::{LaunchSite, library};
use crate::operands::matrix::Matrix;
use crate::operands::product::Product;
use crate::plan::attention::block_shape;
use crate::{Arch, Device, Error, Result, Stream};

/// Rows of tiles per group of the order of tiles.
pub(super) const GROUP_ROWS: u32 = 8;

/// The kernels of an op that run on every GPU from sm_80 on. `L` is the type of a function that launches a
/// kernel.
pub(crate) struct PortableKernels<L> {
    /// The kernel for large tiles.
    pub large: (L, WarpTile),
    /// The kernel for small tiles.
    pub small: (L, WarpTile),
    /// The kernel that supports every alignment. It has small tiles.
    pub general: L,
}

impl<L: Copy> PortableKernels<L> {
    /// Chooses a kernel, and calls `launch` with it. The kernels that support the call are ordered by
    /// preference. The function skips the first `skip` of them, and takes the next one. If none is left, it
    /// takes the general kernel, which supports every call.
    pub fn launch(
        &self,
        device: &Device,
        a: &Product,
        skip: usize,
        stream: Stream,
        launch: impl FnOnce(L, LaunchSite, LinearParams) -> Result<()>,
    ) -> Result<()> {
        // A kernel with large tiles loads fewer bytes per multiplication. If there are fewer large tiles than
        // SMs, however, some SMs would have no work.
        let (small_tile, count) = (self.small.1, tiles(a, self.large.1).map(u64::from).iter().product());
        let small = a.y.rows <= small_tile.rows()
            || a.weight.rows <= small_tile.columns()
            || u64::from(device.multiprocessors().unwrap_or(1)) > count;
        let able = if small { [self.small, self.large] } else { [self.large, self.small] };
        let able = if a.x.is_vector() && a.weight.is_vector() && a.reads_pairs { &able[..] } else { &[] };
        let &(kernel, tile) = able.get(skip).unwrap_or(&(self.general, small_tile));
        let Some(order) = TileOrder::new(tiles(a, tile), GROUP_ROWS) else {
            let (count, expected): (f64, _) = (
                tiles(a, tile).map(f64::from).iter().product(),
                "at most 2^31 - 1 tiles of rows and columns",
            );
            return Err(Error::Value { op: a.op, arg: "out", got: count, expected });
        };
        let blocks = block_shape(order.count(), THREADS);
        let site = LaunchSite::new(device, a.y.dtype, blocks, stream)?;
        launch(kernel, site, params(a, order))
    }
}

/// Returns an error if the GPU is older than sm_80. The tensor cores of older GPUs lack the instructions
/// that the kernels use.
pub(crate) fn expect_product_kernels(op: &'static str, device: &Device) -> Result<()> {
    if library(device)?.arch() != Some(Arch::Sm75) {
        return Ok(());
    }
    let why = format!(
        "{} runs the PTX for sm_75, and the kernels need sm_80 or newer; use torch's F.linear",
        device.name()
    );
    Err(Error::Unsupported { op, why })
}

/// Returns the number of tiles, in rows and columns.
fn tiles(a: &Product, tile: WarpTile) -> [u32; 2] {
    [a.y.rows.div_ceil(tile.rows()), a.weight.rows.div_ceil(tile.columns())]
}

/// Returns the kernel argument.
fn params(a: &Product, order: TileOrder) -> LinearParams {
    let rows_of = |matrix: &Matrix, first: u32, rows: u32| {
        let base = matrix.base.cast_const().wrapping_add((u64::from(first) * matrix.row_bytes) as usize);
        MatrixRows { base, row_bytes: matrix.row_bytes, rows }
    };
    LinearParams {
        x: rows_of(&a.x, 0, a.x.rows),
        w: rows_of(&a.weight, a.starts[0], a.y.columns),
        y: a.y.base,
        y_row_bytes: a.y.row_bytes,
        bias: a.bias,
        depth: a.x.columns,
        vector_y: u32::from(a.y.is_vector()),
        order,
    }
}
