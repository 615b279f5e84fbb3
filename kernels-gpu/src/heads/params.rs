//! Arguments of the kernels that normalise the heads of queries and keys, and rotate them by RoPE.
use cuda_std::warp;

use crate::layout::heads::Heads;
use crate::norm::affine::Affine;

/// The norm of the heads: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadNormArg {
    /// Value added to the variance (LayerNorm) or to the mean of squares (RMSNorm).
    pub eps: f32,
    /// Summation order of RMSNorm. 1: the order of torch's fused kernel (`torch.nn.RMSNorm`). 0: the order of
    /// `x.float().pow(2).mean(-1)`.
    pub fused: u32,
    /// 1: RMSNorm rounds `x / rms` to the element type before it multiplies by the weight. 0: it does not
    /// round `x / rms`.
    pub before_weight: u32,
    /// 1: the result of the norm is rounded to the element type before RoPE. 0: the result stays f32.
    pub round: u32,
}

/// The rotary position embedding of the heads: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    /// Table of cosines for most values of the field `angles`. With [`Rotary::COMPLEX`], cosines and sines
    /// alternate in this table. With [`Rotary::COUNTED`] and [`Rotary::POSITIONED`], the table contains f32
    /// frequencies, from which the kernel computes the angles.
    pub cos: Heads,
    /// Table of sines for most values of the field `angles`. With [`Rotary::POSITIONED`], the table contains
    /// the f32 positions of the tokens. With [`Rotary::COMPLEX`] and [`Rotary::COUNTED`], the kernel does not
    /// read this table.
    pub sin: Heads,
    /// The first rotated token.
    pub first: u32,
    /// Number of rotated tokens, from token `first` on. RoPE does not change any other token.
    pub tokens: u32,
    /// Number of rotated columns per head, an even number. RoPE rotates the columns 0 to `dim - 1` of a head,
    /// and does not change its other columns.
    pub dim: u32,
    /// Source of the angles: one of [`Rotary::WIDE`], [`Rotary::NARROW`], [`Rotary::COMPLEX`],
    /// [`Rotary::COUNTED`], [`Rotary::POSITIONED`].
    pub angles: u32,
    /// 1: RoPE rotates half-split pairs, whose columns are `dim / 2` apart (`rotate_half`). 0: it rotates
    /// interleaved pairs, which are adjacent columns.
    pub halves: u32,
    /// 1: the tables are f32. 0: the tables have the element type of queries and keys.
    pub single: u32,
    /// 1: RoPE rounds its two products and their sum to the element type. 0: it rounds only the sum.
    pub round_each: u32,
    /// 1: RoPE rotates by the negative angle. The gradient of RoPE is this rotation. 0: RoPE rotates by the
    /// positive angle.
    pub conjugate: u32,
}

impl Rotary {
    /// Cosines and sines are in two tables, with one entry per rotated column.
    pub const WIDE: u32 = 0;
    /// Cosines and sines are in two tables, with one entry per rotated pair of columns.
    pub const NARROW: u32 = 1;
    /// One table contains a complex number (cosine and sine) per rotated pair of columns. The pairs are
    /// interleaved: the columns of a pair are adjacent.
    pub const COMPLEX: u32 = 2;
    /// The kernel computes each angle as a product: the index of the token among the rotated tokens, times
    /// the frequency of the pair of columns.
    pub const COUNTED: u32 = 3;
    /// The kernel computes each angle as a product: the position of the token, times the frequency of the
    /// pair of columns. Positions and frequencies are in tables.
    pub const POSITIONED: u32 = 4;

    /// A launch without RoPE.
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

    /// Returns whether the angles differ between the heads of a token.
    pub fn by_head(&self) -> bool {
        self.cos.head_stride != 0
    }
}

/// The positions of the tokens, which choose the rows of the tables of angles.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Positions {
    /// Address of the first position, or null if token `t` has row `t` of the tables.
    pub base: *const u8,
    /// Elements from the positions of one batch to those of the next batch, or 0 if all batches have the
    /// same positions.
    pub batch_stride: i64,
    /// Elements from one position to the next.
    pub token_stride: i64,
    /// Bytes of a position: 4 or 8.
    pub bytes: u32,
    /// Number of rows of the tables. The last row replaces the rows that the tables do not have.
    pub rows: u32,
}

impl Positions {
    /// A launch whose tables have one row per token.
    pub const NONE: Self =
        Self { base: core::ptr::null(), batch_stride: 0, token_stride: 0, bytes: 4, rows: 1 };
}

/// The rotary position embedding of kernels that read positions: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PositionedRotary {
    /// The rotary position embedding. If there are positions, `token_stride` of its tables is the distance
    /// between two rows of the tables.
    pub rotary: Rotary,
    /// The positions of the rotated tokens.
    pub positions: Positions,
}

/// Kernel argument: the query tensor or the key tensor, with its output and the parameters of its norm.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadsOperand {
    /// The input.
    pub x: Heads,
    /// The output.
    pub y: Heads,
    /// Weight and bias of the norm.
    pub affine: Affine,
    /// Number of heads per token. 0 if the tensor is absent.
    pub heads: u32,
    /// Number of columns that are normalised together: the columns of one head, or of all heads of a token.
    pub cols: u32,
    /// `1 / cols`.
    pub inv_cols: f32,
}

/// Sizes and options of a launch: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadParams {
    /// Number of tokens of all batches.
    pub rows: u32,
    /// Number of tokens per batch.
    pub tokens: u32,
    /// Head dimension.
    pub dim: u32,
    /// The norm.
    pub norm: HeadNormArg,
    /// Maximum number of heads that one warp processes. Only the kernels in the modules `warp` and
    /// `warp_halves` use this field.
    pub heads_per_warp: u32,
    /// The number of warps that process the query heads of a token, and the number of warps that process its
    /// key heads. For the kernels in the modules `block` and `block_registers`, the numbers count rows
    /// instead of warps.
    pub warp_tasks: [u32; 2],
    /// Number of blocks per token, or per group of tokens. Only the kernels in the modules `warp` and
    /// `rope_in_place` use this field.
    pub blocks: u32,
    /// Number of tiles of a row that are staged in shared memory. A tile has four columns per thread. Only
    /// the kernels in the module `block` use this field.
    pub staged: u32,
}

/// Maximum number of bytes of shared memory that a block needs for its reductions. A block that uses this
/// memory has at most two teams (a team is the set of threads that share a row). A team stores at most three
/// f32 for each of four warps.
pub const REDUCE_BYTES: u32 = 2 * 3 * 4 * 4;

impl HeadParams {
    /// Returns the number of bytes of shared memory that a block needs to stage its rows of element type `T`.
    /// The block has `teams` teams of `team` threads each. A team is the set of threads that share one row.
    pub const fn staged_bytes<T>(&self, [team, teams, _]: [u32; 3]) -> u32 {
        self.staged * teams * team * 4 * size_of::<T>() as u32
    }
}

/// Returns how many heads of dimension `dim` a warp processes at once. A separate group of lanes processes
/// each head.
pub const fn side_by_side(dim: u32) -> u32 {
    warp::SIZE / width(dim)
}

/// Returns the number of lanes that share a head of dimension `dim`.
pub(crate) const fn width(dim: u32) -> u32 {
    if dim > 64 { 32 } else { 16 }
}
