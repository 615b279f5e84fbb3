//! Indices of a thread in its block and in the grid, and the launch bounds of a kernel.
use crate::arch;

/// Returns the thread's index in its block, `[x, y, z]`.
#[inline(always)]
pub fn index() -> [u32; 3] {
    arch::thread_idx()
}

/// Returns the block's index in the grid, `[x, y, z]`.
#[inline(always)]
pub fn block_index() -> [u32; 3] {
    arch::block_idx()
}

/// Returns the number of threads per block, `[x, y, z]`.
#[inline(always)]
pub fn block_dim() -> [u32; 3] {
    arch::block_dim()
}

/// Returns the number of blocks in the grid, `[x, y, z]`.
#[inline(always)]
pub fn grid_dim() -> [u32; 3] {
    arch::grid_dim()
}

/// Returns the thread's linear index in its block. The x dimension varies fastest.
#[inline(always)]
pub fn linear_index() -> u32 {
    let ([x, y, z], [dim_x, dim_y, _]) = (index(), block_dim());
    x + dim_x * (y + dim_y * z)
}

/// Returns the thread's index in the whole grid along x: `blockIdx.x * blockDim.x + threadIdx.x`.
#[inline(always)]
pub fn global_index() -> u64 {
    u64::from(block_index()[0]) * u64::from(block_dim()[0]) + u64::from(index()[0])
}

/// Returns the two numbers unchanged. The compiler cannot see how the results were computed (an optimization
/// barrier).
///
/// Call the function in a loop to save registers. A value that depends on the results is then recomputed in
/// each iteration. Without the optimization barrier, the compiler could keep this value in a register during
/// the whole loop.
#[inline(always)]
pub fn opaque([a, b]: [u32; 2]) -> [u32; 2] {
    arch::opaque([a, b])
}

/// Returns `address` unchanged. The compiler cannot see how the result was computed, as with [`opaque`] for
/// numbers.
#[inline(always)]
pub fn opaque_address<T>(address: *const T) -> *const T {
    arch::opaque_address(address as u64) as *const T
}

/// Waits until earlier launches of the stream have finished and their writes are visible
/// (`griddepcontrol.wait`).
///
/// With programmatic dependent launch, a kernel can start while earlier launches still run. `first` is the
/// address of the thread's first access to global memory. The thread computes this address before it waits,
/// so that the computation overlaps with the earlier launches.
///
/// Each thread must call the function once before it accesses global memory. A thread that accesses no global
/// memory need not call the function. The CPU executor reports an access before the call, unless the thread
/// waited at a barrier or a shuffle between the access and the call. The function does nothing on GPUs before
/// sm_90. A kernel without this call starts only after the earlier launches have finished.
#[inline(always)]
#[track_caller]
pub fn wait_for_earlier_launches<T>(first: *const T) {
    arch::wait_for_earlier_launches(first as u64);
}

/// Declares at most `MAX_THREADS` threads per block and at least `MIN_BLOCKS` resident blocks per SM.
///
/// A kernel calls this function in its first line. ptxas then limits the registers per thread, so that
/// `MIN_BLOCKS` blocks of `MAX_THREADS` threads fit on an SM. Rust has no attribute for launch bounds. In PTX
/// code, the function therefore emits a comment. The crate `cuda_builder` converts this comment into the
/// directives `.maxntid` and `.minnctapersm`. The CPU executor rejects blocks of more than `MAX_THREADS`
/// threads, as the CUDA driver does.
#[inline(always)]
pub fn launch_bounds<const MAX_THREADS: u32, const MIN_BLOCKS: u32>() {
    arch::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
}

/// Declares [`launch_bounds`] with a different minimum number of blocks per SM for each GPU generation.
///
/// The minimum is `TURING` on GPUs before sm_80, `AMPERE` from sm_80 to sm_89, and `HOPPER` from sm_90 on.
/// The minimum may depend on the generation, because the maximum number of resident threads per SM depends on
/// the generation. For example, a Turing SM can have half as many resident threads as an sm_80 SM.
#[inline(always)]
pub fn launch_bounds_by_generation<
    const MAX_THREADS: u32,
    const TURING: u32,
    const AMPERE: u32,
    const HOPPER: u32,
>() {
    if cfg!(target_feature = "sm_90") {
        launch_bounds::<MAX_THREADS, HOPPER>();
    } else if cfg!(target_feature = "sm_80") {
        launch_bounds::<MAX_THREADS, AMPERE>();
    } else {
        launch_bounds::<MAX_THREADS, TURING>();
    }
}
