//! Host code of the kernel `y = ln(1 + exp(x))`. This crate embeds the kernel's PTX, checks the arguments of
//! a call and launches the kernel.
use kernels::launch;
use oxiwarp_runtime::{Arch, Device, Error, Kernels, Launch, Result, Stream, View, ViewMut};

const OP: &str = "softplus";
const THREADS: u32 = 256;
/// The PTX that the build script compiles, one text per architecture.
const PTX: &[(Arch, &str)] = &[
    (Arch::Sm75, include_str!(concat!(env!("OUT_DIR"), "/sm_75.ptx"))),
    (Arch::Sm80, include_str!(concat!(env!("OUT_DIR"), "/sm_80.ptx"))),
    (Arch::Sm90, include_str!(concat!(env!("OUT_DIR"), "/sm_90.ptx"))),
];

/// The kernel, loaded on one device.
pub struct Softplus(Kernels);

impl Softplus {
    /// Loads the kernel on `device`.
    ///
    /// # Errors
    /// Returns an error if the GPU is older than sm_75, or if the driver rejects the PTX.
    pub fn load(device: &Device) -> Result<Self> {
        Kernels::load(device, PTX, kernels::KERNELS).map(Self)
    }

    /// Returns the kernel, loaded on `device`. The first call for a device loads the kernel, and later calls
    /// return the same value.
    ///
    /// # Errors
    /// Returns the errors of [`Softplus::load`].
    pub fn on(device: &Device) -> Result<&'static Self> {
        device.get_or_make(|| Self::load(device))
    }

    /// Writes `ln(1 + exp(x))` to `y`. Both tensors must be contiguous and must have the same shape and the
    /// same dtype (f32, f16 or bf16).
    ///
    /// # Errors
    /// Returns an error if a shape, dtype, stride or device is not supported. The message names the argument.
    pub fn run(&self, x: View, y: ViewMut, stream: Stream) -> Result<()> {
        let (y, dtype) = (y.as_view(), x.dtype());
        y.expect_dtype(OP, "y", dtype)?;
        y.expect_shape(OP, "y", x.shape())?;
        let len = self.elements("x", &x)?;
        self.elements("y", y)?;
        let Ok(blocks) = u32::try_from(len.div_ceil(THREADS.into())) else {
            let expected = "at most 2^40 elements".into();
            return Err(Error::Shape { op: OP, arg: "x", got: x.shape().to_vec(), expected });
        };
        if len == 0 {
            return Ok(());
        }
        let site = self.0.on_dtype(dtype, stream, Launch::of([blocks, 1, 1], [THREADS, 1, 1]));
        // SAFETY: the kernel reads `x` and writes `y`. Both tensors have `len` elements of `dtype` without
        // gaps. The type `ViewMut` guarantees exclusive access to `y`.
        unsafe { launch::softplus(site, x.ptr().cast(), y.ptr().cast_mut().cast(), len) }
    }

    /// Checks the device and the strides of the tensor `view`, an argument of the kernel. Returns its number
    /// of elements.
    fn elements(&self, arg: &'static str, view: &View) -> Result<u64> {
        view.expect_on(OP, arg, self.0.device())?;
        if !view.is_contiguous() {
            return Err(view.bad_strides(OP, arg, "the tensor must be contiguous"));
        }
        Ok(view.shape().iter().product::<i64>() as u64)
    }
}
