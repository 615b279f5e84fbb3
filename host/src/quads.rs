//! Launches of the kernels that read rows in quads: threads, shared memory, parameters.
use std::ffi::c_void;

use cuda_std::quad::{QUADS, SCALAR, TEAM, TILE, WHOLE};
use kernels_gpu::params::Params;

use crate::ladder::Rung;
use crate::rows::{RowLayout, launch_rows_with};
use crate::{Device, Error, Result, Stream};

/// Which norm a row gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Norm {
    /// `(x - mean) / sqrt(variance + eps)`.
    #[default]
    Layer,
    /// `x / sqrt(mean of squares + eps)`.
    Rms,
}

/// Threads of a row: torch's order of the sums is that of a warp.
const TEAM_THREADS: u32 = 32;
/// Rows of a block, if shared memory has room for them: no row waits for another, so more would only coarsen the tail.
const TEAMS: u32 = 4;
/// The share of a multiprocessor's memory for rows that wait, in percent: what is left is L1, in which scales and shifts
/// stay. With all of it, rows of 5120 columns left no L1 for them, and each row read them from L2.
const CARVEOUT: u32 = 57;
/// The same where blocks share their rows, of which fewer wait: what was fastest at 2048, 3072 and 5120 columns.
const CARVEOUT_OF_BLOCKS: u32 = 44;
/// Shared memory that every GPU grants without being asked for more.
const SHARED_BYTES: u32 = 48 << 10;

/// What a kernel over quads wants of its launch.
#[derive(Clone, Copy)]
pub(crate) struct Wants {
    /// Added to the variance, or to the mean of squares.
    pub eps: f32,
    /// One of the forms of [`Params`].
    pub form: u32,
    /// See [`Params::round_each`].
    pub round_each: bool,
    /// Rows that wait together for one row's result.
    pub waiting: u32,
    /// Is there a kernel for rows that a block shares?
    pub shares: bool,
}

/// How a kernel over quads is launched, and its parameters.
pub(crate) struct QuadLaunch {
    pub params: Params,
    rung: Rung,
    shared_bytes: u32,
}

impl QuadLaunch {
    /// For the rows of `layout`, which wait in shared memory between the passes if there is room.
    pub fn of<const N: usize>(op: &'static str, layout: &RowLayout<N>, wants: Wants) -> Result<Self> {
        let Wants { eps, form, .. } = wants;
        if eps.is_nan() || eps < 0.0 {
            return Err(Error::Value { op, arg: "eps", got: eps.into(), expected: "0 or more" });
        }
        let row_bytes = u64::from(layout.cols.next_multiple_of(TILE))
            * u64::from(wants.waiting)
            * layout.dtype.size() as u64;
        let meeting = if wants.shares { 4 * Params::SHARING } else { 0 };
        let fits =
            |teams: &u32| row_bytes * u64::from(*teams) + u64::from(meeting) <= u64::from(SHARED_BYTES);
        let teams = [TEAMS, TEAMS / 2, 1].into_iter().find(fits);
        let staged = teams.map_or(0, |_| layout.cols.div_ceil(TILE));
        let tiled = layout.cols.is_multiple_of(TILE) && layout.cols >= 4 * TILE;
        let access = match () {
            () if staged > 0 && layout.vector && layout.quads && tiled && form != Params::ANY => {
                if wants.shares && gains_by_sharing(layout) { TEAM } else { WHOLE }
            }
            () if layout.quads => QUADS,
            () => SCALAR,
        };
        let params = Params {
            rows: layout.rows,
            inner: layout.inner,
            cols: layout.cols,
            inv_cols: 1.0 / layout.cols as f32,
            eps,
            staged,
            form,
            round_each: u32::from(wants.round_each),
            access,
            packs: u32::from(layout.vector),
        };
        let rows_bytes = if staged > 0 { row_bytes as u32 } else { 0 };
        let (team, teams) =
            if access == TEAM { (Params::SHARING, 1) } else { (TEAM_THREADS, teams.unwrap_or(TEAMS)) };
        let shared_bytes = rows_bytes * teams + if access == TEAM { meeting } else { 0 };
        Ok(Self { params, rung: Rung { packs: u32::MAX, held: 0, team, teams, cluster: 0 }, shared_bytes })
    }

    /// Which of an op's kernels it is: for any layout, for rows of whole tiles, for those that a block shares.
    pub fn kernel(&self, kernels: &[&'static str]) -> &'static str {
        kernels[match self.params.access {
            TEAM => 2,
            WHOLE => 1,
            _ => 0,
        }]
    }

    /// Launches.
    ///
    /// # Safety
    /// As [`Device::launch`].
    pub unsafe fn launch<const N: usize, const ARGS: usize>(
        &self,
        op: &'static str,
        device: &Device,
        kernel: &'static str,
        layout: &RowLayout<N>,
        stream: Stream,
        args: [*const c_void; ARGS],
    ) -> Result<()> {
        let carveout = if self.params.access == TEAM { CARVEOUT_OF_BLOCKS } else { CARVEOUT };
        let shared = (self.shared_bytes, Some(carveout));
        // SAFETY: as the caller promises.
        unsafe { launch_rows_with(op, device, kernel, self.rung, shared, layout, stream, args) }
    }
}

/// Is a row done sooner by a block than a block's rows by its warps? On an H200 where rows are long, or of 2048 columns and
/// more but so few that the time is that of the last ones; otherwise what a warp does once for its row weighs more.
fn gains_by_sharing<const N: usize>(layout: &RowLayout<N>) -> bool {
    layout.cols >= 4096 || layout.cols >= 2048 && layout.rows <= 1 << 14
}
