//! Constants of the approximations of GELU.
/// `sqrt(2 / pi)`, the linear coefficient of GELU's tanh approximation.
pub(crate) const BETA: f32 = 0.797_884_6;
/// Coefficient of `x^3` in GELU's tanh approximation.
pub(crate) const KAPPA: f32 = 0.044_715;
/// Factor of `x` in `x * sigmoid(1.702 * x)`.
pub(crate) const QUICK: f32 = 1.702;
