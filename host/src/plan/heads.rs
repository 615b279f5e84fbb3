//! Which kernel takes queries and keys, in blocks of what size: the fastest first. Sizes were chosen on an H200
//! (`benches/results`).
use kernels_gpu::heads::block_registers::{TEAM, TILE};
use kernels_gpu::heads::rope::Rotary;
use kernels_gpu::heads::warp::{Params, Side, side_by_side};
use kernels_gpu::heads::warp_own_angles;

use super::head_launch::Checked;
use crate::device::launch::{GRANTED_BYTES, Launch, MOST_BESIDE};

/// The kernels of an op.
pub(crate) struct Kernels {
    /// Of heads of 64 and of 128 columns whose halves are in one lane.
    pub halves: Option<HalvesKernels>,
    /// Of heads of 128 columns with angles of their own, which are read once for queries and keys.
    pub paired: Option<&'static str>,
    /// Of rows in registers, the shortest first.
    pub held: &'static [HeldKernel],
    /// Of heads of any length whose angles are read once for queries and keys.
    pub turned: Option<&'static str>,
    /// Those of heads in lanes, the shortest first.
    pub lanes: &'static [LanesKernel],
    pub rows: &'static str,
    pub any: &'static str,
    /// Threads that share a row in `rows`.
    pub team: u32,
    /// Does a row wait in shared memory between two passes?
    pub stages: bool,
}

/// The kernels of heads in halves.
pub(crate) struct HalvesKernels {
    /// Of 64 columns, if the norm is summed so in them, and of 128.
    pub names: [Option<&'static str>; 2],
    /// Heads that a lane has parts of at a time.
    pub together: u32,
    /// Columns of a warp's share, at least, where there are tokens enough.
    pub least: u32,
}

/// A kernel of rows in registers.
pub(crate) struct HeldKernel {
    pub name: &'static str,
    /// Tiles of the longest row.
    pub tiles: u32,
}

/// A kernel of heads in lanes.
pub(crate) struct LanesKernel {
    pub name: &'static str,
    /// The most columns of a head.
    pub dim: i64,
    /// Heads that a lane has parts of at a time.
    pub together: u32,
}

/// So many warps fill a large GPU several times.
const WARPS: u32 = 16 << 10;
/// So many blocks do, too.
const BLOCKS: u32 = 1 << 10;
/// Warps of a block of heads in halves.
const BLOCK_WARPS: u32 = 8;
/// Of the shared memory a block's reductions take this much at most: three numbers for each of four warps, twice.
const FOLD_BYTES: u32 = 2 * 3 * 4 * 4;

/// A launch of a kernel.
pub(crate) struct Plan {
    pub kernel: &'static str,
    pub p: Params,
    /// In x; y and z are of a grid of tokens.
    pub blocks: u64,
    beside: [u32; 2],
    block: [u32; 3],
    shared_bytes: u32,
}

impl Plan {
    /// Its shape, with `blocks` in x.
    pub fn shape(&self, blocks: u32) -> Launch {
        let [y, z] = self.beside;
        Launch { grid: [blocks, y, z], block: self.block, shared_bytes: self.shared_bytes, carveout: None }
    }
}

impl Checked {
    /// The first of `kernels` that takes these heads.
    pub fn plan(&self, kernels: &Kernels, p: Params) -> Plan {
        let plans = [Self::halves, Self::paired, Self::held, Self::turned, Self::lanes];
        let mut able = plans.iter().filter_map(|plan| plan(self, kernels, p));
        able.nth(self.choice.passed_over).unwrap_or_else(|| self.rows(kernels, p))
    }

    /// Among how many warps the heads of all tokens are shared out at least, if there are so many.
    fn warps(&self) -> u32 {
        self.choice.shares.unwrap_or(WARPS)
    }

    /// Warps of a block.
    fn of_block(&self, warps: u32) -> u32 {
        self.choice.threads.map_or(warps, |threads| threads / 32)
    }

