//! Kernel arguments of attention, and sizes that the kernels share with the host.
use crate::layout::heads::Heads;

/// A mask of the attention scores. The mask broadcasts to the shape `[B, H, Sq, Sk]`: batch, head, query,
/// key. This struct is a field of the kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// The first element, or null if there is no mask.
    pub base: *const u8,
    /// Strides of batch, head, query and key in elements. A stride is 0 if the mask broadcasts over that
    /// dimension.
    pub strides: [i64; 4],
    /// The element type: [`Mask::NONE`], [`Mask::BOOL`], [`Mask::F32`] or [`Mask::SAME`].
    pub kind: u32,
}

impl Mask {
    /// Value of `kind`: there is no mask.
    pub const NONE: u32 = 0;
    /// Value of `kind`: a boolean mask, with one byte per element. An element that is 0 hides the key from
    /// the query.
    pub const BOOL: u32 = 1;
    /// Value of `kind`: an additive mask with f32 elements.
    pub const F32: u32 = 2;
    /// Value of `kind`: an additive mask with elements of the same type as the queries.
    pub const SAME: u32 = 3;
    /// The `Mask` of a launch without a mask.
    pub const ABSENT: Self = Self { base: core::ptr::null(), strides: [0; 4], kind: Self::NONE };
}

/// The kernel argument of the forward pass.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttentionParams {
    /// Queries, with the shape `[B, Sq, H, D]`: batch, query, head, column. Columns are contiguous, and the
    /// other strides are arbitrary.
    pub q: Heads,
    /// Keys.
    pub k: Heads,
    /// Values.
    pub v: Heads,
    /// The result. It has the shape of `q`.
    pub out: Heads,
    /// Log-sum-exp of the scores of each query. The shape is `[B, H, Sq]`, or `[H, Sq]` for packed sequences
    /// (several sequences in one tensor). If the pointer is null, the kernels do not write the log-sum-exp.
    pub lse: *mut f32,
    /// Start offsets of packed sequences (several sequences in one tensor): the row at which each sequence
    /// starts in the query tensor. An additional last element is the end of the last sequence. If the pointer
    /// is null, the tensor is not packed, and each batch has `queries` queries.
    pub query_starts: *const i32,
    /// Start offsets of packed sequences (several sequences in one tensor): the row at which each sequence
    /// starts in the key tensor. An additional last element is the end of the last sequence. If the pointer
    /// is null, the tensor is not packed.
    pub key_starts: *const i32,
    /// Additive or boolean mask. Only the general kernels (const parameter `GENERAL`) read the mask.
    pub mask: Mask,
    /// Number of batches, or number of packed sequences (several sequences in one tensor).
    pub batches: u32,
    /// Queries per batch, or in all packed sequences together.
    pub queries: u32,
    /// Keys per batch, or in all packed sequences together.
    pub keys: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Query heads per key head (grouped-query attention).
    pub group: u32,
    /// Head dimension.
    pub dim: u32,
    /// Number of query tiles per head, counted in one batch or in all packed sequences together.
    pub tiles: u32,
    /// 1 if the alignment of every head permits 16-byte loads, otherwise 0. Only the general kernels (const
    /// parameter `GENERAL`) support the value 0. They then load single elements.
    pub vector: u32,
    /// 1 if the first blocks compute the last query tiles, otherwise 0. Causal attention uses 1. Later
    /// queries attend to more keys, so the tiles that take the most time then start first.
    pub backwards: u32,
    /// Sliding window: number of keys before a query's own position that the query attends to.
    pub before: i32,
    /// Sliding window: number of keys after a query's own position that the query attends to.
    pub after: i32,
    /// The factor by which the kernels multiply QKᵀ. Only the general kernels (const parameter `GENERAL`)
    /// support a factor that is not positive.
    pub scale: f32,
    /// If not 0, scores become `softcap * tanh(score / softcap)`. Only kernels with the const parameter
    /// `GENERAL` support a softcap.
    pub softcap: f32,
}

/// Value of the parameters `before` and `after` for a sliding window that is not limited on this side. The
/// value is larger than every number of keys.
pub const UNLIMITED: i32 = 1 << 30;

/// Largest shared memory per block, in bytes, that all GPUs from sm_80 on permit. The GPUs with this smallest
/// limit are sm_86, sm_89 and sm_120.
pub const SHARED_BYTES_EVERYWHERE: u32 = 99 << 10;

/// Warps per block of the [`decode`](crate::attention::decode) kernels.
pub const WARPS: u32 = 4;
