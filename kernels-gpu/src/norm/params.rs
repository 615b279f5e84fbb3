//! What the kernels of a norm over quads are told: their parameters, and which way of reading rows they are
//! compiled for.
use super::reduce::block::THREADS;

/// The [`Access`](cuda_std::vec4::Access) of a launch, for kernels that are compiled for several of them.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowAccess {
    /// [`Scalar`](cuda_std::vec4::Scalar).
    Scalar = 0,
    /// [`Vec4`](cuda_std::vec4::Vec4).
    Vec4 = 1,
    /// [`WholeTiles`](cuda_std::vec4::WholeTiles), or any of rows that are: they are staged.
    WholeTiles = 2,
}

/// What the operands beside the rows are: a kernel that knows it asks nothing for each quad.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandForm {
    /// Those that are there are of the rows' type; no table, no weight or bias beside a modulation.
    Same = 0,
    /// As `Same`, in f32 beside rows of 16 bits.
    Single = 1,
    /// Anything else: looked up for each quad, of rows that are not of [`RowAccess::WholeTiles`].
    Any = 2,
    /// As `Same`, each with a table of the rows' type.
    Tabled = 3,
    /// As `Same`, with weight and bias of the rows' type.
    Affine = 4,
    /// The same with one of the two.
    PartlyAffine = 5,
    /// As `Single`, with weight and bias in f32.
    SingleAffine = 6,
}

/// What a norm over quads needs to know beside its operands: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
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
    /// Tiles of the rows that wait in shared memory: all, or none where there is no room for them.
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

impl Params {
    /// Threads of a row that a block shares, and elements of shared memory in which they meet, before the
    /// rows.
    pub const SHARING: u32 = THREADS;
}