    /// The sides that are there.
    fn present(&self) -> impl Iterator<Item = &Side> {
        self.sides.iter().filter(|side| side.heads > 0)
    }

    /// Is each head normalised alone, or not at all?
    fn apart(&self) -> bool {
        self.present().all(|side| i64::from(side.cols) == self.extent[2])
    }

    /// Are all columns rotated by tables, or none? And are there few enough batches for a grid of tokens?
    fn plain(&self) -> bool {
        let Rotary { dim, angles, .. } = self.rotary;
        let whole = dim == 0 || i64::from(dim) == self.extent[2] && angles <= Rotary::COMPLEX;
        self.quads && whole && self.extent[0] <= i64::from(MOST_BESIDE)
    }

    /// Are pairs neighbours, if there are any?
    fn neighbours(&self) -> bool {
        self.plain() && (self.rotary.halves == 0 || self.rotary.dim == 0)
    }

    /// Can eight columns be accessed 16 bytes at a time?
    fn octets(&self) -> bool {
        let size = self.dtype.size();
        self.extent[2] % 8 == 0 && self.present().all(|side| side.x.is_octets(size) && side.y.is_octets(size))
    }

    /// A plan for a grid of tokens.
    fn of_tokens(
        &self,
        kernel: &'static str,
        p: Params,
        blocks: u32,
        block: [u32; 3],
        shared_bytes: u32,
    ) -> Plan {
        let beside = [blocks, self.extent[0] as u32];
        Plan { kernel, p, blocks: self.extent[1] as u64, beside, block, shared_bytes }
    }

    fn halves(&self, kernels: &Kernels, p: Params) -> Option<Plan> {
        let HalvesKernels { names, together, least } = kernels.halves.as_ref()?;
        let kernel = match p.dim {
            64 => names[0]?,
            128 => names[1]?,
            _ => return None,
        };
        // Steps of four heads are numbers of 32 bits.
        let near = |side: &Side| [side.x, side.y].iter().all(|heads| heads.head_stride.abs() < 1 << 29);
        if !self.plain() || !self.apart() || self.rotary.by_head() || !self.present().all(near) {
            return None;
        }
        // A warp's angles and parameters are read once for its share, which is larger the more tokens there are.
        let batch = together * (256 / p.dim);
        let most = self.present().map(|side| side.heads).max().unwrap_or(0);
        let parts = (self.warps() / p.rows.max(1).saturating_mul(2))
            .max(most * p.dim / least)
            .clamp(1, most.div_ceil(batch).max(1));
        let share = most.div_ceil(parts).next_multiple_of(batch);
        let shares = self.sides.map(|side| side.heads.div_ceil(share));
        let warps = shares[0] + shares[1];
        let blocks = warps.div_ceil(self.of_block(BLOCK_WARPS));
        let block = [32, warps.div_ceil(blocks.max(1)), 1];
        let plan = self.of_tokens(kernel, Params { share, shares, ..p }, blocks, block, 0);
        (warps > 0 && blocks <= MOST_BESIDE).then_some(plan)
    }

    fn paired(&self, kernels: &Kernels, p: Params) -> Option<Plan> {
        let warps = self.present().map(|side| side.heads).max()?.div_ceil(warp_own_angles::BESIDE);
        let blocks = warps.div_ceil(self.of_block(BLOCK_WARPS));
        let block = [32, warps.div_ceil(blocks.max(1)), 1];
        let plan = self.of_tokens(kernels.paired?, p, blocks, block, 0);
        let takes = p.dim == warp_own_angles::DIM && self.plain() && self.apart() && self.rotary.by_head();
        (takes && blocks <= MOST_BESIDE).then_some(plan)
    }

