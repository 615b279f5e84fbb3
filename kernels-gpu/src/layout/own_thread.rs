//! Reads the thread index without keeping it in a register.

/// Returns the thread index. An optimization barrier makes the compiler read the index from the special
/// register `%tid.x` at each call. Without the barrier, values that the caller computes from the index would
/// occupy registers throughout the loop over tiles.
#[inline(always)]
pub(crate) fn own_thread() -> u32 {
    let [thread, _] = cuda_std::thread::opaque([cuda_std::thread::index()[0], 0]);
    thread
}
