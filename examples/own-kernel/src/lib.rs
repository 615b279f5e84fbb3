//! The host code of a user-defined kernel. This crate embeds the kernel's PTX, checks the arguments of a call
//! and launches the kernel.
use cuda_std::row::Rows;
use kernels::launch;
use oxiwarp_runtime::{Arch, Device, Error, Kernels, Launch, Result, Stream, View, ViewMut};

const OP: &str = "l2_normalize";
/// Rows per block. Each warp processes one row.
const ROWS: u32 = 4;
/// The PTX that the build script compiles, one text per architecture.
const PTX: &[(Arch, &str)] = &[
    (Arch::Sm75, include_str!(concat!(env!("OUT_DIR"), "/sm_75.ptx"))),
    (Arch::Sm80, include_str!(concat!(env!("OUT_DIR"), "/sm_80.ptx"))),
    (Arch::Sm90, include_str!(concat!(env!("OUT_DIR"), "/sm_90.ptx"))),
];

/// The kernel `y[r] = x[r] / max(|x[r]|, eps)` for each row `r`, loaded on one device. Load the kernel once
/// per device and reuse it.
pub struct L2Normalize(Kernels);

impl L2Normalize {
    /// Loads the variants of the kernel on `device`.
    ///
    /// # Errors
    /// Returns an error if the GPU is older than sm_75, or if the driver rejects the PTX.
    pub fn load(device: &Device) -> Result<Self> {
        Kernels::load(device, PTX, kernels::KERNELS).map(Self)
    }

    /// Normalises the rows of `x` and writes them to `y`. Both tensors have the shape `[rows, columns]`, the
    /// same dtype (f32, f16 or bf16), and a column stride of 1.
    ///
    /// # Errors
    /// Returns an error if a shape, dtype, stride or device is not supported. The message names the argument.
    pub fn run(&self, x: View, y: ViewMut, eps: f32, stream: Stream) -> Result<()> {
        let (y, dtype) = (y.as_view(), x.dtype());
        y.expect_dtype(OP, "y", dtype)?;
        y.expect_shape(OP, "y", x.shape())?;
        let ([rows, cols], x_rows) = self.rows("x", &x)?;
        let (_, y_rows) = self.rows("y", y)?;
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let vector = [x_rows, y_rows].iter().all(|side| side.is_vector(cols, dtype.size()));
        let shape = Launch::of([rows.div_ceil(ROWS), 1, 1], [32, ROWS, 1]);
        let site = self.0.on_dtype(dtype, stream, shape);
        let kernel = if vector { launch::l2_normalize_vector } else { launch::l2_normalize };
        // SAFETY: the kernel reads `x` and writes `y`. This function and the method `rows` checked the
        // kernel's requirements on both. The type `ViewMut` guarantees exclusive access to `y`.
        unsafe { kernel(site, x_rows, y_rows, u64::from(rows), cols, eps) }
    }

    /// Checks the tensor `view`, an argument of the kernel. Returns its numbers of rows and columns, and the
    /// address and stride of its rows.
    fn rows(&self, arg: &'static str, view: &View) -> Result<([u32; 2], Rows)> {
        view.expect_on(OP, arg, self.0.device())?;
        let shape = |expected: &str| {
            Err(Error::Shape { op: OP, arg, got: view.shape().to_vec(), expected: expected.into() })
        };
        let (&[rows, cols], &[stride, step]) = (view.shape(), view.strides()) else {
            return shape("[rows, columns]");
        };
        let (Ok(rows), Ok(cols)) = (i32::try_from(rows), i32::try_from(cols)) else {
            return shape("at most 2^31 - 1 rows and columns");
        };
        if step != 1 && cols > 1 {
            let (shape, strides) = (view.shape().to_vec(), view.strides().to_vec());
            let problem = "columns must lie side by side";
            return Err(Error::Strides { op: OP, arg, shape, strides, problem });
        }
        let base = view.ptr().cast_mut().cast();
        Ok(([rows as u32, cols as u32], Rows { base, inner_stride: stride, outer_stride: 0 }))
    }
}
