//! Launches of the kernels on queries and keys.
use kernels_gpu::head_lanes::{Params, Side, side_by_side};
use kernels_gpu::head_norm::Normed;
use kernels_gpu::rotary::Rotary;

use crate::heads::{ABSENT, Extent, Heads, NAMES, Shape, disjoint, side};
use crate::launch::{Launch, args};
use crate::{Device, Dtype, Error, Result, Rope, Stream};

/// A launch that was checked.
pub(crate) struct Checked {
    pub sides: [Side; 2],
    pub rotary: Rotary,
    pub quads: bool,
    pub dtype: Dtype,
    extent: [i64; 3],
}

impl Checked {
    /// Checks queries, keys and rotation.
    pub fn of(
        op: &'static str,
        device: &Device,
        tensors: [Option<&Heads>; 2],
        rope: Option<&Rope>,
        shape: &Shape,
    ) -> Result<Self> {
        let mut quads = true;
        let mut sides = [ABSENT; 2];
        let mut first: Option<([i64; 4], Dtype)> = None;
        let mut heads = 1;
        for (i, tensor) in tensors.iter().enumerate() {
            let (Some(tensor), names) = (tensor, &NAMES[i]) else { continue };
            let ([batches, tokens, own, dim], side) = side(op, device, tensor, names, shape, &mut quads)?;
            sides[i] = side;
            let ([b, s, _, d], dtype) = *first.get_or_insert(([batches, tokens, own, dim], tensor.x.dtype()));
            tensor.x.expect_dtype(op, names.x, dtype)?;
            if [b, s, d] != [batches, tokens, dim] {
                let expected = format!("the batches, tokens and columns of q: [{b}, {s}, .., {d}]");
                return Err(Error::Shape { op, arg: names.x, got: tensor.x.shape().to_vec(), expected });
            }
            heads = if i == 0 || heads == own || tensors[0].is_none() { own } else { 1 };
        }
        let Some(([batches, tokens, _, dim], dtype)) = first else {
            return Err(Error::Shape { op, arg: "q", got: vec![], expected: "q, k or both".into() });
        };
        let extent = Extent { batches, tokens, heads, dim, dtype, order: shape.order };
        quads &= dim % 4 == 0;
        let rotary = rope.map_or(Ok(Rotary::NONE), |rope| rope.check(op, device, &extent, &mut quads))?;
        disjoint(op, tensors, rope)?;
        Ok(Self { sides, rotary, quads, dtype, extent: [batches, tokens, dim] })
    }

    /// Launches a kernel of `head_lanes` where one takes these heads.
    pub fn launch(
        &self,
        op: &'static str,
        device: &Device,
        kernels: &Kernels,
        norm: Normed,
        stream: Stream,
    ) -> Result<()> {
        let [batches, tokens, dim] = self.extent;
        let (rows, [q, k], rotary) = (batches * tokens, self.sides, self.rotary);
        let heads = rows.saturating_mul(i64::from(q.heads + k.heads));
        if heads.max(rows) > i64::from(u32::MAX) {
            let expected = "fewer than 2^32 heads of all tokens";
            return Err(Error::Value { op, arg: "q", got: heads as f64, expected });
        }
        let apart = [q, k].iter().all(|side| side.heads == 0 || i64::from(side.cols) == dim);
        let mut p = Params {
            rows: rows as u32,
            tokens: tokens.max(1) as u32,
            dim: dim as u32,
            norm,
            share: 0,
            shares: [0; 2],
            blocks: 0,
            staged: 0,
        };
        let lanes = kernels.lanes.iter().find(|kernel| dim <= kernel.dim).filter(|_| self.quads && apart);
        let (kernel, block, blocks, shared_bytes) = if let Some(lanes) = lanes {
            // A warp works on so many heads of a token at a time.
            let batch = side_by_side(p.dim) * if self.rotary.by_head() { 1 } else { lanes.together };
            let batches = q.heads.max(k.heads).div_ceil(batch);
            // Its angles and parameters are read once for its share, which is larger the more tokens there are.
            let parts = (WARPS / (2 * rows.max(1))).clamp(1, i64::from(batches.max(1))) as u32;
            p.share = batch * batches.div_ceil(parts).max(1);
            p.shares = [q.heads, k.heads].map(|heads| heads.div_ceil(p.share));
            let shares = p.shares[0] + p.shares[1];
            let warps = shares.clamp(1, 4);
            p.blocks = shares.div_ceil(warps).max(1);
            (lanes.name, [32, warps, 1], rows as u64 * u64::from(shares.div_ceil(warps)), 0)
        } else {
            p.shares = [q, k].map(|side| (i64::from(side.heads) * dim / i64::from(side.cols)) as u32);
            let (team, teams) = (kernels.team, if kernels.team == 128 { 2 } else { 4 });
            let tile_bytes = teams * team * 4 * self.dtype.size() as u32;
            let room = SHARED_BYTES - FOLD_BYTES;
            p.staged =
                if kernels.stages { q.cols.max(k.cols).div_ceil(4 * team).min(room / tile_bytes) } else { 0 };
            let list = u64::from(p.shares[0] + p.shares[1]);
            let blocks = (rows as u64 * list).div_ceil(u64::from(teams));
            let kernel = if self.quads { kernels.rows } else { kernels.any };
            (kernel, [team, teams, 1], blocks, p.staged * tile_bytes + FOLD_BYTES)
        };
        let Ok(blocks) = i32::try_from(blocks) else {
            let expected = "at most 2^31 - 1 blocks of heads";
            return Err(Error::Value { op, arg: "q", got: blocks as f64, expected });
        };
        if blocks == 0 {
            return Ok(());
        }
        let shape = Launch { grid: [blocks as u32, 1, 1], block, shared_bytes, carveout: None };
        // SAFETY: the views were checked to be what the kernel's arguments mean.
        unsafe { device.launch(kernel, self.dtype, shape, stream, args![q, k, rotary, p]) }
    }
}

/// The kernels of an op.
pub(crate) struct Kernels {
    /// Those of heads in lanes, the shortest first.
    pub lanes: &'static [LanesKernel],
    pub rows: &'static str,
    pub any: &'static str,
    /// Threads that share a row in `rows`.
    pub team: u32,
    /// Does a row wait in shared memory between two passes?
    pub stages: bool,
}

/// A kernel of heads in lanes.
pub(crate) struct LanesKernel {
    pub name: &'static str,
    /// The most columns of a head.
    pub dim: i64,
    /// Heads that a lane has parts of.
    pub together: u32,
}

/// So many warps fill a large GPU several times.
const WARPS: i64 = 16 << 10;
/// Shared memory that every GPU grants without being asked for more.
const SHARED_BYTES: u32 = 48 << 10;
/// Of which a block's reductions take this much at most: three numbers for each of four warps, twice.
const FOLD_BYTES: u32 = 2 * 3 * 4 * 4;
