//! Runs the softplus kernel on a burn tensor and compares the result with burn's softplus operator.
use std::error::Error;

use burn::tensor::{Device, Tensor, activation};
use softplus_burn::softplus;

fn main() -> Result<(), Box<dyn Error>> {
    let device = device();
    let x = Tensor::<1>::from_data((-20..20).map(f64::from).collect::<Vec<_>>().as_slice(), &device)
        .reshape([5, 8]);
    let y: Tensor<2> = softplus(x.clone())?;
    let error = (y.clone() - activation::softplus(x, 1.0)).abs().max().into_scalar::<f32>();
    assert!(error <= 2e-6, "the largest error is {error}");
    println!("{device:?}: {y}");
    Ok(())
}

/// Returns the burn device of the first GPU. Without the feature `cuda` or without a GPU, returns the device
/// of burn's CPU backend.
fn device() -> Device {
    #[cfg(feature = "cuda")]
    if oxiwarp_runtime::Device::cuda(0).is_ok() {
        return Device::cuda(0);
    }
    Device::flex()
}
