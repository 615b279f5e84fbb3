//! Host code of the row reduction `y = ln(sum(exp(x)))`.
use cuda_std::row::Rows;
use kernels::log_sum_exp::{KERNELS, launch};
use oxiwarp_runtime::{Device, Kernels, Launch, Result, Stream, View, ViewMut};

const OP: &str = "log_sum_exp";
/// Rows per block. Each warp processes one row.
const ROWS: u32 = 4;

/// The variants of the kernel `log_sum_exp`, loaded on one device. Load them once per device and reuse them.
pub struct LogSumExp(Kernels);

impl LogSumExp {
    /// Loads the kernels on `device`.
    ///
    /// # Errors
    /// Returns an error if the GPU is older than sm_75, or if the driver rejects the PTX.
    pub fn load(device: &Device) -> Result<Self> {
        Kernels::load(device, crate::PTX, KERNELS).map(Self)
    }

    /// Computes `ln(sum(exp(x)))` for each row of `x` and writes the results to `y`. `x` has shape
    /// `[rows, columns]` and a column stride of 1. `y` has shape `[rows]`, is contiguous, and has the dtype
    /// of `x` (f32, f16 or bf16).
    ///
    /// # Errors
    /// Returns an error if a shape, dtype, stride or device is not supported. The message names the argument.
    pub fn run(&self, x: View, y: ViewMut, stream: Stream) -> Result<()> {
        let (y, dtype) = (y.as_view(), x.dtype());
        let (rows, cols, stride) = crate::matrix(OP, "x", &x, self.0.device())?;
        y.expect_on(OP, "y", self.0.device())?;
        y.expect_dtype(OP, "y", dtype)?;
        y.expect_shape(OP, "y", &[rows.into()])?;
        if !y.is_contiguous() {
            return Err(y.bad_strides(OP, "y", "the tensor must be contiguous"));
        }
        if rows == 0 {
            return Ok(());
        }
        let (base, y) = (x.ptr().cast_mut().cast(), y.ptr().cast_mut().cast());
        let x = Rows { base, inner_stride: stride as i64, outer_stride: 0 };
        let vector = x.is_vector(cols, dtype.size());
        let kernel = if vector { launch::log_sum_exp_vector } else { launch::log_sum_exp };
        let shape = Launch::of([rows.div_ceil(ROWS), 1, 1], [32, ROWS, 1]);
        // SAFETY: the checks above ensure the kernel's requirements on `x` and `y`. The type `ViewMut`
        // guarantees exclusive access to `y`.
        unsafe { kernel(self.0.on_dtype(dtype, stream, shape), x, y, rows.into(), cols) }
    }
}
