//! criterion benchmarks of every op, timed by CUDA events: `cargo bench -p oxiwarp-benches`.
//!
//! A case is an op with a tensor size, from `oxiwarp_benches::cases`. Each op is a criterion group, and each
//! case is one benchmark of the group. `cargo bench -p oxiwarp-benches -- softmax` measures one op. As in
//! `bench`, the time is the time of one call in a captured CUDA graph of many calls. Without a GPU, the
//! program prints one line with the reason on stderr and exits with 2.
use std::process::ExitCode;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use oxiwarp::{Graph, Stream};
use oxiwarp_benches::cases::{Case, ELEMENTS, Op, Pool, SETS, Selection, Values};
use oxiwarp_benches::{Gpu, NO_GPU};

/// Captures the calls of a case in a graph.
fn capture(gpu: &Gpu, case: &Case, pool: &mut Pool) -> Graph {
    let call = |number, stream: Stream| case.call(&gpu.device, pool, number, stream);
    gpu.capture(case.calls(SETS), call).unwrap_or_else(|error| panic!("{}: {error}", case.id()))
}

/// Measures an op with each of its tensor sizes (`cases`). A criterion filter may select only a few cases.
/// Memory and graphs are therefore created only when criterion measures a case.
fn bench(criterion: &mut Criterion, gpu: &Gpu, values: &Values, op: &Op, cases: &[Case]) {
    let mut pool = None;
    let mut group = criterion.benchmark_group(op.name);
    for case in cases {
        let mut graph = None;
        group.throughput(Throughput::Bytes(case.bytes() as u64));
        let id = BenchmarkId::from_parameter(format!("{}x{}", case.rows, case.cols));
        group.bench_function(id, |bencher| {
            let pool =
                pool.get_or_insert_with(|| Pool::of_ops(&gpu.device, values, &[op]).expect("device memory"));
            let graph = graph.get_or_insert_with(|| capture(gpu, case, pool));
            bencher.iter_custom(|iterations| {
                // SAFETY: the graph accesses only the memory of the pool, and the closure borrows the pool
                // while it runs.
                let time = unsafe { gpu.replay(graph, iterations as usize) };
                time.expect("a working GPU") / case.calls(SETS) as u32
            });
        });
    }
    group.finish();
}

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
        bench(&mut criterion, &gpu, &values, op, &cases);
    }
    criterion.final_summary();
    ExitCode::SUCCESS
}
