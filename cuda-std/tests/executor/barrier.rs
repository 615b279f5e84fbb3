//! Tests of blocks: indices, barriers and shared memory.
use cuda_std::cpu::FaultKind;

use super::*;

#[test]
fn every_thread_of_every_block_runs_once_and_knows_its_place() {
    let (grid, dim) = ([3, 4, 5], [5, 3, 4]);
    let seen = zeros(60 * 60);
    run(grid, dim, 0, &|| {
        assert_eq!((thread::grid_dim(), thread::block_dim()), (grid, dim));
        let ([bx, by, bz], [x, y, z]) = (thread::block_index(), thread::index());
        assert!(x < 5 && y < 3 && z < 4 && bx < 3 && by < 4 && bz < 5);
        assert_eq!((me(), warp::lane()), (x + 5 * (y + 3 * z), me() % 32));
        seen[(60 * (bx + 3 * (by + 4 * bz)) + me()) as usize].fetch_add(1, Relaxed);
    })
    .unwrap();
    assert!(values(&seen).iter().all(|&times| times == 1));
}

#[test]
fn block_reduction_is_right_for_every_block_size() {
    for threads in 1..=1_024 {
        let out = zeros(threads);
        run([1; 3], [threads, 1, 1], 4 * threads, &|| {
            out[me() as usize].store(tree_sum(me() as f32 + 1.0, threads) as u32, Relaxed);
        })
        .unwrap();
        assert_eq!(values(&out), vec![threads * (threads + 1) / 2; threads as usize], "{threads} threads");
    }
}

#[test]
fn warp_and_barrier_reduction_is_right_for_every_number_of_warps() {
    for threads in (32..=1_024).step_by(32) {
        let out = zeros(threads);
        run([1; 3], [threads, 1, 1], 4 * threads / 32, &|| {
            let total = block::sum(me() as f32 + 1.0, &mut SharedMemory::of_launch());
            out[me() as usize].store(total as u32, Relaxed);
        })
        .unwrap();
        assert_eq!(values(&out), vec![threads * (threads + 1) / 2; threads as usize], "{threads} threads");
    }
}

#[test]
fn shared_memory_starts_as_nan_in_every_block() {
    run([64, 1, 1], [32, 1, 1], 128, &|| {
        let memory = SharedMemory::of_launch().take::<f32>(32);
        // SAFETY: each thread accesses only its own element.
        unsafe {
            assert!(memory.get(me()).is_nan(), "a block sees what the one before it left");
            memory.set(me(), 1.0);
        }
    })
    .unwrap();
}

#[test]
fn a_barrier_that_a_returned_thread_never_reaches() {
    let fault = run([5, 1, 1], [256, 1, 1], 0, &|| {
        let early = thread::block_index()[0] == 3 && thread::index()[0] < 17;
        if !early {
            block::sync();
        }
    })
    .unwrap_err();
    assert_eq!((fault.kernel, fault.block, fault.thread), ("probe", [3, 0, 0], [17, 0, 0]));
    assert_eq!(fault.kind, FaultKind::Barrier { waiting: 239, threads: 256, absent: [0, 0, 0] });
    assert_eq!(
        message(&fault),
        "probe: block (3,0,0) thread (17,0,0): waits at a barrier that thread (0,0,0) never reaches: it has \
         returned (239 of 256 threads wait)"
    );
}

#[test]
fn the_last_of_several_barriers_counts_too() {
    let fault = run([1; 3], [4, 3, 2], 0, &|| {
        for _ in 0..if thread::index() == [2, 1, 1] { 6 } else { 7 } {
            block::sync();
        }
    })
    .unwrap_err();
    assert_eq!(fault.thread, [0; 3]);
    assert_eq!(fault.kind, FaultKind::Barrier { waiting: 23, threads: 24, absent: [2, 1, 1] });
}

#[test]
fn a_barrier_that_threads_at_a_hopeless_shuffle_never_reach() {
    let fault = fault(64, 0, &|| {
        if me() < 40 {
            block::sync();
        } else {
            warp::shuffle_xor(warp::ALL, 0, 1);
        }
    });
    assert_eq!(
        message(&fault),
        "probe: block (0,0,0) thread (40,0,0): shfl_xor with mask 0xffffffff misses lanes 0-7: lane 0 waits at the \
         barrier of the block"
    );
}
