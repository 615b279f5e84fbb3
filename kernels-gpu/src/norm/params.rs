//! What the kernels of a norm over quads are told: their parameters, and which way of reading rows they are compiled for.
#[allow(unused_imports, reason = "named in documentation")]
use cuda_std::vec4::WHOLE;

use super::reduce::block::THREADS;

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
    /// What the operands beside the rows are: one of the constants of [`Params`].
    pub form: u32,
    /// Round to the element type after each step, as a chain of separate operators does, not once at the end. 0 or 1.
    pub round_each: u32,
    /// How all operands may be read: [`SCALAR`](cuda_std::vec4::SCALAR), [`QUADS`](cuda_std::vec4::QUADS) or [`WHOLE`]; with
    /// the last the rows are staged.
    pub access: u32,
    /// Are the staged rows `Rows::is_vector`? 0 or 1.
    pub packs: u32,
}

impl Params {
    /// Threads of a row that a block shares, and elements of shared memory in which they meet, before the rows.
    pub const SHARING: u32 = THREADS;

    /// The same, of which the compiler knows that the form is `FORM`.
    #[inline(always)]
    pub(crate) fn of_form<const FORM: u32>(self) -> Self {
        Self { form: FORM, ..self }
    }

    /// Those that are there are of the rows' type; no table, no weight or bias beside a modulation.
    pub const SAME: u32 = 0;
    /// As [`Params::SAME`], in f32 beside rows of 16 bits.
    pub const SINGLE: u32 = 1;
    /// Anything else: looked up for each quad, of rows that are not [`WHOLE`].
    pub const ANY: u32 = 2;
    /// As [`Params::SAME`], each with a table of the rows' type.
    pub const TABLED: u32 = 3;
    /// As [`Params::SAME`], with weight and bias of the rows' type.
    pub const AFFINE: u32 = 4;
    /// The same with one of the two.
    pub const PARTLY_AFFINE: u32 = 5;
    /// As [`Params::SINGLE`], with weight and bias in f32.
    pub const SINGLE_AFFINE: u32 = 6;
}

/// Runs `$body` with the constant `$access` for the launch's way of reading rows of any layout.
#[allow(unused_macros, reason = "units without an op over quads")]
macro_rules! with_any_access {
    ($p:expr, $access:ident => $body:expr) => {
        if $p.access == cuda_std::vec4::QUADS {
            const $access: u32 = cuda_std::vec4::QUADS;
            $body
        } else {
            const $access: u32 = cuda_std::vec4::SCALAR;
            $body
        }
    };
}
#[allow(unused_imports, reason = "units without an op over quads")]
pub(crate) use with_any_access;

/// The same, or of whole tiles.
#[allow(unused_macros, reason = "units without an op over quads")]
macro_rules! with_access {
    ($p:expr, $access:ident => $body:expr) => {
        if $p.access == cuda_std::vec4::WHOLE {
            const $access: u32 = cuda_std::vec4::WHOLE;
            $body
        } else {
            crate::norm::params::with_any_access!($p, $access => $body)
        }
    };
}
#[allow(unused_imports, reason = "units without an op over quads")]
pub(crate) use with_access;
