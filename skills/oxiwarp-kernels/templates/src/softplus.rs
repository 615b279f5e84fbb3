//! Host code of the element-wise kernel `y = ln(1 + exp(x))`.
use kernels::softplus::{KERNELS, launch};
use oxiwarp_runtime::{Device, Kernels, Launch, Result, Stream, View, ViewMut};

const OP: &str = "softplus";
const THREADS: u32 = 256;
/// Size in bytes of a pack (a vector of elements), which a thread loads or stores with one instruction.
const PACK: usize = 16;

/// The kernel `softplus`, loaded on one device. Load it once per device and reuse it.
pub struct Softplus(Kernels);

impl Softplus {
    /// Loads the kernel on `device`.
    ///
    /// # Errors
    /// Returns an error if the GPU is older than sm_75, or if the driver rejects the PTX.
    pub fn load(device: &Device) -> Result<Self> {
        Kernels::load(device, crate::PTX, KERNELS).map(Self)
    }

    /// Writes `ln(1 + exp(x))` to `y`. Both tensors are contiguous and have the same shape and the same dtype
    /// (f32, f16 or bf16).
    ///
    /// # Errors
    /// Returns an error if a shape, dtype, stride or device is not supported. The message names the argument.
    pub fn run(&self, x: View, y: ViewMut, stream: Stream) -> Result<()> {
        let (y, dtype) = (y.as_view(), x.dtype());
        y.expect_dtype(OP, "y", dtype)?;
        y.expect_shape(OP, "y", x.shape())?;
        for (arg, view) in [("x", &x), ("y", y)] {
            view.expect_on(OP, arg, self.0.device())?;
            if !view.is_contiguous() {
                return Err(view.bad_strides(OP, arg, "the tensor must be contiguous"));
            }
        }
        let len = x.shape().iter().product::<i64>() as u64;
        if len == 0 {
            return Ok(());
        }
        let aligned = [x.ptr(), y.ptr()].iter().all(|ptr| ptr.addr().is_multiple_of(PACK));
        let elements = (PACK / dtype.size()) as u64;
        let packs = if aligned { len / elements } else { 0 };
        let threads = packs + (len - packs * elements);
        let blocks = crate::blocks(OP, "x", &x, threads.div_ceil(THREADS.into()))?;
        let site = self.0.on_dtype(dtype, stream, Launch::of([blocks, 1, 1], [THREADS, 1, 1]));
        // SAFETY: both tensors have `len` elements of `dtype` without gaps. `packs` is 0 unless both tensors
        // are aligned to 16 bytes. The type `ViewMut` guarantees exclusive access to `y`.
        unsafe { launch::softplus(site, x.ptr().cast(), y.ptr().cast_mut().cast(), len, packs) }
    }
}
