//! A launch: shape, arguments, stream.
use std::ffi::c_void;
use std::marker::PhantomData;

use crate::OwnedStream;

/// Shared memory that every GPU grants a block without being asked for more.
pub(crate) const GRANTED_BYTES: u32 = 48 << 10;
/// The most blocks of a grid in y, and in z.
pub(crate) const MOST_BESIDE: u32 = 65_535;

/// Grid, block and shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads in a block: x, y, z.
    pub block: [u32; 3],
    /// Bytes of launch-sized shared memory; above 48 KiB the same in all launches of a kernel.
    pub shared_bytes: u32,
    /// The share of a multiprocessor's memory that should be shared memory, in percent, the rest being L1; without one the
    /// driver decides. The same in all launches of a kernel.
    pub carveout: Option<u32>,
}

impl Launch {
    /// So many blocks of so many threads, in x, y and z, without launch-sized shared memory.
    pub const fn of(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { grid, block, shared_bytes: 0, carveout: None }
    }
}

/// A CUDA stream, borrowed from who owns it; on the CPU there is only one, and a launch is done when it returns.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a>(pub(crate) *mut c_void, PhantomData<&'a OwnedStream>);

// SAFETY: a stream handle may be used from any thread; it is never dereferenced here.
unsafe impl Send for Stream<'_> {}
// SAFETY: as above.
unsafe impl Sync for Stream<'_> {}

impl Default for Stream<'_> {
    /// The legacy default stream of the device.
    fn default() -> Self {
        Self(std::ptr::null_mut(), PhantomData)
    }
}

impl Stream<'_> {
    /// A `CUstream` (or `cudaStream_t`) that somebody else owns.
    ///
    /// # Safety
    /// It is a stream of the device that it is used with, alive as long as this is and until the work given to it is done.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self(stream, PhantomData)
    }
}

/// The arguments of a kernel, as [`Kernels::launch`](crate::Kernels::launch) takes them: a pointer to each of these
/// variables, which have the types that the kernel declares.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$((&raw const $arg).cast::<std::ffi::c_void>()),*] };
}
pub(crate) use args;
