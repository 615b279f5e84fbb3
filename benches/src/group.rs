//! The criterion group of an op.
use criterion::{BenchmarkId, Criterion, Throughput};
use oxiwarp::{Graph, Stream};

use crate::Gpu;
use crate::cases::{Case, Op, Pool, SETS, Values};

/// Captures the calls of a case in a graph.
fn capture(gpu: &Gpu, case: &Case, pool: &mut Pool) -> Graph {
    let call = |number, stream: Stream| case.call(&gpu.device, pool, number, stream);
    gpu.capture(case.calls(SETS), call).unwrap_or_else(|error| panic!("{}: {error}", case.id()))
}

/// Measures an op with each of its tensor sizes (`cases`). A criterion filter may exclude most cases.
/// Therefore the GPU memory is allocated, and the CUDA graph of a case is captured, only when criterion
/// measures a case.
pub fn bench(criterion: &mut Criterion, gpu: &Gpu, values: &Values, op: &Op, cases: &[Case]) {
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
                // SAFETY: the replayed graph accesses only the memory of `pool`, and this closure borrows
                // `pool` until the replay has finished.
                let time = unsafe { gpu.replay(graph, iterations as usize) };
                time.expect("a working GPU") / case.calls(SETS) as u32
            });
        });
    }
    group.finish();
}
