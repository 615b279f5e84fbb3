//! Launches a kernel on a `Tensor` of the Rust library candle, as a candle operator.
use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape, WithDType, bail};
use half::{bf16, f16};
use oxiwarp_runtime::{Device, Element, Stream, View, ViewMut};
use softplus::Softplus;

#[cfg(feature = "cuda")]
mod cuda;

/// The elementwise operator `ln(1 + exp(x))`, for a contiguous tensor `x`. Apply the operator with
/// `x.apply_op1_no_bwd(&SoftplusOp)?`.
pub struct SoftplusOp;

impl CustomOp1 for SoftplusOp {
    fn name(&self) -> &'static str {
        "softplus"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let y = match x {
            CpuStorage::F32(x) => f32::to_cpu_storage_owned(on_cpu(x, layout)?),
            CpuStorage::F16(x) => f16::to_cpu_storage_owned(on_cpu(x, layout)?),
            CpuStorage::BF16(x) => bf16::to_cpu_storage_owned(on_cpu(x, layout)?),
            _ => bail!("softplus: x has a dtype other than f32, f16 and bf16"),
        };
        Ok((y, layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        Ok((cuda::softplus(x, layout)?, layout.shape().clone()))
    }
}

/// Runs the kernel on the CPU executor.
fn on_cpu<T: Element>(x: &[T], layout: &Layout) -> Result<Vec<T>> {
    let x = &x[range(layout)?];
    let (mut y, shape) = (vec![T::default(); x.len()], [x.len() as i64]);
    let mut launch = || {
        let (x, y) = (View::of_slice(x, &shape)?, ViewMut::of_slice(&mut y, &shape)?);
        Softplus::on(&Device::cpu())?.run(x, y, Stream::default())
    };
    launch().map_err(Error::wrap)?;
    Ok(y)
}

/// Returns the range of indices at which the elements of a contiguous tensor lie in its storage.
fn range(layout: &Layout) -> Result<std::ops::Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => bail!("softplus: x has strides {:?}, expected a contiguous tensor", layout.stride()),
    }
}
