//! Runs the softplus kernel on a `CudaSlice` of the first GPU, and compares the result with the formula,
//! computed in f64.
use std::error::Error;

use cudarc::driver::CudaContext;
use oxiwarp_runtime::Device;

fn main() -> Result<(), Box<dyn Error>> {
    // Check with oxiwarp whether there is a GPU before any call of cudarc. If the CUDA driver library is
    // missing, cudarc panics.
    if let Err(error) = Device::cuda(0) {
        println!("nothing to do without a GPU: {error}");
        return Ok(());
    }
    let stream = CudaContext::new(0)?.new_stream()?;
    let x: Vec<f32> = (0..1000).map(|i| i as f32 / 25.0 - 20.0).collect();
    let y = softplus_cudarc::softplus(&stream.clone_htod(&x)?)?;
    for (x, y) in x.iter().zip(stream.clone_dtoh(&y)?) {
        let right = f64::from(*x).exp().ln_1p();
        assert!((f64::from(y) - right).abs() <= 1e-6 * right, "x = {x}: {y}, expected {right}");
    }
    println!("{} values of a cudarc slice are right", x.len());
    Ok(())
}
