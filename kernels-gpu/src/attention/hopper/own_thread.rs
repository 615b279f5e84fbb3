//! The thread's own index.

/// The thread's index, read where it is asked for: registers are few, and one that holds it, or what is made
/// of it, over all tiles is one too many.
#[inline(always)]
pub(super) fn own_thread() -> u32 {
    let [thread, _] = cuda_std::thread::opaque([cuda_std::thread::index()[0], 0]);
    thread
}
