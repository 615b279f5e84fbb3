//! Launches of row ops such as `softmax`. A team (threads that share a row) processes each row.
use crate::launch::Rung;
use crate::library::LaunchSite;
use crate::operands::rows::RowLayout;
use crate::{Device, Error, Launch, Result, Stream};

/// Calls the function `launch` with a `LaunchSite` (device, stream, launch shape and element type). The
/// launch shape has a team (threads that share a row) for each row of `layout`. If there are no rows,
/// `launch` is not called. `carveout` is the shared memory carveout in percent.
pub(crate) fn launch_rows<const N: usize>(
    op: &'static str,
    device: &Device,
    Rung { threads_per_row, rows_per_block, cluster, .. }: Rung,
    carveout: Option<u32>,
    layout: &RowLayout<N>,
    stream: Stream,
    launch: impl FnOnce(LaunchSite) -> Result<()>,
) -> Result<()> {
    let blocks = layout.rows.div_ceil(u64::from(rows_per_block)) * u64::from(cluster.max(1));
    let Ok(blocks) = i32::try_from(blocks) else {
        let expected = "at most 2^31 - 1 blocks of them";
        return Err(Error::Value { op, arg: "rows", got: layout.rows as f64, expected });
    };
    if blocks == 0 {
        return Ok(());
    }
    let shape =
        Launch { carveout, ..Launch::of([blocks as u32, 1, 1], [threads_per_row, rows_per_block, 1]) };
    launch(LaunchSite::new(device, layout.dtype, shape, stream)?)
}
