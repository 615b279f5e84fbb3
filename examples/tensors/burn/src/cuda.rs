//! Launches the softplus kernel on a burn tensor in GPU memory.
use std::error::Error;
use std::ffi::c_void;

use burn::backend::{Cuda, tensor::FloatTensor};
use cubecl_cuda::CudaRuntime;
use cubecl_runtime::runtime::Runtime;
use oxiwarp_runtime::{Device, Stream, View, ViewMut};
use softplus::Softplus;

type Server = <CudaRuntime as Runtime>::Server;

/// Returns `ln(1 + exp(x))` for each element of a contiguous tensor `x`. The kernel has finished when this
/// function returns.
pub fn softplus(x: FloatTensor<Cuda>) -> Result<FloatTensor<Cuda>, Box<dyn Error>> {
    let burn::cubecl::Device::Cuda(gpu) = &x.device else { return Err("softplus: x is not on a GPU".into()) };
    if !x.is_contiguous() {
        return Err("softplus: x has strides, expected a contiguous tensor".into());
    }
    let (device, dtype) = (Device::cuda(gpu.index)?, crate::oxiwarp_dtype(x.dtype)?);
    let len = x.meta.shape().num_elements();
    let mut y = x.clone();
    y.handle = x.client.empty(len * x.elem_size());
    // cubecl is the library with which burn allocates GPU memory. Get its resource (handle of an allocation)
    // for each tensor. A resource keeps its memory allocated. The call for `x` also makes cubecl's stream
    // wait for the work of other streams on `x`.
    let from = x.client.get_resource::<Server>(x.handle.clone())?;
    let to = x.client.get_resource::<Server>(y.handle.clone())?;
    // cubecl does not give access to its stream, so the kernel runs on another stream. The host therefore
    // waits for cubecl's stream before the launch, and for the kernel after it.
    burn::cubecl::future::block_on(x.client.sync())?;
    // SAFETY: the kernel reads `x` and writes `y`. `x` is contiguous, and both allocations have `len`
    // elements. cubecl and oxiwarp use the primary context of the same GPU, so the pointers are valid in both
    // libraries. No other code has a handle of `y`. The resources `from` and `to` live until the kernel is
    // done.
    let (from_view, to_view) = unsafe {
        let from = View::from_raw_contiguous(from.resource().ptr as *const c_void, dtype, &[len as i64])?;
        (from, ViewMut::from_raw_contiguous(to.resource().ptr as *mut c_void, dtype, &[len as i64])?)
    };
    Softplus::on(&device)?.run(from_view, to_view, Stream::default())?;
    device.synchronize()?;
    Ok(y)
}
