//! Reads the thread index without keeping it in a register.

/// Returns the thread index. An optimization barrier makes the compiler read the index from the special
/// register `%tid.x` at each call. Without the barrier, values that callers compute from the index would
/// occupy registers throughout the main loop of a kernel.
#[inline(always)]
pub(crate) fn own_thread() -> u32 {
    let [thread, _] = cuda_std::thread::opaque([cuda_std::thread::index()[0], 0]);
    thread
}
