//! The operand types of `wgmma`.

/// The element types of the two operands of a `wgmma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bf16,
    F16,
    Tf32,
    E4m3,
    E5m2,
    E4m3E5m2,
    E5m2E4m3,
    S8,
    U8,
}
