//! Measures the CPU time of a kernel launch: the time until a call of `rms_norm` on a GPU returns. The call
//! does not wait until the kernel has finished. Prints the minimum and the median of several rounds, in
//! nanoseconds per call.
use std::time::Instant;

use oxiwarp::{Device, Result, RmsNorm, Stream, rms_norm};

const ROUNDS: usize = 41;
/// Calls per round. The launch queue of the driver has space for this number of launches, so no call waits
/// for the GPU.
const CALLS: u32 = 200;

fn main() -> Result<()> {
    let device = Device::cuda(0)?;
    let x = device.upload(&[1.0_f32; 64])?;
    let mut y = device.alloc::<f32>(64)?;
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..CALLS {
            let (x, y) = (x.view(&[1, 64])?, y.view_mut(&[1, 64])?);
            rms_norm(&device, x, None, y, RmsNorm::default(), Stream::default())?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    device.synchronize()?;
    times.sort_by(f64::total_cmp);
    println!("{:.0} {:.0}", times[0], times[ROUNDS / 2]);
    Ok(())
}
