//! What the kernels on heads are told: queries and keys, their norm and their rotation.
use cuda_std::warp;

use crate::layout::heads::Heads;
use crate::norm::affine::Affine;

/// How a norm is computed: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadNormArg {
    /// Added to the variance, or to the mean of squares.
    pub eps: f32,
    /// Are squares summed as in torch's fused RMSNorm, not as in `x.float().pow(2).mean(-1)`? 0 or 1.
    pub fused: u32,
    /// Round to the element type before the weight multiplies, too. 0 or 1.
    pub before_weight: u32,
    /// Round to the element type before the rotation. 0 or 1.
    pub round: u32,
}

/// How heads are rotated: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    /// Cosines; cosine and sine in turn if they are complex; frequencies, f32, if the kernel makes the
    /// angles.
    pub cos: Heads,
    /// Sines; positions, f32, if the kernel makes the angles and they are given.
    pub sin: Heads,
    /// The first token that is rotated.
    pub first: u32,
    /// Tokens that are rotated from there on; the others pass.
    pub tokens: u32,
    /// Columns of a head that are rotated, an even number; the others pass.
    pub dim: u32,
    /// One of [`Rotary::WIDE`], [`Rotary::NARROW`], [`Rotary::COMPLEX`], [`Rotary::COUNTED`],
    /// [`Rotary::POSITIONED`].
    pub angles: u32,
    /// Are pairs half the rotated columns apart (`rotate_half`), not neighbours? 0 or 1.
    pub halves: u32,
    /// Are the tables in f32, not of the element type? 0 or 1.
    pub single: u32,
    /// Round both products and their sum to the element type, not the sum alone. 0 or 1.
    pub round_each: u32,
    /// Rotate by the negative angle. 0 or 1.
    pub conjugate: u32,
}

impl Rotary {
    /// Tables with an entry for each rotated column.
    pub const WIDE: u32 = 0;
    /// Tables with an entry for each pair.
    pub const NARROW: u32 = 1;
    /// A table with a complex number for each pair, which are neighbours.
    pub const COMPLEX: u32 = 2;
    /// Angles are the token's number times the pair's frequency.
    pub const COUNTED: u32 = 3;
    /// Angles are the token's position times the pair's frequency.
    pub const POSITIONED: u32 = 4;

    /// No rotation.
    pub const NONE: Self = Self {
        cos: Heads::ABSENT,
        sin: Heads::ABSENT,
        first: 0,
        tokens: 0,
        dim: 0,
        angles: Self::WIDE,
        halves: 0,
        single: 0,
        round_each: 0,
        conjugate: 0,
    };

    /// Has every head angles of its own?
    pub fn by_head(&self) -> bool {
        self.cos.head_stride != 0
    }
}

/// Queries or keys, and what becomes of them: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadsOperand {
    /// What is read.
    pub x: Heads,
    /// What is written.
    pub y: Heads,
    /// The parameters of the norm.
    pub affine: Affine,
    /// How many heads there are; 0: no such tensor.
    pub heads: u32,
    /// Columns that are normalised together: a head's, or those of all heads.
    pub cols: u32,
    /// `1 / cols`.
    pub inv_cols: f32,
}

/// What the kernels need to know beside their operands: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadParams {
    /// Tokens of all batches.
    pub rows: u32,
    /// Tokens of a batch.
    pub tokens: u32,
    /// Columns of a head.
    pub dim: u32,
    /// The norm.
    pub norm: HeadNormArg,
    /// Heads of a warp's share, in kernels of lanes and of halves.
    pub heads_per_warp: u32,
    /// Shares of the queries, and of the keys, of a token; rows of them in kernels of rows.
    pub warp_tasks: [u32; 2],
    /// Blocks of a token.
    pub blocks: u32,
    /// Tiles of a row that shared memory has room for, in kernels of rows.
    pub staged: u32,
}

/// Heads of `dim` columns that a warp has side by side.
pub const fn side_by_side(dim: u32) -> u32 {
    warp::SIZE / width(dim)
}

/// Lanes that share a head of `dim` columns.
pub(crate) const fn width(dim: u32) -> u32 {
    if dim > 64 { 32 } else { 16 }
}
