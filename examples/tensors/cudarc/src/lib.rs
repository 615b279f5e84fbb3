//! Launches a kernel on a `CudaSlice` (array in GPU memory) of the Rust library cudarc.
use std::error::Error;
use std::ffi::c_void;

use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut, DeviceRepr};
use oxiwarp_runtime::{Device, Element, Stream, View, ViewMut};
use softplus::Softplus;

/// Returns `ln(1 + exp(x))` for each element of `x`. The function starts the kernel on the stream of `x` and
/// does not wait for the kernel.
///
/// # Errors
/// Returns the errors of cudarc and of [`Softplus`].
pub fn softplus<T: Element + DeviceRepr>(x: &CudaSlice<T>) -> Result<CudaSlice<T>, Box<dyn Error>> {
    let (stream, shape) = (x.stream(), [x.len() as i64]);
    let op = Softplus::on(&Device::cuda(stream.context().ordinal())?)?;
    // SAFETY: the kernel writes every element.
    let mut y = unsafe { stream.alloc::<T>(x.len()) }?;
    {
        let (x, _read) = x.device_ptr(stream);
        let (y, _write) = y.device_ptr_mut(stream);
        // SAFETY: the kernel reads `x` and writes `y`. Both slices have `shape` elements of type `T`. cudarc
        // and oxiwarp use the primary context of the same GPU, so pointers and stream are valid in both
        // libraries. The kernel runs on cudarc's stream, after the work that wrote `x`. cudarc frees the
        // memory of a slice in stream order, after the events that the guards `_read` and `_write` record.
        // The memory therefore exists until the kernel is done.
        let (x, y, stream) = unsafe {
            let x = View::from_raw_contiguous(x as *const c_void, T::DTYPE, &shape)?;
            let y = ViewMut::from_raw_contiguous(y as *mut c_void, T::DTYPE, &shape)?;
            (x, y, Stream::from_raw(stream.cu_stream().cast()))
        };
        op.run(x, y, stream)?;
    }
    Ok(y)
}
