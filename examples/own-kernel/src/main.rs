//! Runs the kernel `l2_normalize` on the first GPU, or on the CPU executor if there is no GPU.
use own_kernel::L2Normalize;
use oxiwarp_runtime::{Device, Result, Stream};

fn main() -> Result<()> {
    let device = Device::cuda(0).unwrap_or_else(|_| Device::cpu());
    let x = device.upload(&[3.0_f32, 4.0, 0.0, 5.0, 12.0, 0.0])?;
    let mut y = device.alloc::<f32>(6)?;
    let op = L2Normalize::load(&device)?;
    op.run(x.view(&[2, 3])?, y.view_mut(&[2, 3])?, 1e-12, Stream::default())?;
    println!("{device:?}: {:?}", y.download()?);
    Ok(())
}
