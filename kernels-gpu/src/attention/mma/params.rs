//! Kernel arguments of attention, and sizes that both the kernels and the host use.
use crate::layout::heads::Heads;

/// A mask of the attention scores. The mask broadcasts to the shape `[B, H, Sq, Sk]`: batch, head, query,
/// key. This struct is a field of the kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// The first element, or null if there is no mask.
    pub base: *const u8,
    /// Strides of batch, head, query and key in elements. If the mask broadcasts over a dimension, the stride
    /// of this dimension is 0.
    pub strides: [i64; 4],
    /// The element type: [`Mask::NONE`], [`Mask::BOOL`], [`Mask::F32`] or [`Mask::SAME`].
    pub kind: u32,
}

impl Mask {
    /// Value of `kind`: there is no mask.
    pub const NONE: u32 = 0;
    /// Value of `kind`: a boolean mask, with one byte per element. An element of 0 means that the query does
    /// not attend to the key.
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
    /// Queries, with the shape `[B, Sq, H, D]`: batch, query, head, column. The columns of a head are
    /// contiguous, and the strides of batch, query and head are arbitrary.
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
    /// Start offsets of packed sequences (several sequences in one tensor). Element `i` is the row of the
    /// query tensor at which sequence `i` starts. An additional last element is the end of the last sequence.
    /// If the pointer is null, the tensor is not packed, and each batch has `queries` queries.
    pub query_starts: *const i32,
    /// Start offsets of packed sequences (several sequences in one tensor). Element `i` is the row of the key
    /// tensor at which sequence `i` starts. An additional last element is the end of the last sequence. If
    /// the pointer is null, the tensor is not packed.
    pub key_starts: *const i32,
    /// Additive or boolean mask. Only kernels whose const parameter `GENERAL` is true read the mask.
    pub mask: Mask,
    /// Number of batches. For packed tensors (several sequences in one tensor), the number of sequences.
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
    /// Number of query tiles per head: in one batch, or in all packed sequences (several sequences in one
    /// tensor) together.
    pub tiles: u32,
    /// 1 if the alignment of every head permits 16-byte loads, otherwise 0. With 0, a kernel loads single
    /// elements. Only kernels whose const parameter `GENERAL` is true support 0.
    pub vector: u32,
    /// 1 if the first blocks of the launch compute the last query tiles, otherwise 0. The host passes 1 for
    /// causal attention, in which the last queries attend to the most keys. The query tiles that take the
    /// most time then start first.
    pub backwards: u32,
    /// Sliding window: the number of keys before its own position that a query attends to.
    pub before: i32,
    /// Sliding window: the number of keys after its own position that a query attends to.
    pub after: i32,
    /// The factor by which the kernels multiply QKᵀ. Only kernels whose const parameter `GENERAL` is true
    /// support zero and negative factors.
    pub scale: f32,
    /// If `softcap` is not 0, each score becomes `softcap * tanh(score / softcap)`. Only kernels whose const
    /// parameter `GENERAL` is true support a softcap.
    pub softcap: f32,
}

/// Value of the fields `before` and `after` for a sliding window without a limit in this direction. The value
/// is larger than every number of keys.
pub const UNLIMITED: i32 = 1 << 30;

/// Bytes of shared memory per block that a kernel can use on every GPU from sm_80 on. The GPUs sm_86, sm_89
/// and sm_120 have exactly this limit. Other GPUs have a higher limit.
pub const SHARED_BYTES_EVERYWHERE: u32 = 99 << 10;

/// Warps per block of the [`decode`](crate::attention::decode) kernels.
pub const WARPS: u32 = 4;
