//! One op, one file: checks of its arguments, its ladders, its launch.
pub mod activation;
pub mod activation_backward;
pub mod ada_norm;
pub mod add_rms_norm;
pub mod cross_entropy;
pub mod cross_entropy_backward;
pub mod gated_activation;
pub mod gated_activation_backward;
pub mod gated_residual;
pub mod gated_residual_ada_norm;
pub mod layer_norm;
pub mod layer_norm_backward;
pub mod residual_tanh_gated_rms_norm;
pub mod rms_norm;
pub mod rms_norm_backward;
pub mod softmax;
pub mod softmax_backward;
