//! Measures how long a thread switch and a block take on the CPU executor. The documentation of
//! `cuda_std::cpu` lists these times.
use std::hint::black_box;
use std::time::Instant;

use super::*;

/// Launches `blocks` blocks 20 times. Returns the time of the fastest launch, in microseconds per block.
fn time(what: &str, blocks: u32, threads: u32, body: Body) -> f64 {
    let best = (0..20).map(|_| {
        let start = Instant::now();
        run([blocks, 1, 1], [threads, 1, 1], 4 * threads, body).unwrap();
        start.elapsed().as_secs_f64() * 1e6 / f64::from(blocks)
    });
    let best = best.fold(f64::INFINITY, f64::min);
    println!("{what}: {best:.2} us per block of {threads}");
    best
}

#[test]
#[ignore = "a measurement: run with --release --nocapture"]
fn switches_and_blocks() {
    rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(|| {
        let idle = time("nothing", 1_000, 256, &|| {});
        let once = time("one barrier", 200, 256, &|| block::sync());
        let many = time("101 barriers", 20, 256, &|| (0..101).for_each(|_| block::sync()));
        println!("a switch: {:.1} ns", (many - once) * 1e3 / (100.0 * 256.0));
        println!("a thread that never waits: {:.1} ns", idle * 1e3 / 256.0);
        time("reduction, 9 barriers", 200, 256, &|| _ = black_box(tree_sum(me() as f32, 256)));
        time("reduction, shuffles", 200, 256, &|| {
            black_box(block::sum(me() as f32, &mut SharedMemory::of_launch()));
        });
        // With an mbarrier, clocks decide which accesses race.
        let active = time("101 barriers with an mbarrier", 20, 256, &|| {
            super::hopper::open(&[1]);
            (0..100).for_each(|_| block::sync());
        });
        println!("a switch with an mbarrier: {:.1} ns", (active - once) * 1e3 / (100.0 * 256.0));
        time("11 reads of a word by all threads with an mbarrier", 20, 256, &|| {
            super::hopper::open(&[1]);
            let words = SharedMemory::of_launch().take::<u32>(256);
            for _ in 0..11 {
                // SAFETY: no thread writes to the word.
                black_box(unsafe { words.get(2) });
                block::sync();
            }
        });
        time("one launch of one block, nothing", 1, 128, &|| {});
    });
}
