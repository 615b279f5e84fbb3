//! Tests of the norms, of their gradients and of gated residuals.
pub(crate) mod ada_norm;
pub(crate) mod ada_norm_bits;
pub(crate) mod add_rms_norm;
pub(crate) mod bad_input;
pub(crate) mod gated_forms;
pub(crate) mod gated_residual;
pub(crate) mod layer_norm;
pub(crate) mod mochi;
pub(crate) mod modulation_input;
pub(crate) mod modulation_overlap;
pub(crate) mod norm_backward;
pub(crate) mod norm_backward_input;
pub(crate) mod norm_backward_multi_row;
pub(crate) mod rms_norm;
pub(crate) mod rms_norm_gated;
