//! Launches of row ops. One team of threads processes each row.
use std::ffi::c_void;

use crate::device::launch::{Launch, Rung};
use crate::operands::rows::RowLayout;
use crate::{Device, Error, Result, Stream};

/// Launches a kernel in which a team of threads processes each row. If there are no rows, nothing is
/// launched.
///
/// # Safety
/// See [`Device::launch`]: `args` must point to the arguments that the kernel expects.
pub(crate) unsafe fn launch_rows<const N: usize, const ARGS: usize>(
    op: &'static str,
    device: &Device,
    kernel: &'static str,
    rung: Rung,
    layout: &RowLayout<N>,
    stream: Stream,
    args: [*const c_void; ARGS],
) -> Result<()> {
    // If more than one warp shares a row, the warps reduce in shared memory. This takes two f32 per warp, the
    // maximum of all ops. In a cluster, the blocks also exchange their results there.
    let meet = rung.threads_per_row > 32 || rung.cluster > 0;
    let shared_bytes =
        if meet { (rung.threads_per_row * rung.rows_per_block / 32 + rung.cluster + 1) * 8 } else { 0 };
    // SAFETY: the caller passes the arguments that the kernel expects.
    unsafe { launch_rows_with(op, device, kernel, rung, (shared_bytes, None), layout, stream, args) }
}

/// Same as [`launch_rows`], but the caller chooses the bytes of shared memory and the carveout.
///
/// # Safety
/// See [`Device::launch`]: `args` must point to the arguments that the kernel expects.
pub(crate) unsafe fn launch_rows_with<const N: usize, const ARGS: usize>(
    op: &'static str,
    device: &Device,
    kernel: &'static str,
    Rung { threads_per_row, rows_per_block, cluster, .. }: Rung,
    (shared_bytes, carveout): (u32, Option<u32>),
    layout: &RowLayout<N>,
    stream: Stream,
    args: [*const c_void; ARGS],
) -> Result<()> {
    let blocks = layout.rows.div_ceil(u64::from(rows_per_block)) * u64::from(cluster.max(1));
    let Ok(blocks) = i32::try_from(blocks) else {
        let expected = "at most 2^31 - 1 blocks of them";
        return Err(Error::Value { op, arg: "rows", got: layout.rows as f64, expected });
    };
    if blocks == 0 {
        return Ok(());
    }
    let shape = Launch {
        grid: [blocks as u32, 1, 1],
        block: [threads_per_row, rows_per_block, 1],
        shared_bytes,
        carveout,
    };
    // SAFETY: the caller passes the arguments that the kernel expects.
    unsafe { device.launch(kernel, layout.dtype, shape, stream, args) }
}
