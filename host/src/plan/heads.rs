//! Launch plans for `rope` and `qk_norm_rope`, the ops on the heads of queries and keys.
//!
//! An op has several kernels, ordered from the fastest to the most general. A call of the op checks its
//! operands, and launches the first kernel that supports them. The block sizes were chosen on an H200
//! (`benches/results`).
use crate::launch::launch_override;
use kernels_gpu::heads::block_registers::{TEAM, TILE};
use kernels_gpu::heads::params::{
    HeadNormArg, HeadParams, HeadsOperand, Positions, REDUCE_BYTES, Rotary, side_by_side,
};
use kernels_gpu::heads::warp_own_angles;

use super::head_kernels::{BlockKernel, HalfSplitKernels, HeadKernels, HeadSplit, WarpKernel};
use crate::launch::LaunchOverride;
use crate::library::LaunchSite;
use crate::operands::heads::{ABSENT, Extent, Heads, NAMES, Shape, disjoint, operand};
use crate::{DEFAULT_SMEM_BYTES, Launch, MAX_GRID_YZ};
use crate::{Device, Dtype, Error, Result, Rope, Stream};

/// Default minimum number of warps per launch, chosen so that even a large GPU runs several waves of blocks.
const WARPS: u32 = 16 << 10;
/// Minimum number of blocks per launch for the kernel `rotated`, which rotates heads of any length without a
/// norm. The number is chosen so that even a large GPU runs several waves of blocks.
const BLOCKS: u32 = 1 << 10;
/// Number of warps per block for the kernels `halves` and `qk`, which process heads of 64 or 128 columns.
const BLOCK_WARPS: u32 = 8;
/// The checked operands of a call of `rope` or `qk_norm_rope`.
pub(crate) struct CheckedHeads {
    pub operands: [HeadsOperand; 2],
    pub rotary: Rotary,
    pub positions: Positions,
    /// Whether an output is its own input.
    pub in_place: bool,
    pub vec4s: bool,
    pub dtype: Dtype,
    /// Number of batches, tokens per batch, and columns per head.
    pub extent: [i64; 3],
    /// The launch override of the device (launch parameters set by the caller). If a field of the override is
    /// set, it replaces the default of this launch parameter, a constant in this file.
    pub over: LaunchOverride,
}

/// A kernel and its launch configuration.
struct HeadLaunch<K> {
    kernel: K,
    p: HeadParams,
    /// Size of the grid in x.
    blocks: u64,
    grid_yz: [u32; 2],
    block: [u32; 3],
}

impl<K> HeadLaunch<K> {
    /// Returns the launch configuration with `blocks` blocks in the x dimension of the grid.
    fn shape(&self, blocks: u32) -> Launch {
        let [y, z] = self.grid_yz;
        Launch::of([blocks, y, z], self.block)
    }
}

