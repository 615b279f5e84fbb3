//! Presence and element type of an optional operand of a kernel, such as a weight, a bias or a modulation.

/// Whether an operand is present, and its element type: a field of kernel arguments.
///
/// Choices in kernel arguments are structs with constants, not enums. LLVM would use the fact that an enum
/// has no other values. ptxas would then generate other instructions and register counts for most kernels.
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

    /// `self == other` for kernels. The operator `==` takes references, for which LLVM generates other code.
    #[inline(always)]
    pub(crate) const fn is(self, other: Self) -> bool {
        self.0 == other.0
    }

    /// `self != other` for kernels.
    #[inline(always)]
    pub(crate) const fn is_not(self, other: Self) -> bool {
        self.0 != other.0
    }
}
