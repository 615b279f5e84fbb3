//! How the heads of all tokens are shared out to warps.
use cuda_std::prelude::*;

use super::params::Params;
use crate::layout::heads::{Token, divide};

/// A warp's part of the list of heads.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    pub token: Token,
    /// Are they keys?
    pub keys: bool,
    /// The first head, of `keys` or queries.
    pub first: u32,
}

impl Share {
    /// The calling warp's, if it has any.
    #[inline(always)]
    pub fn of_warp(p: &Params) -> Option<Self> {
        let ([_, warp, _], [_, warps, _]) = (thread::index(), thread::block_dim());
        let block = thread::block_index()[0];
        let (row, part) = divide(block, p.blocks);
        let part = part * warps + warp;
        let [queries, keys] = p.shares;
        if part >= queries + keys {
            return None;
        }
        let is_key = part >= queries;
        let first = p.share * (if is_key { part - queries } else { part });
        Some(Self { token: Token::of(row, p.tokens), keys: is_key, first })
    }

    /// The calling warp's, if it has any, in a grid of tokens, blocks of a token and batches: no division.
    #[inline(always)]
    pub fn of_grid(p: &Params) -> Option<Self> {
        let ([_, warp, _], [_, warps, _], [number, block, batch]) =
            (thread::index(), thread::block_dim(), thread::block_index());
        let ([queries, keys], part) = (p.shares, block * warps + warp);
        if part >= queries + keys {
            return None;
        }
        let is_key = part >= queries;
        let first = p.share * (if is_key { part - queries } else { part });
        Some(Self { token: Token { batch, number }, keys: is_key, first })
    }
}
