//! Launches of the kernels on queries and keys: checks, then the first kernel that takes these heads.
use kernels_gpu::heads::norm::Normed;
use kernels_gpu::heads::rope::Rotary;
use kernels_gpu::heads::warp::{Params, Side};

use super::heads::Kernels;
use crate::device::launch::args;
use crate::device::launch_override::Choice;
use crate::operands::heads::{ABSENT, Extent, Heads, NAMES, Shape, disjoint, side};
use crate::{Device, Dtype, Error, Result, Rope, Stream};

/// A launch that was checked.
pub(crate) struct Checked {
    pub sides: [Side; 2],
    pub rotary: Rotary,
    pub quads: bool,
    pub dtype: Dtype,
    /// Batches, tokens, columns of a head.
    pub extent: [i64; 3],
    /// What is launched in place of the first kernel.
    pub choice: Choice,
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
        Ok(Self { sides, rotary, quads, dtype, extent: [batches, tokens, dim], choice: device.choice() })
    }

    /// Launches the first of the op's kernels that takes these heads.
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
        if heads == 0 {
            return Ok(());
        }
        let (rows, tokens, dim) = (rows as u32, tokens as u32, dim as u32);
        let p = Params { rows, tokens, dim, norm, share: 0, shares: [0; 2], blocks: 0, staged: 0 };
        let plan = self.plan(kernels, p);
        let Ok(blocks) = i32::try_from(plan.blocks) else {
            let expected = "at most 2^31 - 1 blocks of heads";
            return Err(Error::Value { op, arg: "q", got: plan.blocks as f64, expected });
        };
        let (shape, p) = (plan.shape(blocks as u32), plan.p);
        // SAFETY: the views were checked to be what the kernel's arguments mean.
        unsafe { device.launch(plan.kernel, self.dtype, shape, stream, args![q, k, rotary, p]) }
    }
}
