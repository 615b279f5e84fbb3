//! Tests launches on the CPU executor from thread pools of different sizes, from several host threads, and
//! after forks.
use std::time::{Duration, Instant};

use super::*;

/// Launches a kernel with barriers and shuffles. Returns one number per GPU thread. The number combines the
/// thread's result with the order in which the threads of its block finished.
fn trace() -> Vec<u32> {
    let (blocks, threads) = (200, 96);
    let (steps, out) = (zeros(blocks), zeros(blocks * threads));
    run([blocks, 1, 1], [threads, 1, 1], 4 * threads, &|| {
        let block = thread::block_index()[0];
        let mut value = 1.0 / (1 + block + me()) as f32;
        for _ in 0..3 {
            value = tree_sum(warp::sum(value, 32).sqrt(), threads) / (1 + me()) as f32;
            block::sync();
        }
        let step = steps[block as usize].fetch_add(1, Relaxed);
        out[(block * threads + me()) as usize].store(value.to_bits() ^ step, Relaxed);
    })
    .unwrap();
    values(&out)
}

#[test]
fn results_do_not_depend_on_the_number_of_workers() {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let alone = pool(1).install(trace);
    for workers in [2, 3, 8] {
        assert_eq!(pool(workers).install(trace), alone, "{workers} workers");
    }
    assert_eq!(trace(), alone, "the global pool");
}

#[test]
fn many_small_blocks() {
    let blocks = 30_000;
    let out = zeros(blocks);
    run([blocks, 1, 1], [128, 1, 1], 0, &|| {
        out[thread::block_index()[0] as usize].fetch_add(me(), Relaxed);
    })
    .unwrap();
    assert!(values(&out).iter().all(|&sum| sum == 127 * 128 / 2));
}

#[test]
fn launches_from_several_host_threads_and_from_rayon() {
    let expected = trace();
    std::thread::scope(|scope| {
        let traces: Vec<_> = (0..6).map(|_| scope.spawn(trace)).collect();
        traces.into_iter().for_each(|trace| assert_eq!(trace.join().unwrap(), expected));
    });
    rayon::scope(|scope| (0..6).for_each(|_| scope.spawn(|_| assert_eq!(trace(), expected))));
}

#[test]
fn a_kernel_may_launch() {
    let out = zeros(32);
    run([8, 1, 1], [32, 1, 1], 0, &|| {
        let (outer, inner) = (me(), zeros(64));
        run([4, 1, 1], [16, 1, 1], 0, &|| {
            inner[(16 * thread::block_index()[0] + me()) as usize].store(1, Relaxed);
        })
        .unwrap();
        assert_eq!((me(), values(&inner)), (outer, vec![1; 64]));
        block::sync();
        out[me() as usize].fetch_add(1, Relaxed);
    })
    .unwrap();
    assert_eq!(values(&out), [8; 32]);
}

/// Forks the process and runs `child` in the child process. Returns whether `child` returned true within 20
/// seconds.
#[cfg(unix)]
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: after a fork, the child process must not depend on other threads of the parent. It only runs
    // `child` and then exits with `_exit`. `child` may allocate memory, because glibc's allocator works after
    // a fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: the call of `_exit` only ends the child process. It does not run the exit handlers that the
        // child inherited from its parent.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut status = 0;
    // SAFETY: `pid` is a child of this process.
    while unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > deadline {
            // SAFETY: `pid` is a child of this process that still runs.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[cfg(unix)]
#[test]
fn a_forked_child_can_launch() {
    let expected = trace();
    assert!(in_child(|| trace() == expected), "the child hung or computed something else");
    let faults = || {
        fault(64, 0, &|| {
            if me() != 3 {
                block::sync()
            }
        })
        .thread
            == [0; 3]
    };
    assert!(in_child(faults), "the child did not report a fault");
    assert!(!in_child(|| false), "this test cannot fail");
    assert_eq!(trace(), expected, "the parent afterwards");
}

/// Environment variable that the test [`a_panic_hook_has_room_for_a_backtrace`] sets in the process that it
/// starts.
const HOOK_CHILD: &str = "OXIWARP_TEST_PANIC_HOOK";

/// Sets a panic hook, runs a kernel that panics, and prints the fault. The hook captures a backtrace and
/// copies it to a buffer of 40 KiB on the stack.
fn panic_under_a_hook() {
    std::panic::set_hook(Box::new(|_| {
        let backtrace = std::backtrace::Backtrace::force_capture().to_string();
        let mut buffer = [0_u8; 40 << 10];
        let len = backtrace.len().min(buffer.len());
        buffer[..len].copy_from_slice(&backtrace.as_bytes()[..len]);
        std::hint::black_box(&buffer);
    }));
    let fault = fault(64, 0, &|| assert!(me() != 3, "thread three gives up"));
    println!("fault: {:?}", fault.kind);
}

/// Checks that a panic hook has enough stack space. The hook runs on the coroutine stack of the GPU thread
/// that panicked.
///
/// The hook runs in another process for two reasons. A stack overflow would end this process, and a panic
/// hook would apply to all tests of this process.
#[test]
fn a_panic_hook_has_room_for_a_backtrace() {
    if std::env::var_os(HOOK_CHILD).is_some() {
        return panic_under_a_hook();
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "process::a_panic_hook_has_room_for_a_backtrace", "--nocapture"]);
    let output = child.env(HOOK_CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = "fault: Panic(\"thread three gives up\")";
    assert!(output.status.success() && said.contains(expected), "{}: {said}", output.status);
}

/// Checks that all launches complete if their running blocks together would need more stacks than Linux
/// allows.
///
/// Linux allows 65,530 memory mappings per process, and each stack takes two mappings. 64 workers with 1024
/// threads each would need 131,072 mappings at the same time.
#[test]
fn more_workers_than_stacks() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(64).build().unwrap();
    let sums = zeros(4 * 64);
    std::thread::scope(|scope| {
        for sums in sums.chunks(64) {
            let launch = move || {
                run([64, 1, 1], [1_024, 1, 1], 128, &|| {
                    let sum = block::sum(1.0, &mut SharedMemory::of_launch());
                    std::thread::yield_now();
                    block::sync();
                    sums[thread::block_index()[0] as usize].store(sum as u32, Relaxed);
                })
                .unwrap();
            };
            let pool = &pool;
            scope.spawn(move || pool.install(launch));
        }
    });
    assert_eq!(values(&sums), [1_024; 4 * 64]);
}
