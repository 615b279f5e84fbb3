//! Launches the softplus kernel on a candle tensor in GPU memory.
use std::ffi::c_void;

use candle_core::backend::BackendStorage;
use candle_core::cuda::{CudaDType, cudarc};
use candle_core::{CudaStorage, DType, Error, Layout, Result, bail};
use cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr};
use half::{bf16, f16};
use oxiwarp_runtime::{Device, Element, Stream, View, ViewMut};
use softplus::Softplus;

/// Returns `ln(1 + exp(x))` for each element of `x`. The function starts the kernel on candle's stream and
/// does not wait for the kernel.
pub fn softplus(x: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
    match x.dtype() {
        DType::F32 => of_dtype::<f32>(x, layout),
        DType::F16 => of_dtype::<f16>(x, layout),
        DType::BF16 => of_dtype::<bf16>(x, layout),
        dtype => bail!("softplus: x is {dtype:?}, expected f32, f16 or bf16"),
    }
}

fn of_dtype<T: Element + CudaDType + DeviceRepr>(x: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
    let (device, x) = (x.device(), x.as_cuda_slice::<T>()?.slice(crate::range(layout)?));
    let (stream, shape) = (device.cuda_stream(), [x.len() as i64]);
    let op =
        Device::cuda(stream.context().ordinal()).and_then(|gpu| Softplus::on(&gpu)).map_err(Error::wrap)?;
    // SAFETY: the kernel writes every element.
    let mut y = unsafe { device.alloc::<T>(x.len()) }?;
    let mut launch = || {
        let (x, _read) = x.device_ptr(&stream);
        let (y, _write) = y.device_ptr_mut(&stream);
        // SAFETY: the kernel reads `x` and writes `y`. Both slices have `shape` elements of type `T`.
        // candle's cudarc and oxiwarp use the primary context of the same GPU, so pointers and stream are
        // valid in both libraries. The kernel runs on candle's stream, after the work that wrote `x`. cudarc
        // frees the memory of a slice in stream order, after the events that the guards `_read` and `_write`
        // record. The memory therefore exists until the kernel is done.
        let (x, y, stream) = unsafe {
            let x = View::from_raw_contiguous(x as *const c_void, T::DTYPE, &shape)?;
            let y = ViewMut::from_raw_contiguous(y as *mut c_void, T::DTYPE, &shape)?;
            (x, y, Stream::from_raw(stream.cu_stream().cast()))
        };
        op.run(x, y, stream)
    };
    launch().map_err(Error::wrap)?;
    Ok(CudaStorage::wrap_cuda_slice(y, device.clone()))
}
