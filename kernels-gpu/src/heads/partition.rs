//! How the heads of all tokens are shared out to warps.
use cuda_std::prelude::*;

use super::params::HeadParams;
use crate::layout::heads::{Token, divide};

/// A warp's part of the list of heads.
#[derive(Clone, Copy)]
pub(crate) struct WarpTask {
    pub token: Token,
    /// Are they keys?
    pub keys: bool,
    /// The first head, of `keys` or queries.
    pub first: u32,
}

impl WarpTask {
    /// The calling warp's, if it has any.
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

    /// The calling warp's, if it has any, in a grid of tokens, blocks of a token and batches: no division.
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
