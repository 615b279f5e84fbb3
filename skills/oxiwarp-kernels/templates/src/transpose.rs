//! Host code of the kernel `transpose`, which transposes a matrix through tiles in shared memory.
use kernels::transpose::{KERNELS, ROWS, TILE, launch};
use oxiwarp_runtime::{Device, Kernels, Launch, Result, Stream, View, ViewMut};

const OP: &str = "transpose";

/// The kernel `transpose`, loaded on one device. Load it once per device and reuse it.
pub struct Transpose(Kernels);

impl Transpose {
    /// Loads the kernel on `device`.
    ///
    /// # Errors
    /// Returns an error if the GPU is older than sm_75, or if the driver rejects the PTX.
    pub fn load(device: &Device) -> Result<Self> {
        Kernels::load(device, crate::PTX, KERNELS).map(Self)
    }

    /// Writes the transpose of `x` to `y`. If `x` has shape `[rows, columns]`, `y` has shape `[columns,
    /// rows]`. Both matrices have the same dtype (f32, f16 or bf16) and a column stride of 1.
    ///
    /// # Errors
    /// Returns an error if a shape, dtype, stride or device is not supported. The message names the argument.
    pub fn run(&self, x: View, y: ViewMut, stream: Stream) -> Result<()> {
        let (y, dtype) = (y.as_view(), x.dtype());
        let (rows, cols, x_stride) = crate::matrix(OP, "x", &x, self.0.device())?;
        y.expect_dtype(OP, "y", dtype)?;
        y.expect_shape(OP, "y", &[cols.into(), rows.into()])?;
        let to = crate::matrix(OP, "y", y, self.0.device())?;
        crate::expect_separate_rows(OP, "y", y, to)?;
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let tiles = u64::from(rows.div_ceil(TILE)) * u64::from(cols.div_ceil(TILE));
        let shape = Launch::of([crate::blocks(OP, "x", &x, tiles)?, 1, 1], [TILE, ROWS, 1]);
        let site = self.0.on_dtype(dtype, stream, shape);
        let (x, y) = (x.ptr().cast(), y.ptr().cast_mut().cast());
        // SAFETY: the checks above ensure the shapes and strides that the kernel requires. The type `ViewMut`
        // guarantees exclusive access to `y`.
        unsafe { launch::transpose(site, x, y, rows, cols, x_stride, to.2) }
    }
}
