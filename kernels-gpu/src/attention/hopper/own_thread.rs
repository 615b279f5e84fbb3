//! Reads the thread index without keeping it in a register.

/// Returns the thread index. The optimization barrier makes the compiler read the index at each call.
/// Otherwise the index, or values computed from it, would occupy registers in the whole loop over tiles.
#[inline(always)]
pub(super) fn own_thread() -> u32 {
    let [thread, _] = cuda_std::thread::opaque([cuda_std::thread::index()[0], 0]);
    thread
}
