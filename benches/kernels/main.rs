//! criterion benchmarks of every op, timed by CUDA events. Command: `cargo bench -p oxiwarp-benches`
//!
//! A case is an op with a tensor size, from `oxiwarp_benches::cases`. Each op is a criterion group, and each
//! case is one benchmark of the group. `cargo bench -p oxiwarp-benches -- softmax` measures one op. Like the
//! program `bench`, the benchmarks capture many calls in one CUDA graph and report the time of one call.
//! Without a GPU, the benchmark program prints the reason on stderr and exits with code 2.
use std::process::ExitCode;
use std::time::Duration;

use criterion::Criterion;
use oxiwarp_benches::cases::{ELEMENTS, Selection, Values};
use oxiwarp_benches::{Gpu, NO_GPU, group};

fn main() -> ExitCode {
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(error) => {
            eprintln!("kernels: {error}");
            return NO_GPU.into();
        }
    };
    let copy = gpu.copy_bandwidth(512 << 20).expect("a working GPU");
    println!("{:?}: a device-to-device copy moves {:.0} GB/s (read and written)", gpu.device, copy * 1e-9);
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    let values = Values::new(ELEMENTS);
    for (op, cases) in Selection::default().cases() {
        group::bench(&mut criterion, &gpu, &values, op, &cases);
    }
    criterion.final_summary();
    ExitCode::SUCCESS
}
