//! Runs the softplus kernel on a candle tensor and compares the result with the formula, computed in f64.
use candle_core::{Device, Result, Tensor};
use softplus_candle::SoftplusOp;

fn main() -> Result<()> {
    // Without the feature `cuda` or without a GPU, the device is `Device::Cpu`. The kernel then runs on the
    // CPU executor.
    let device = Device::cuda_if_available(0)?;
    let x = Tensor::arange(-20.0_f32, 20.0, &device)?.reshape((5, 8))?;
    let y = x.apply_op1_no_bwd(&SoftplusOp)?;
    let right = (x.exp()? + 1.0)?.log()?;
    let error = (&y - &right)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(error <= 2e-6, "the largest error is {error}");
    println!("{device:?}: {y}");
    Ok(())
}
