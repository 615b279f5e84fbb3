//! The element type of an operand next to the rows of a kernel: a weight, a bias, a modulation.

/// Whether there is an operand, and its element type: a field of kernel arguments.
///
/// This is a struct and not an enum, and so are the other choices in kernel arguments. LLVM would use that an enum
/// has no other values, and ptxas would then give most kernels other instructions and register counts.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandKind(u32);

impl OperandKind {
    /// No operand: nothing is read.
    pub const ABSENT: Self = Self(0);
    /// Of the element type of the rows.
    pub const SAME: Self = Self(1);
    /// In f32.
    pub const F32: Self = Self(2);

    /// `self == other` for kernels: the operands of `==` are references, for which LLVM makes other code.
    #[inline(always)]
    pub(crate) const fn is(self, other: Self) -> bool {
        self.0 == other.0
    }

    /// `self != other`.
    #[inline(always)]
    pub(crate) const fn is_not(self, other: Self) -> bool {
        self.0 != other.0
    }
}
