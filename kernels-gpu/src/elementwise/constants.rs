//! Constants of GELU's approximations.
/// `sqrt(2 / pi)`.
pub(crate) const BETA: f32 = 0.797_884_6;
/// The cubic coefficient of GELU's tanh approximation.
pub(crate) const KAPPA: f32 = 0.044_715;
/// Of `x * sigmoid(1.702 * x)`.
pub(crate) const QUICK: f32 = 1.702;
