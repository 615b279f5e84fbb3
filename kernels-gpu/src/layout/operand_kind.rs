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
    /// The operand is f16. Only kernels with `mixed` in their names accept this type and the next one.
    pub const F16: Self = Self(3);
    /// The operand is bf16.
    pub const BF16: Self = Self(4);

    /// This bit says that the operand has one column, that is, one number for each row. Only kernels with
    /// `mixed` in their names read it.
    const PER_ROW: u32 = 8;

    /// Returns the kind of an operand of the same type with one column.
    pub const fn per_row(self) -> Self {
        Self(self.0 | Self::PER_ROW)
    }

    /// Returns whether the operand has one column.
    #[inline(always)]
    pub const fn is_per_row(self) -> bool {
        self.0 & Self::PER_ROW != 0
    }

    /// Returns the kind without the number of columns.
    #[inline(always)]
    pub const fn element(self) -> Self {
        Self(self.0 & !Self::PER_ROW)
    }

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