impl CheckedHeads {
    /// Checks the queries, the keys and the rotary embedding. Fails if a shape, dtype, stride or device does
    /// not match, or if an output overlaps an input. If `may_replace` is true, an output may be its own
    /// input.
    pub fn of(
        op: &'static str,
        device: &Device,
        tensors: [Option<&Heads>; 2],
        rope: Option<&Rope>,
        shape: &Shape,
        may_replace: bool,
    ) -> Result<Self> {
        let mut vec4s = true;
        let mut operands = [ABSENT; 2];
        let mut first: Option<([i64; 4], Dtype)> = None;
        let mut heads = 1;
        for (i, tensor) in tensors.iter().enumerate() {
            let (Some(tensor), names) = (tensor, &NAMES[i]) else { continue };
            let ([batches, tokens, own, dim], operand) =
                operand(op, device, tensor, names, shape, &mut vec4s)?;
            operands[i] = operand;
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
        vec4s &= dim % 4 == 0;
        let (rotary, positions) = match rope {
            Some(rope) => rope.check(op, device, &extent, &mut vec4s)?,
            None => (Rotary::NONE, Positions::NONE),
        };
        let in_place = disjoint(op, tensors, &rope.map_or([None; 3], Rope::operands), may_replace)?;
        Ok(Self {
            operands,
            rotary,
            positions,
            in_place,
            vec4s,
            dtype,
            extent: [batches, tokens, dim],
            over: launch_override(device),
        })
    }

    /// Launches the first kernel of the op that supports these queries and keys. `call` calls the launch
    /// function of the kernel.
    pub fn launch<K: Copy>(
        &self,
        op: &'static str,
        device: &Device,
        kernels: &HeadKernels<K>,
        norm: HeadNormArg,
        stream: Stream,
        call: impl FnOnce(K, LaunchSite, HeadParams) -> Result<()>,
    ) -> Result<()> {
        let [batches, tokens, dim] = self.extent;
        let (rows, [q, k]) = (batches * tokens, self.operands);
        let heads = rows.saturating_mul(i64::from(q.heads + k.heads));
        if heads.max(rows) > i64::from(u32::MAX) {
            let expected = "fewer than 2^32 heads of all tokens";
            return Err(Error::Value { op, arg: "q", got: heads as f64, expected });
        }
        if heads == 0 {
            return Ok(());
        }
        let (rows, tokens, dim) = (rows as u32, tokens as u32, dim as u32);
        let p = HeadParams {
            rows,
            tokens,
            dim,
            norm,
            heads_per_warp: 0,
            warp_tasks: [0; 2],
            blocks: 0,
            staged: 0,
        };
        let plan = self.plan(kernels, p);
        let Ok(blocks) = i32::try_from(plan.blocks) else {
            let expected = "at most 2^31 - 1 blocks of heads";
            return Err(Error::Value { op, arg: "q", got: plan.blocks as f64, expected });
        };
        let site = LaunchSite::new(device, self.dtype, plan.shape(blocks as u32), stream)?;
        call(plan.kernel, site, plan.p)
    }

    /// Returns the launch plan of the first kernel that supports these operands. With a launch override
    /// (launch parameters set by the caller), the first `skip` of the supporting kernels are skipped. Tests
    /// and the tool `tune` use such an override to run the other kernels.
    fn plan<K: Copy>(&self, kernels: &HeadKernels<K>, p: HeadParams) -> HeadLaunch<K> {
        let plans = [Self::halves, Self::qk, Self::block, Self::rotated, Self::warp];
        let mut able = plans.iter().filter_map(|plan| plan(self, kernels, p));
        able.nth(self.over.skip).unwrap_or_else(|| {
            let kernel = kernels.general[usize::from(!self.vec4s)];
            match kernels.split {
                HeadSplit::Rows { team, stages } => self.rows(kernel, team, stages, p),
                HeadSplit::Columns => self.columns(kernel, p),
            }
        })
    }

    /// Minimum number of warps among which a launch divides the heads of all tokens. If there are fewer heads
    /// than warps, the launch has fewer warps.
    fn warps(&self) -> u32 {
        self.over.parallelism.unwrap_or(WARPS)
    }

    /// Returns the number of warps per block that the launch override (launch parameters set by the caller)
    /// requests. If it requests none, returns `warps`.
    fn of_block(&self, warps: u32) -> u32 {
        self.over.threads.map_or(warps, |threads| threads / 32)
    }

    /// Returns the operands that are present: queries, keys or both.
    fn present(&self) -> impl Iterator<Item = &HeadsOperand> {
        self.operands.iter().filter(|operand| operand.heads > 0)
    }

    /// Returns true if each head is normalized separately, or if there is no norm. Returns false if all heads
    /// of a token are normalized together.
    fn apart(&self) -> bool {
        self.present().all(|operand| i64::from(operand.cols) == self.extent[2])
    }

    /// Returns whether the call can use the kernels that rotate all columns of a head. The call must either
    /// rotate all columns with angles from tables, or rotate no columns. The tensors must support access to
    /// four elements at a time. The number of batches must be at most [`MAX_GRID_YZ`], because it is the size
    /// of the grid in one dimension.
    fn plain(&self) -> bool {
        let Rotary { dim, angles, .. } = self.rotary;
        let whole = dim == 0 || i64::from(dim) == self.extent[2] && angles <= Rotary::COMPLEX;
        self.vec4s && whole && self.extent[0] <= i64::from(MAX_GRID_YZ)
    }

    /// Returns whether [`Self::plain`] is true and rotated pairs are adjacent columns (interleaved layout).
    fn interleaved_partners(&self) -> bool {
        self.plain() && (self.rotary.halves == 0 || self.rotary.dim == 0)
    }

    /// Returns whether kernels can access all query and key tensors eight columns at a time.
    fn vec8s(&self) -> bool {
        let size = self.dtype.size();
        self.extent[2] % 8 == 0
            && self.present().all(|operand| operand.x.is_vec8s(size) && operand.y.is_vec8s(size))
    }

    /// Returns a launch plan for a grid of size `[tokens, blocks, batches]`.
    fn of_tokens<K>(&self, kernel: K, p: HeadParams, blocks: u32, block: [u32; 3]) -> HeadLaunch<K> {
        let grid_yz = [blocks, self.extent[0] as u32];
        HeadLaunch { kernel, p, blocks: self.extent[1] as u64, grid_yz, block }
    }

    fn halves<K: Copy>(&self, kernels: &HeadKernels<K>, p: HeadParams) -> Option<HeadLaunch<K>> {
        let HalfSplitKernels { kernels, together, min_columns } = kernels.halves.as_ref()?;
        let kernel = match p.dim {
            64 => kernels[0]?,
            128 => kernels[1]?,
            _ => return None,
        };
        // The kernel stores four times the head stride as a signed 32-bit integer, which must not overflow.
        let near = |operand: &HeadsOperand| {
            [operand.x, operand.y].iter().all(|heads| heads.head_stride.abs() < 1 << 29)
        };
        if !self.plain() || !self.apart() || self.rotary.by_head() || !self.present().all(near) {
            return None;
        }
        // A warp reads angles, weights and biases once for all its heads, so many heads per warp save reads.
        // Assign many heads to a warp if there are so many tokens that the launch still has enough warps.
        let batch = together * (256 / p.dim);
        let max = self.present().map(|operand| operand.heads).max().unwrap_or(0);
        let parts = (self.warps() / p.rows.max(1).saturating_mul(2))
            .max(max * p.dim / min_columns)
            .clamp(1, max.div_ceil(batch).max(1));
        let heads_per_warp = max.div_ceil(parts).next_multiple_of(batch);
        let warp_tasks = self.operands.map(|operand| operand.heads.div_ceil(heads_per_warp));
        let warps = warp_tasks[0] + warp_tasks[1];
        let blocks = warps.div_ceil(self.of_block(BLOCK_WARPS));
        let block = [32, warps.div_ceil(blocks.max(1)), 1];
        let plan = self.of_tokens(kernel, HeadParams { heads_per_warp, warp_tasks, ..p }, blocks, block);
        (warps > 0 && blocks <= MAX_GRID_YZ).then_some(plan)
    }

    fn qk<K: Copy>(&self, kernels: &HeadKernels<K>, p: HeadParams) -> Option<HeadLaunch<K>> {
        let warps =
            self.present().map(|operand| operand.heads).max()?.div_ceil(warp_own_angles::HEADS_AT_ONCE);
        let blocks = warps.div_ceil(self.of_block(BLOCK_WARPS));
        let block = [32, warps.div_ceil(blocks.max(1)), 1];
        let plan = self.of_tokens(kernels.qk?, p, blocks, block);
        let takes = p.dim == warp_own_angles::DIM && self.plain() && self.apart() && self.rotary.by_head();
        (takes && blocks <= MAX_GRID_YZ).then_some(plan)
    }

    fn block<K: Copy>(&self, kernels: &HeadKernels<K>, p: HeadParams) -> Option<HeadLaunch<K>> {
        let cols = self.present().map(|operand| operand.cols).max()?;
        let BlockKernel { kernel, .. } = kernels.block.iter().find(|kernel| cols <= kernel.tiles * TILE)?;
        let one_row =
            self.present().all(|operand| operand.cols == operand.heads * p.dim && operand.cols % 8 == 0);
        // This kernel can rotate a row only in two cases. Either columns that are `TILE` columns apart use
        // the same angles, or the row is a single head of more than `TILE` columns.
        let repeats = TILE.is_multiple_of(p.dim) && !self.rotary.by_head();
        let one_head = p.dim > TILE && self.apart();
        if !self.interleaved_partners()
            || !self.vec8s()
            || !one_row
            || self.rotary.dim != 0 && !repeats && !one_head
        {
            return None;
        }
        let warp_tasks = self.operands.map(|operand| operand.heads.min(1));
        let teams = warp_tasks[0] + warp_tasks[1];
        Some(self.of_tokens(*kernel, HeadParams { warp_tasks, ..p }, 1, [TEAM, teams, 1]))
    }

    fn rotated<K: Copy>(&self, kernels: &HeadKernels<K>, p: HeadParams) -> Option<HeadLaunch<K>> {
        let heads = self.present().map(|operand| operand.heads).max()?;
        let [blocks, threads, together] = self.blocks_of_columns(heads, 4, p);
        let plan = self.of_tokens(kernels.rotated?, p, blocks, [threads, together, 1]);
        let plan = HeadLaunch { blocks: plan.blocks.div_ceil(u64::from(together)), ..plan };
        (self.interleaved_partners() && blocks <= MAX_GRID_YZ).then_some(plan)
    }

    fn warp<K: Copy>(&self, kernels: &HeadKernels<K>, mut p: HeadParams) -> Option<HeadLaunch<K>> {
        let [q, k] = self.operands;
        let takes = |kernel: &&WarpKernel<K>| i64::from(p.dim) <= kernel.dim && self.vec4s && self.apart();
        let warp = kernels.warp.iter().find(takes)?;
        // Number of heads of one token that a warp processes at the same time.
        let batch = side_by_side(p.dim) * if self.rotary.by_head() { 1 } else { warp.together };
        let batches = q.heads.max(k.heads).div_ceil(batch).max(1);
        // A warp reads angles, weights and biases once for all its heads, so many heads per warp save reads.
        // Assign many heads to a warp if there are so many tokens that the launch still has enough warps.
        let parts = (self.warps() / p.rows.max(1).saturating_mul(2)).clamp(1, batches);
        p.heads_per_warp = batch * batches.div_ceil(parts);
        p.warp_tasks = [q.heads, k.heads].map(|heads| heads.div_ceil(p.heads_per_warp));
        let warp_tasks = p.warp_tasks[0] + p.warp_tasks[1];
        let warps = warp_tasks.clamp(1, self.of_block(4));
        p.blocks = warp_tasks.div_ceil(warps).max(1);
        let blocks = u64::from(p.rows) * u64::from(warp_tasks.div_ceil(warps));
        Some(HeadLaunch { kernel: warp.kernel, p, blocks, grid_yz: [1, 1], block: [32, warps, 1] })
    }

    /// Returns the launch plan of a general kernel in which a team of `team` threads processes a row.
    fn rows<K>(&self, kernel: K, team: u32, stages: bool, mut p: HeadParams) -> HeadLaunch<K> {
        let row_heads =
            |operand: HeadsOperand| i64::from(operand.heads) * self.extent[2] / i64::from(operand.cols);
        p.warp_tasks = self.operands.map(|operand| row_heads(operand) as u32);
        let teams = if team == 128 { 2 } else { 4 };
        let tile_bytes = teams * team * 4 * self.dtype.size() as u32;
        if stages {
            let cols = self.operands[0].cols.max(self.operands[1].cols);
            p.staged = cols.div_ceil(4 * team).min((DEFAULT_SMEM_BYTES - REDUCE_BYTES) / tile_bytes);
        }
        let list = u64::from(p.warp_tasks[0] + p.warp_tasks[1]);
        let blocks = (u64::from(p.rows) * list).div_ceil(u64::from(teams));
        HeadLaunch { kernel, p, blocks, grid_yz: [1, 1], block: [team, teams, 1] }
    }

    /// Returns the launch plan of a general kernel in which a thread processes some columns of a query head
    /// and of a key head.
    fn columns<K>(&self, kernel: K, p: HeadParams) -> HeadLaunch<K> {
        let heads = self.present().map(|operand| operand.heads).max().unwrap_or(0);
        let [blocks, threads, together] = self.blocks_of_columns(heads, if self.vec4s { 4 } else { 1 }, p);
        let groups = u64::from(p.rows.div_ceil(together));
        let (p, blocks) = (HeadParams { blocks, ..p }, groups * u64::from(blocks));
        HeadLaunch { kernel, p, blocks, grid_yz: [1, 1], block: [threads, together, 1] }
    }

    /// Divides `heads` heads of a token among blocks. A thread processes `columns` columns of a query head
    /// and of a key head. Returns the number of blocks, of threads per block and token, and of tokens per
    /// block.
    fn blocks_of_columns(&self, heads: u32, columns: u32, p: HeadParams) -> [u32; 3] {
        let threads = (heads * p.dim / columns).max(1);
        let blocks = threads.div_ceil(512);
        let threads = threads.div_ceil(blocks).next_multiple_of(32);
        // A block that processes several tokens reads a longer contiguous range of memory. Assign several
        // tokens to a block only if the launch still has at least `BLOCKS` blocks.
        [blocks, threads, (p.rows / BLOCKS).clamp(1, 1_024 / threads)]
    }
}
