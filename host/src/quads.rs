//! Launches of the kernels that read rows in quads: threads, shared memory, parameters.
use std::ffi::c_void;

use cuda_std::quad::{GROUP, QUADS, SCALAR, TILE, WHOLE};
use kernels_gpu::passes::Params;

use crate::ladder::{Rung, rung};
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
const TEAM: u32 = 32;
/// Rows of a block, if shared memory has room for them: no row waits for another, so more would only coarsen the tail.
const TEAMS: u32 = 4;
/// The share of a multiprocessor's memory for rows that wait, in percent: what is left is L1, in which scales and shifts
/// stay. With all of it, rows of 5120 columns left no L1 for them, and each row read them from L2.
const CARVEOUT: u32 = 57;
/// Shared memory that every GPU grants without being asked for more.
const SHARED_BYTES: u32 = 48 << 10;

/// How a kernel over quads is launched, and its parameters.
pub(crate) struct QuadLaunch {
    pub params: Params,
    rung: Rung,
    shared_bytes: u32,
}

impl QuadLaunch {
    /// For the rows of `layout`, which wait in shared memory between the passes if there is room.
    pub fn of<const N: usize>(
        op: &'static str,
        layout: &RowLayout<N>,
        eps: f32,
        form: u32,
        round_each: bool,
    ) -> Result<Self> {
        if eps.is_nan() || eps < 0.0 {
            return Err(Error::Value { op, arg: "eps", got: eps.into(), expected: "0 or more" });
        }
        let row_bytes = layout.cols.div_ceil(TILE) * TILE * layout.dtype.size() as u32;
        let fits = |teams: &u32| u64::from(row_bytes) * u64::from(*teams) <= u64::from(SHARED_BYTES);
        let teams = [TEAMS, TEAMS / 2, 1].into_iter().find(fits);
        let staged = teams.map_or(0, |_| layout.cols.div_ceil(TILE));
        let access = match () {
            () if staged > 0 && layout.vector && layout.quads && layout.cols.is_multiple_of(GROUP) => WHOLE,
            () if layout.quads => QUADS,
            () => SCALAR,
        };
        let teams = teams.unwrap_or(TEAMS);
        let params = Params {
            rows: layout.rows,
            inner: layout.inner,
            cols: layout.cols,
            inv_cols: 1.0 / layout.cols as f32,
            eps,
            staged,
            form,
            round_each: u32::from(round_each),
            access,
            packs: u32::from(layout.vector),
        };
        let rung = rung(u32::MAX, 0, TEAM, TEAM * teams);
        Ok(Self { params, rung, shared_bytes: if staged > 0 { row_bytes * teams } else { 0 } })
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
        let shared = (self.shared_bytes, Some(CARVEOUT));
        // SAFETY: as the caller promises.
        unsafe { launch_rows_with(op, device, kernel, self.rung, shared, layout, stream, args) }
    }
}
