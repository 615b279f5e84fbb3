//! Kernel arguments of the norms: sizes, `eps`, the number of elements per load, and the dtypes of the
//! operands.
use cuda_std::vec4::TILE;

use super::reduce::block::THREADS;

/// The access type ([`Access`](cuda_std::vec4::Access)) of a launch, which states how many elements one load
/// reads. Only kernels that are compiled for several access types test this value.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowAccess(u32);

impl RowAccess {
    /// [`Scalar`](cuda_std::vec4::Scalar): one element per load or store.
    pub const SCALAR: Self = Self(0);
    /// [`Vectorized`](cuda_std::vec4::Vectorized): four elements per load or store.
    pub const VECTORIZED: Self = Self(1);
    /// [`WholeTiles`](cuda_std::vec4::WholeTiles), or a different access type (how a thread reads rows) for
    /// rows that consist of whole tiles of 128 columns.
    pub const WHOLE_TILES: Self = Self(2);
}

/// The form of a norm's operands (weight, bias, scale, shift, gate). The form says which dtypes the operands
/// have, and which operands are a sum `table + value` ([`Modulation`](super::operand::Modulation)).
///
/// A kernel that is compiled for one form has no branches on dtype or table in its loop over the columns.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandForm(u32);

impl OperandForm {
    /// All operands that are present have the dtype of the rows, and none has a table (a tensor that is added
    /// to the operand). If the norm has a scale and a shift, it has no weight and no bias.
    pub const SAME: Self = Self(0);
    /// All operands that are present are f32, and none has a table (a tensor that is added to the operand).
    /// The rows have a 16-bit dtype. If the norm has a scale and a shift, it has no weight and no bias.
    pub const F32: Self = Self(1);
    /// Any other combination of dtypes and tables (tensors that are added to an operand). The kernel tests
    /// dtypes and tables for each vec4 (four columns). A launch with this form does not use
    /// [`RowAccess::WHOLE_TILES`].
    pub const ANY: Self = Self(2);
    /// All operands that are present have the dtype of the rows, and each is a sum `table + value`. There is
    /// no weight and no bias.
    pub const TABLED: Self = Self(3);
    /// All operands that are present have the dtype of the rows, and none has a table (a tensor that is added
    /// to the operand). Weight and bias are present.
    pub const AFFINE: Self = Self(4);
    /// All operands that are present have the dtype of the rows, and none has a table (a tensor that is added
    /// to the operand). Either the weight or the bias is present, but not both.
    pub const PARTLY_AFFINE: Self = Self(5);
    /// All operands that are present are f32, and none has a table (a tensor that is added to the operand).
    /// The rows have a 16-bit dtype. Weight and bias are present.
    pub const F32_AFFINE: Self = Self(6);

    /// Returns `self == other`. Kernels use this method instead of the operator `==`, which takes references
    /// and thereby changes the code that LLVM generates. See
    /// [`OperandKind::is`](crate::layout::operand_kind::OperandKind::is).
    #[inline(always)]
    pub(crate) const fn is(self, other: Self) -> bool {
        self.0 == other.0
    }
}

/// A type that represents one [`OperandForm`] (the dtypes of a norm's operands). A kernel that is compiled
/// for a single form takes this type as a parameter.
pub(crate) trait KnownForm {
    /// The form as a value.
    const FORM: OperandForm;
}

/// [`OperandForm::SAME`] as a type.
pub(crate) struct Same;
/// [`OperandForm::F32`] as a type.
pub(crate) struct F32;
/// [`OperandForm::TABLED`] as a type.
pub(crate) struct Tabled;
/// [`OperandForm::AFFINE`] as a type.
pub(crate) struct WithAffine;

impl KnownForm for Same {
    const FORM: OperandForm = OperandForm::SAME;
}

impl KnownForm for F32 {
    const FORM: OperandForm = OperandForm::F32;
}

impl KnownForm for Tabled {
    const FORM: OperandForm = OperandForm::TABLED;
}

impl KnownForm for WithAffine {
    const FORM: OperandForm = OperandForm::AFFINE;
}

/// Kernel argument: the parameters of a norm kernel, without the tensors.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormParams {
    /// Number of rows.
    pub rows: u64,
    /// Number of rows per group in memory. Rows of a group are `inner_stride` elements apart, and groups are
    /// `outer_stride` elements apart: see [`Rows`](cuda_std::row::Rows). 0: all rows are in one group.
    pub inner: u32,
    /// Number of columns.
    pub cols: u32,
    /// `1 / cols`.
    pub inv_cols: f32,
    /// Value added to the variance (LayerNorm) or to the mean of squares (RMSNorm).
    pub eps: f32,
    /// Number of tiles (128 columns each) of a row in shared memory, or 0 if a row does not fit there. The
    /// type parameter `A: Access` of a kernel decides whether the kernel copies its rows to shared memory.
    pub staged: u32,
    /// The dtypes of weight, bias, scale, shift and gate, and whether tables (additional tensors) are added
    /// to them.
    pub form: OperandForm,
    /// 1: round to the element type after each step, as a sequence of separate torch operators does. 0: round
    /// once, at the end.
    pub round_each: u32,
    /// How many elements one load reads. The layouts of all operands allow loads of this size. Only kernels
    /// that are compiled for several access types test this value.
    pub access: RowAccess,
    /// 1 if the rows allow 16-byte copies to shared memory (`Rows::is_vector`), else 0.
    pub packs: u32,
}

impl NormParams {
    /// Number of bytes of shared memory that a block needs for a reduction, if its warps share one row.
    pub const SCRATCH_BYTES: u32 = 4 * Self::SHARING;

    /// Returns the number of bytes of shared memory that are needed to stage `rows` rows of element type `T`.
    pub const fn staged_bytes<T>(&self, rows: u32) -> u32 {
        self.staged * TILE * size_of::<T>() as u32 * rows
    }

    /// Threads per row if the four warps of a block share a row. Shared memory then starts with one f32 per
    /// thread for the block reduction, followed by the staged rows.
    pub const SHARING: u32 = THREADS;

    /// Returns the parameters with the constant `F::FORM` as `form`. The compiler then removes the branches
    /// on the form (the dtypes of the operands).
    #[inline(always)]
    pub(crate) fn of_form<F: KnownForm>(self) -> Self {
        Self { form: F::FORM, ..self }
    }
}
