//! Tests asynchronous copies to shared memory. The thread that started a copy can read the copied data after
//! `copy::wait`. Other threads can read it after a barrier that follows this wait.
use cuda_std::copy;
use cuda_std::cpu::FaultKind;

use super::*;

/// The source array of the copies: 64 elements of 16 bytes. Element `i` contains the number `i` four times,
/// as f32.
#[repr(align(16))]
struct Words([[f32; 4]; 64]);

impl Words {
    fn new() -> Self {
        Self(core::array::from_fn(|at| [at as f32; 4]))
    }

    /// Starts to copy element `at` of this array to element `at` of the array in shared memory.
    fn begin(&self, at: u32) {
        // SAFETY: the copy reads element `at` of this array and writes element `at` of the array in shared
        // memory. Both elements exist. Some tests omit a wait or a barrier on purpose, and check that the
        // executor then shows or reports the error.
        unsafe { elements().copy_from(at, self.0[at as usize].as_ptr().cast()) };
    }
}

fn elements() -> Shared<u128> {
    SharedMemory::of_launch().take(thread::block_dim()[0])
}

fn get(at: u32) -> f32 {
    // SAFETY: the load reads an element of the array in shared memory, and the index is in bounds. Some tests
    // omit the barrier before this read on purpose, and check that the executor reports the missing barrier.
    let [.., last] = unsafe { elements().cast::<[f32; 4]>().get(at) };
    last
}

/// Runs 64 threads, each of which copies one element and then reads one element. Returns the value that
/// thread 5 read.
///
/// If `neighbour` is true, thread 5 reads the element that thread 38 copied. If it is false, thread 5 reads
/// the element that it copied itself. Before the read, each thread calls `copy::wait` if `waits` is true, and
/// `block::sync` if `meets` is true.
fn seen(waits: bool, meets: bool, neighbour: bool) -> Result<f32, Fault> {
    let (words, result) = (Words::new(), AtomicU32::new(0));
    run([1; 3], [64, 1, 1], 16 * 64, &|| {
        words.begin(me());
        if waits {
            copy::wait();
        }
        if meets {
            block::sync();
        }
        let word = get(if neighbour { (me() + 33) % 64 } else { me() });
        if me() == 5 {
            result.store(word.to_bits(), Relaxed);
        }
    })
    .map(|()| f32::from_bits(result.load(Relaxed)))
}

#[test]
fn a_copy_is_there_when_the_thread_has_waited() {
    let of = |waits| seen(waits, false, false).expect("each thread has an element of its own");
    assert_eq!(of(true), 5.0);
    assert!(of(false).is_nan(), "it was there before");
}

#[test]
fn a_copy_is_there_for_others_behind_a_barrier() {
    assert_eq!(seen(true, true, true).expect("no fault"), 38.0);
    let fault = seen(true, false, true).expect_err("nothing orders the copy and the read");
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
    assert!(seen(false, true, true).expect("what is read is nobody's yet").is_nan());
}

#[test]
fn a_copy_that_ends_after_the_barrier_is_a_race() {
    let words = Words::new();
    let fault = fault(64, 16 * 64, &|| {
        if me() == 0 {
            words.begin(0);
        }
        block::sync();
        if me() == 40 {
            get(0);
        } else {
            copy::wait();
        }
    });
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
}

#[test]
fn what_a_block_did_not_wait_for_is_not_the_next_ones() {
    let words = Words::new();
    run([64, 1, 1], [32, 1, 1], 16 * 32, &|| {
        if thread::block_index()[0].is_multiple_of(2) {
            words.begin(me());
        } else {
            copy::wait();
            assert!(get(me()).is_nan());
        }
    })
    .expect("no fault");
}

#[test]
fn a_wait_for_groups_leaves_the_last_groups_pending() {
    let words = Words::new();
    run([1; 3], [1, 1, 1], 16 * 4, &|| {
        let array: Shared<u128> = SharedMemory::of_launch().take(4);
        let value = |at| {
            // SAFETY: the load reads an element of the array in shared memory. The index is in bounds, and
            // the block has only one thread.
            let [.., last] = unsafe { array.cast::<[f32; 4]>().get(at) };
            last
        };
        for at in 0..4 {
            // SAFETY: `at` is in bounds of both arrays.
            unsafe { array.copy_from(at, words.0[at as usize].as_ptr().cast()) };
            if at < 3 {
                copy::commit();
            }
        }
        copy::wait_for_groups::<3>();
        assert!(value(0).is_nan(), "all three groups may be pending");
        copy::wait_for_groups::<2>();
        assert_eq!(value(0), 0.0);
        assert!(value(1).is_nan() && value(2).is_nan());
        copy::wait_for_groups::<0>();
        assert_eq!([value(1), value(2)], [1.0, 2.0]);
        assert!(value(3).is_nan(), "a copy outside of the groups is complete");
        copy::wait();
        assert_eq!(value(3), 3.0);
    })
    .expect("no fault");
}