    fn held(&self, kernels: &Kernels, p: Params) -> Option<Plan> {
        let cols = self.present().map(|side| side.cols).max()?;
        let HeldKernel { name, .. } = kernels.held.iter().find(|kernel| cols <= kernel.tiles * TILE)?;
        let one_row = self.present().all(|side| side.cols == side.heads * p.dim && side.cols % 8 == 0);
        // Columns a tile apart have the same angles, or the row is one head.
        let repeats = TILE.is_multiple_of(p.dim) && !self.rotary.by_head();
        let one_head = p.dim > TILE && self.apart();
        if !self.neighbours() || !self.octets() || !one_row || self.rotary.dim != 0 && !repeats && !one_head {
            return None;
        }
        let shares = self.sides.map(|side| side.heads.min(1));
        let teams = shares[0] + shares[1];
        Some(self.of_tokens(name, Params { shares, ..p }, 1, [TEAM, teams, 1], FOLD_BYTES))
    }

    fn turned(&self, kernels: &Kernels, p: Params) -> Option<Plan> {
        let quads = (self.present().map(|side| side.heads).max()? * p.dim / 4).max(1);
        let blocks = quads.div_ceil(512);
        let threads = quads.div_ceil(blocks).next_multiple_of(32);
        // Large blocks read more in a row; so many of them fill a large GPU several times.
        let together = (p.rows / BLOCKS).clamp(1, 1_024 / threads);
        let plan = self.of_tokens(kernels.turned?, p, blocks, [threads, together, 1], 0);
        let plan = Plan { blocks: plan.blocks.div_ceil(u64::from(together)), ..plan };
        (self.neighbours() && blocks <= MOST_BESIDE).then_some(plan)
    }

    fn lanes(&self, kernels: &Kernels, mut p: Params) -> Option<Plan> {
        let [q, k] = self.sides;
        let takes = |kernel: &&LanesKernel| i64::from(p.dim) <= kernel.dim && self.quads && self.apart();
        let lanes = kernels.lanes.iter().find(takes)?;
        // A warp works on so many heads of a token at a time.
        let batch = side_by_side(p.dim) * if self.rotary.by_head() { 1 } else { lanes.together };
        let batches = q.heads.max(k.heads).div_ceil(batch).max(1);
        // Its angles and parameters are read once for its share, which is larger the more tokens there are.
        let parts = (self.warps() / p.rows.max(1).saturating_mul(2)).clamp(1, batches);
        p.share = batch * batches.div_ceil(parts);
        p.shares = [q.heads, k.heads].map(|heads| heads.div_ceil(p.share));
        let shares = p.shares[0] + p.shares[1];
        let warps = shares.clamp(1, self.of_block(4));
        p.blocks = shares.div_ceil(warps).max(1);
        let blocks = u64::from(p.rows) * u64::from(shares.div_ceil(warps));
        Some(Plan { kernel: lanes.name, p, blocks, beside: [1, 1], block: [32, warps, 1], shared_bytes: 0 })
    }

    fn rows(&self, kernels: &Kernels, mut p: Params) -> Plan {
        let row_heads = |side: Side| i64::from(side.heads) * self.extent[2] / i64::from(side.cols);
        p.shares = self.sides.map(|side| row_heads(side) as u32);
        let (team, teams) = (kernels.team, if kernels.team == 128 { 2 } else { 4 });
        let tile_bytes = teams * team * 4 * self.dtype.size() as u32;
        if kernels.stages {
            let cols = self.sides[0].cols.max(self.sides[1].cols);
            p.staged = cols.div_ceil(4 * team).min((GRANTED_BYTES - FOLD_BYTES) / tile_bytes);
        }
        let list = u64::from(p.shares[0] + p.shares[1]);
        Plan {
            kernel: if self.quads { kernels.rows } else { kernels.any },
            p,
            blocks: (u64::from(p.rows) * list).div_ceil(u64::from(teams)),
            beside: [1, 1],
            block: [team, teams, 1],
            shared_bytes: p.staged * tile_bytes + FOLD_BYTES,
        }
    }
}
