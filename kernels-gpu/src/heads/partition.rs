//! The assignment of heads to warps.
use cuda_std::prelude::*;

use super::params::HeadParams;
use crate::layout::heads::{Token, divide};

/// The heads that a warp processes: up to `heads_per_warp` consecutive query heads or key heads of one token.
#[derive(Clone, Copy)]
pub(crate) struct WarpTask {
    pub token: Token,
    /// `true` if the heads are keys, `false` if they are queries.
    pub keys: bool,
    /// The index of the first head.
    pub first: u32,
}

impl WarpTask {
    /// Returns the heads of the calling warp, or `None` if the warp has no heads. The grid is
    /// one-dimensional, with `p.blocks` blocks per token.
    #[inline(always)]
    pub fn of_warp(p: &HeadParams) -> Option<Self> {
        let ([_, warp, _], [_, warps, _]) = (thread::index(), thread::block_dim());
        let block = thread::block_index()[0];
        let (row, task) = divide(block, p.blocks);
        let task = task * warps + warp;
        let [queries, keys] = p.warp_tasks;
        if task >= queries + keys {
            return None;
        }
        let is_key = task >= queries;
        let first = p.heads_per_warp * (if is_key { task - queries } else { task });
        Some(Self { token: Token::of(row, p.tokens), keys: is_key, first })
    }

    /// Returns the heads of the calling warp, or `None` if the warp has no heads.
    ///
    /// The grid is `[tokens, blocks per token, batches]`. The function therefore needs no division to find
    /// the token.
    #[inline(always)]
    pub fn of_grid(p: &HeadParams) -> Option<Self> {
        let ([_, warp, _], [_, warps, _], [number, block, batch]) =
            (thread::index(), thread::block_dim(), thread::block_index());
        let ([queries, keys], task) = (p.warp_tasks, block * warps + warp);
        if task >= queries + keys {
            return None;
        }
        let is_key = task >= queries;
        let first = p.heads_per_warp * (if is_key { task - queries } else { task });
        Some(Self { token: Token { batch, number }, keys: is_key, first })
    }
}
