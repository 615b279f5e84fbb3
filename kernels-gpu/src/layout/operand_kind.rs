//! The element type of an operand next to the rows of a kernel: a weight, a bias, a modulation.

/// Whether there is an operand, and its element type: a field of kernel arguments.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// No operand: nothing is read.
    Absent = 0,
    /// Of the element type of the rows.
    Same = 1,
    /// In f32.
    F32 = 2,
}
