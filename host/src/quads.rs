//! Launches of the kernels that read rows in quads: threads, shared memory, parameters.
use std::ffi::c_void;

use kernels_gpu::passes::Params;

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

/// Threads of a block.
const BLOCK: u32 = 128;
/// Shared memory that every GPU grants without being asked for more.
const SHARED_BYTES: u32 = 48 << 10;
/// Of which a block's reductions take this much at most: three numbers for each of four warps, twice.
const FOLD_BYTES: u32 = 2 * 3 * 4 * 4;

/// How a kernel over quads is launched, and its parameters.
pub(crate) struct QuadLaunch {
    pub params: Params,
    rung: Rung,
    shared_bytes: u32,
}

impl QuadLaunch {
    /// For the rows of `layout`, `team` threads a row: 128 or 32, which torch's order of the sums decides.
    ///
    /// A row waits in shared memory between the passes; where several teams share a block, as many as have room for
    /// whole rows.
    pub fn of<const N: usize>(
        op: &'static str,
        layout: &RowLayout<N>,
        team: u32,
        eps: f32,
        round_each: bool,
    ) -> Result<Self> {
        if eps.is_nan() || eps < 0.0 {
            return Err(Error::Value { op, arg: "eps", got: eps.into(), expected: "0 or more" });
        }
        let tiles = layout.cols.div_ceil(4 * team);
        let tile_bytes = |teams: u32| teams * team * 4 * layout.dtype.size() as u32;
        let room = SHARED_BYTES - FOLD_BYTES;
        let most = BLOCK / team;
        let fits = |teams: &u32| u64::from(tiles) * u64::from(tile_bytes(*teams)) <= u64::from(room);
        let teams = [most, most.div_ceil(2), 1].into_iter().find(fits).unwrap_or(1);
        let staged = tiles.min(room / tile_bytes(teams));
        let params = Params {
            rows: layout.rows,
            inner: layout.inner,
            cols: layout.cols,
            inv_cols: 1.0 / layout.cols as f32,
            eps,
            staged,
            round_each: u32::from(round_each),
            vector: u32::from(layout.quads),
        };
        let rung = Rung { packs: u32::MAX, held: 0, team, teams };
        Ok(Self { params, rung, shared_bytes: staged * tile_bytes(teams) + FOLD_BYTES })
    }

    /// The same for a kernel of one pass, which keeps nothing.
    pub fn without_staging(mut self) -> Self {
        (self.params.staged, self.shared_bytes) = (0, 0);
        self
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
        // SAFETY: as the caller promises.
        unsafe { launch_rows_with(op, device, kernel, self.rung, self.shared_bytes, layout, stream, args) }
    }
}

impl Norm {
    /// Threads that share a row.
    pub(crate) fn team(self) -> u32 {
        match self {
            Self::Layer => 128,
            Self::Rms => 32,
        }
    }
}
