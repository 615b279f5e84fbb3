//! Arguments of the norm kernels: sizes, `eps`, memory access of the rows, and forms of the operands.
use super::reduce::block::THREADS;

/// The [`Access`](cuda_std::vec4::Access) of a launch, for kernels that contain the code for several
/// accesses.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowAccess(u32);

impl RowAccess {
    /// [`Scalar`](cuda_std::vec4::Scalar): one element per load or store.
    pub const SCALAR: Self = Self(0);
    /// [`Vectorized`](cuda_std::vec4::Vectorized): four elements per load or store.
    pub const VECTORIZED: Self = Self(1);
    /// [`WholeTiles`](cuda_std::vec4::WholeTiles), or another access for rows of whole tiles of 128 columns.
    pub const WHOLE_TILES: Self = Self(2);
}

/// The dtypes and tables of a norm's operands (weight, bias, scale, shift, gate).
///
/// A kernel that is compiled for one form has no branches on dtype or table in its loop over vec4s.
/// An operand with a table is `table + value`: see [`Modulation`](super::operand::Modulation).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandForm(u32);

impl OperandForm {
    /// Present operands have the dtype of the rows. There is no table. A modulated norm has no weight or
    /// bias.
    pub const SAME: Self = Self(0);
    /// As `SAME`, but the operands are f32 and the rows have a 16-bit dtype.
    pub const F32: Self = Self(1);
    /// Any other combination. The kernel tests it for each vec4. The access is not
    /// [`RowAccess::WHOLE_TILES`].
    pub const ANY: Self = Self(2);
    /// As `SAME`, and each operand has a table of the rows' dtype.
    pub const TABLED: Self = Self(3);
    /// As `SAME`, but weight and bias are present.
    pub const AFFINE: Self = Self(4);
    /// As `AFFINE`, but only one of weight and bias is present.
    pub const PARTLY_AFFINE: Self = Self(5);
    /// As `AFFINE`, but the operands are f32.
    pub const F32_AFFINE: Self = Self(6);

    /// Returns `self == other` by value, as [`OperandKind`](crate::layout::operand_kind::OperandKind) does.
    #[inline(always)]
    pub(crate) const fn is(self, other: Self) -> bool {
        self.0 == other.0
    }
}

/// An [`OperandForm`] as a type, for kernels that are compiled for a single form.
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

/// The parameters of a norm kernel, without its operands: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormParams {
    /// Number of rows.
    pub rows: u64,
    /// Number of consecutive rows that are `inner_stride` apart, before a step of `outer_stride`: see
    /// [`Rows`](cuda_std::row::Rows). 0: all rows are `inner_stride` apart.
    pub inner: u32,
    /// Number of columns.
    pub cols: u32,
    /// `1 / cols`.
    pub inv_cols: f32,
    /// Value added to the variance (LayerNorm) or to the mean of squares (RMSNorm).
    pub eps: f32,
    /// Tiles of 128 columns per row if a row fits in shared memory, else 0. The kernel's `Access` decides
    /// whether it stages the row there.
    pub staged: u32,
    /// The form of weight, bias, scale, shift and gate.
    pub form: OperandForm,
    /// 1: round to the element type after each step, as a chain of separate operators does. 0: round once, at
    /// the end.
    pub round_each: u32,
    /// Access that all operands allow, for kernels that contain the code for several accesses.
    pub access: RowAccess,
    /// 1 if the rows that are staged in shared memory are `Rows::is_vector` (16-byte aligned), else 0.
    pub packs: u32,
}

impl NormParams {
    /// Threads per row if a block shares the row. The reduction scratch has as many f32 elements, and
    /// precedes the staged rows in shared memory.
    pub const SHARING: u32 = THREADS;

    /// Returns the parameters with `F::FORM` as the form, so that the compiler knows the form.
    #[inline(always)]
    pub(crate) fn of_form<F: KnownForm>(self) -> Self {
        Self { form: F::FORM, ..self }
    }
}
