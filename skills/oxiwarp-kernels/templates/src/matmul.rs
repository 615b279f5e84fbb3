//! Host code of the matrix product `c = a bᵀ` on tensor cores.
use kernels::matmul::{KERNELS, Matrix, THREADS, TILE, launch};
use oxiwarp_runtime::{Device, Dtype, Error, Kernels, Launch, Result, Stream, View, ViewMut};

const OP: &str = "matmul";
/// Number of elements in a chunk of 16 bytes. Each `cp.async` instruction of the kernel copies one chunk.
const CHUNK: u64 = 8;

/// The variants of the kernel `matmul`, loaded on one device. Load them once per device and reuse them.
pub struct Matmul(Kernels);

impl Matmul {
    /// Loads the kernels on `device`.
    ///
    /// # Errors
    /// Returns an error if the GPU is older than sm_80, or if the driver rejects the PTX.
    pub fn load(device: &Device) -> Result<Self> {
        // Skip the PTX for sm_75, the first entry of the table. The PTX for sm_75 does not contain these
        // kernels.
        Kernels::load(device, &crate::PTX[1..], KERNELS).map(Self)
    }

    /// Writes `a bᵀ` to `c`. The shapes are `[m, k]` for `a`, `[n, k]` for `b` and `[m, n]` for `c`. All
    /// three matrices have the same dtype (f16 or bf16) and a column stride of 1. The kernel adds in f32 and
    /// rounds each result once to this dtype.
    ///
    /// # Errors
    /// Returns an error if a shape, dtype, stride or device is not supported. The message names the argument.
    pub fn run(&self, a: View, b: View, c: ViewMut, stream: Stream) -> Result<()> {
        let (c, dtype) = (c.as_view(), a.dtype());
        if !matches!(dtype, Dtype::F16 | Dtype::Bf16) {
            return Err(Error::Dtype { op: OP, arg: "a", got: dtype, expected: "f16 or bf16".into() });
        }
        b.expect_dtype(OP, "b", dtype)?;
        c.expect_dtype(OP, "c", dtype)?;
        let (m, k, a_stride) = crate::matrix(OP, "a", &a, self.0.device())?;
        let (n, _, b_stride) = crate::matrix(OP, "b", &b, self.0.device())?;
        b.expect_shape(OP, "b", &[n.into(), k.into()])?;
        c.expect_shape(OP, "c", &[m.into(), n.into()])?;
        let to = crate::matrix(OP, "c", c, self.0.device())?;
        crate::expect_separate_rows(OP, "c", c, to)?;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let tiles = u64::from(m.div_ceil(TILE)) * u64::from(n.div_ceil(TILE));
        let shape = Launch::of([crate::blocks(OP, "c", c, tiles)?, 1, 1], [THREADS, 1, 1]);
        let side = |view: &View, rows, cols, stride| Matrix {
            base: view.ptr().cast_mut().cast(),
            stride,
            rows,
            cols,
        };
        let sides = [side(&a, m, k, a_stride), side(&b, n, k, b_stride)];
        let vector = sides.iter().all(|side| {
            let strides = [u64::from(side.cols), if side.rows > 1 { side.stride } else { 0 }];
            side.base.addr().is_multiple_of(16) && strides.iter().all(|stride| stride.is_multiple_of(CHUNK))
        });
        let kernel = if vector { launch::matmul_vector } else { launch::matmul };
        let site = self.0.on_dtype(dtype, stream, shape);
        // SAFETY: the checks above ensure the shapes and strides that the kernel requires, and for
        // `matmul_vector` also the alignment. The type `ViewMut` guarantees exclusive access to `c`.
        unsafe { kernel(site, sides[0], sides[1], side(c, m, n, to.2)) }
    }
}
