//! The parameters of the norm kernels over vec4s, and the access to rows that they are compiled for.
use super::reduce::block::THREADS;

/// The [`Access`](cuda_std::vec4::Access) of a launch, for kernels that are compiled for several of them.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowAccess(u32);

impl RowAccess {
    /// [`Scalar`](cuda_std::vec4::Scalar).
    pub const SCALAR: Self = Self(0);
    /// [`Vectorized`](cuda_std::vec4::Vectorized).
    pub const VECTORIZED: Self = Self(1);
    /// [`WholeTiles`](cuda_std::vec4::WholeTiles), or another access to rows of whole tiles.
    pub const WHOLE_TILES: Self = Self(2);
}

/// The dtypes and tables of a norm's operands (weight, bias, scale, shift, gate). A kernel that is compiled for one form
/// has no branch on them for each vec4.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandForm(u32);

impl OperandForm {
    /// The operands that are present have the rows' dtype. There is no table, and a modulated norm has no weight or bias.
    pub const SAME: Self = Self(0);
    /// As `SAME`, but the operands are f32 and the rows have 16 bits an element.
    pub const F32: Self = Self(1);
    /// Any other combination: the kernel tests it for each vec4. Rows are not [`RowAccess::WHOLE_TILES`].
    pub const ANY: Self = Self(2);
    /// As `SAME`, each with a table of the rows' type.
    pub const TABLED: Self = Self(3);
    /// Operands of the rows' dtype without tables; weight and bias are present.
    pub const AFFINE: Self = Self(4);
    /// As `AFFINE`, with only one of weight and bias.
    pub const PARTLY_AFFINE: Self = Self(5);
    /// As `AFFINE`, but the operands are f32.
    pub const F32_AFFINE: Self = Self(6);

    /// `self == other`; see [`OperandKind`](crate::layout::operand_kind::OperandKind).
    #[inline(always)]
    pub(crate) const fn is(self, other: Self) -> bool {
        self.0 == other.0
    }
}

/// The form of operands as a type: one for each [`OperandForm`] that kernels of their own are compiled for.
pub(crate) trait KnownForm {
    /// The form.
    const FORM: OperandForm;
}

/// [`OperandForm::SAME`].
pub(crate) struct Same;
/// [`OperandForm::F32`].
pub(crate) struct F32;
/// [`OperandForm::TABLED`].
pub(crate) struct Tabled;
/// [`OperandForm::AFFINE`].
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

/// The parameters of a norm over vec4s, apart from its operands: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormParams {
    /// Rows of the operands.
    pub rows: u64,
    /// Rows in a group of the outer stride; 0: the inner stride is the only one.
    pub inner: u32,
    /// Columns of a row.
    pub cols: u32,
    /// `1 / cols`.
    pub inv_cols: f32,
    /// Added to the variance, or to the mean of squares.
    pub eps: f32,
    /// Tiles of a row if a row fits into shared memory, else 0. Whether it is staged there depends on the kernel's `Access`.
    pub staged: u32,
    /// What the operands beside the rows are.
    pub form: OperandForm,
    /// Round to the element type after each step, as a chain of separate operators does, not once at the end.
    /// 0 or 1.
    pub round_each: u32,
    /// How all operands may be read, for kernels that take several ways.
    pub access: RowAccess,
    /// Are the staged rows `Rows::is_vector`? 0 or 1.
    pub packs: u32,
}

impl NormParams {
    /// Threads of a row that a block shares. Also the f32 elements of the reduction scratch, which is before the rows in shared
    /// memory.
    pub const SHARING: u32 = THREADS;

    /// The same, of which the compiler knows that the form is that of `F`.
    #[inline(always)]
    pub(crate) fn of_form<F: KnownForm>(self) -> Self {
        Self { form: F::FORM, ..self }
    }
}
