//! criterion with the GPU's own clock: `cargo bench -p oxiwarp-benches`. One binary, which needs a driver and nothing
//! else; without a GPU it says so and ends well.
mod add_rms_norm;
mod rms_norm;

use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput};
use oxiwarp::{Event, Result, Stream};
use oxiwarp_benches::{Gpu, LAUNCHES};

/// GPU time between two events on the stream of all launches.
pub struct GpuTime<'a>(&'a Gpu);

impl Measurement for GpuTime<'_> {
    type Intermediate = Event;
    type Value = Duration;

    fn start(&self) -> Event {
        Event::record(&self.0.stream).expect("a working GPU")
    }
    fn end(&self, start: Event) -> Duration {
        self.start().since(&start).expect("a working GPU")
    }
    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }
    fn zero(&self) -> Duration {
        Duration::ZERO
    }
    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Measures `launch`, which moves `bytes`, as a graph of 20 calls; its argument counts them and picks the buffers.
/// criterion's time and throughput are those of the 20.
pub fn measure(
    criterion: &mut Criterion<GpuTime>,
    gpu: &Gpu,
    op: &str,
    (rows, cols): (usize, usize),
    bytes: usize,
    mut launch: impl FnMut(usize, Stream) -> Result<()>,
) {
    let stream = &gpu.stream;
    launch(0, stream.as_stream()).expect("valid arguments");
    let graph = stream.capture(|stream| (0..LAUNCHES).try_for_each(|i| launch(i, stream)));
    let graph = graph.expect("launches that can be captured");
    let mut group = criterion.benchmark_group(op);
    group.throughput(Throughput::Bytes((bytes * LAUNCHES) as u64));
    group.bench_function(
        BenchmarkId::from_parameter(format!("{rows}x{cols} bf16, {LAUNCHES} calls")),
        |bencher| {
            // SAFETY: criterion waits for the event behind the launches before this function, which borrows their
            // memory, returns.
            bencher.iter(|| unsafe { graph.launch(stream) }.expect("a working GPU"));
        },
    );
    group.finish();
}

fn main() {
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(error) => return println!("nothing to measure: {error}"),
    };
    let copy = gpu.copy_bandwidth(512 << 20).expect("a working GPU");
    println!("{:?}: a device-to-device copy moves {:.0} GB/s (read and written)", gpu.device, copy * 1e-9);
    let mut criterion = Criterion::default()
        .with_measurement(GpuTime(&gpu))
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    rms_norm::bench(&mut criterion, &gpu);
    add_rms_norm::bench(&mut criterion, &gpu);
    criterion.final_summary();
}
