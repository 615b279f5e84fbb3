//! Block counts and kernel arguments that all attention kernels use.
use kernels_gpu::attention::mma::params::{AttentionParams, Mask, UNLIMITED};

use crate::Launch;
use crate::operands::attention::{MIN_SCALE, MaskLayout};
use crate::operands::attention_layout::AttentionLayout;
use crate::{Dtype, Error, Result};

/// Returns a launch configuration with a one-dimensional grid and block.
pub(crate) fn block_shape(blocks: u32, threads: u32) -> Launch {
    Launch::of([blocks, 1, 1], [threads, 1, 1])
}

/// The tensor whose rows are divided into tiles: queries or keys. One block processes each tile of rows.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum TiledRows {
    Queries,
    Keys,
}

impl AttentionLayout {
    /// Returns whether the specialized attention kernels support the call. These kernels support no mask and
    /// no softcap. They require a scale of at least `MIN_SCALE`, and rows that can be read in 16-byte
    /// vectors.
    pub(crate) fn is_plain(&self) -> bool {
        self.mask.is_none() && self.softcap == 0.0 && self.vector && self.scale >= MIN_SCALE
    }

    /// Divides the rows (queries or keys) of a head into tiles of `rows` rows. Returns the number of tiles
    /// per head, and the number of blocks for all heads. Returns `None` if there are no rows.
    pub(crate) fn blocks(&self, op: &'static str, rows: u32, side: TiledRows) -> Result<Option<(u32, u32)>> {
        let (there, heads) = match side {
            TiledRows::Queries => (self.queries, self.heads),
            TiledRows::Keys => (self.keys, self.kv_heads),
        };
        // Packed sequences are several sequences in one tensor. The last tile of each sequence may be partly
        // filled. The last tile of the padding (tokens after the last sequence) may also be partly filled.
        // Therefore add one tile per sequence and one tile for the padding to the number of full tiles.
        let (tiles, batches) = match self.cu_seqlens {
            Some(_) => (there / rows + self.batches + 1, 1),
            None => (there.div_ceil(rows), self.batches),
        };
        let blocks = u64::from(tiles) * u64::from(heads) * u64::from(batches);
        match i32::try_from(blocks) {
            _ if there == 0 || blocks == 0 => Ok(None),
            Ok(blocks) => Ok(Some((tiles, blocks as u32))),
            Err(_) => {
                let expected = "at most 2^31 - 1 tiles of rows";
                Err(Error::Value { op, arg: "q", got: blocks as f64, expected })
            }
        }
    }

    /// Returns the mask as a kernel argument.
    pub(crate) fn mask_arg(&self) -> Mask {
        self.mask.map_or(Mask::ABSENT, |mask| mask.arg())
    }

    /// Returns the parameters of the attention kernels.
    pub(crate) fn params(&self, tiles: u32) -> AttentionParams {
        let limit =
            |side: usize| self.window[side].map_or(UNLIMITED, |keys| keys.min(UNLIMITED as u32) as i32);
        let [query_starts, key_starts] = self.cu_seqlens.unwrap_or([std::ptr::null(); 2]);
        AttentionParams {
            q: self.q,
            k: self.k,
            v: self.v,
            out: self.out,
            lse: self.lse,
            query_starts,
            key_starts,
            mask: self.mask_arg(),
            batches: self.batches,
            queries: self.queries,
            keys: self.keys,
            heads: self.heads,
            group: self.heads / self.kv_heads.max(1),
            dim: self.dim,
            tiles,
            vector: u32::from(self.vector),
            backwards: u32::from(self.causal),
            before: limit(0),
            after: if self.causal { 0 } else { limit(1) },
            scale: self.scale,
            softcap: self.softcap,
        }
    }
}

impl MaskLayout {
    fn arg(&self) -> Mask {
        let kind = match self.dtype {
            Dtype::Bool => Mask::BOOL,
            Dtype::F32 => Mask::F32,
            _ => Mask::SAME,
        };
        Mask { base: self.base.cast(), strides: self.strides, kind }
    }
}
