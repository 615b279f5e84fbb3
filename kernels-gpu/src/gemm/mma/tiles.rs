//! The bodies of the kernels, one per tile size.
use cuda_std::mma::MatrixElem;
use cuda_std::thread;

use super::kernel::multiply_tile;
use super::params::LinearParams;
use crate::gemm::epilogue::Epilogue;

/// Computes a tile of 128 rows and 128 columns.
///
/// # Safety
/// The requirements of [`multiply_tile`] apply.
#[inline(always)]
pub(crate) unsafe fn tile_128x128<T: MatrixElem, E: Epilogue>(p: &LinearParams, epilogue: E) {
    // A thread has 128 accumulators and 64 registers of MMA operands. These launch bounds permit up to 255
    // registers per thread.
    thread::launch_bounds::<128, 2>();
    // SAFETY: the caller satisfies the requirements.
    unsafe { multiply_tile::<T, E, 4, 4, 8, true, false>(p, epilogue) }
}

/// Computes a tile of 64 x 64.
///
/// # Safety
/// The requirements of [`multiply_tile`] apply.
#[inline(always)]
pub(crate) unsafe fn tile_64x64<T: MatrixElem, E: Epilogue, const VECTOR: bool>(
    p: &LinearParams,
    epilogue: E,
) {
    thread::launch_bounds::<128, 4>();
    // SAFETY: the caller satisfies the requirements.
    unsafe { multiply_tile::<T, E, 2, 2, 4, VECTOR, false>(p, epilogue) }
}

/// Computes a tile of 128 x 128 for an epilogue with two halves of 64 columns.
///
/// # Safety
/// The requirements of [`multiply_tile`] apply.
#[inline(always)]
pub(crate) unsafe fn halves_128x128<T: MatrixElem, E: Epilogue>(p: &LinearParams, epilogue: E) {
    thread::launch_bounds::<128, 2>();
    // SAFETY: the caller satisfies the requirements.
    unsafe { multiply_tile::<T, E, 4, 4, 4, true, true>(p, epilogue) }
}

/// Computes a tile of 64 x 128 for an epilogue with two halves of 64 columns.
///
/// # Safety
/// The requirements of [`multiply_tile`] apply.
#[inline(always)]
pub(crate) unsafe fn halves_64x128<T: MatrixElem, E: Epilogue, const VECTOR: bool>(
    p: &LinearParams,
    epilogue: E,
) {
    thread::launch_bounds::<128, 3>();
    // SAFETY: the caller satisfies the requirements.
    unsafe { multiply_tile::<T, E, 2, 4, 4, VECTOR, true>(p, epilogue) }
}
