//! Presence and element type of an optional operand of a kernel, such as a weight, a bias or a modulation.

/// States in a kernel argument whether an optional operand is present, and which element type it has.
///
/// This type is a struct with constants instead of an enum. For an enum, LLVM would assume that every value
/// is one of the variants. This assumption would change the instructions and register counts of most kernels.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandKind(u32);

impl OperandKind {
    /// The operand is absent.
    pub const ABSENT: Self = Self(0);
    /// The operand has the element type of the rows.
    pub const SAME: Self = Self(1);
    /// The operand is f32.
    pub const F32: Self = Self(2);

    /// Returns `self == other`. In kernels, use this method instead of the operator `==`. The operator takes
    /// its operands by reference, which changes the code that LLVM generates.
    #[inline(always)]
    pub(crate) const fn is(self, other: Self) -> bool {
        self.0 == other.0
    }

    /// Returns `self != other`. In kernels, use this method instead of the operator `!=`. The operator takes
    /// its operands by reference, which changes the code that LLVM generates.
    #[inline(always)]
    pub(crate) const fn is_not(self, other: Self) -> bool {
        self.0 != other.0
    }
}
