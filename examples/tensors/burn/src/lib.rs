//! Launches a kernel on a `Tensor` of the Rust library burn.
use std::error::Error;

use burn::tensor::{DType, Tensor, TensorData};
use oxiwarp_runtime::{Device, Dtype, Stream, View, ViewMut};
use softplus::Softplus;

#[cfg(feature = "cuda")]
mod cuda;

/// Returns `ln(1 + exp(x))` for each element of `x`. If `x` is on a GPU, the kernel runs on this GPU,
/// otherwise on the CPU executor.
///
/// # Errors
/// Returns the errors of burn and of [`Softplus`], and an error for a dtype other than f32, f16 and bf16.
pub fn softplus<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Box<dyn Error>> {
    #[cfg(feature = "cuda")]
    if let Ok(x) = x.clone().try_into_primitive::<burn::backend::Cuda>() {
        return Ok(Tensor::from_primitive::<burn::backend::Cuda>(cuda::softplus(x)?));
    }
    let device = x.device();
    let (x, shape, dtype) = x.into_data().into_parts();
    let mut y = x.clone();
    let (len, kind) = ([shape.num_elements() as i64], oxiwarp_dtype(dtype)?);
    // SAFETY: `into_data` made `x` contiguous, and `y` is a copy of `x`. Both have `len` elements of `dtype`,
    // and burn aligns both for `dtype`. The launch is done when `run` returns. `x` and `y` still exist at
    // that time.
    let (from, to) = unsafe {
        let to = ViewMut::from_raw_contiguous(y.as_mut_ptr().cast(), kind, &len)?;
        (View::from_raw_contiguous(x.as_ptr().cast(), kind, &len)?, to)
    };
    Softplus::on(&Device::cpu())?.run(from, to, Stream::default())?;
    Ok(Tensor::from_data(TensorData::from_bytes(y, shape, dtype), (&device, dtype)))
}

/// Converts burn's dtype to oxiwarp's dtype. Returns an error if the dtype is not f32, f16 or bf16.
fn oxiwarp_dtype(dtype: DType) -> Result<Dtype, Box<dyn Error>> {
    match dtype {
        DType::F32 => Ok(Dtype::F32),
        DType::F16 => Ok(Dtype::F16),
        DType::BF16 => Ok(Dtype::Bf16),
        _ => Err(format!("softplus: x is {dtype:?}, expected f32, f16 or bf16").into()),
    }
}
