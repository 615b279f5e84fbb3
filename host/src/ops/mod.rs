//! The host functions of the ops. Each op has one file, which checks the arguments, chooses the launch
//! configuration and launches the kernel.
// The script scripts/module_lists.py writes the list of modules below. Run `make lists` after you add, rename
// or remove a file.
mod activation;
mod activation_backward;
mod ada_norm;
mod add_rms_norm;
mod attention;
mod attention_backward;
mod attention_decode;
mod attention_hopper;
mod cross_entropy;
mod cross_entropy_backward;
mod gated_activation;
mod gated_activation_backward;
mod gated_residual;
mod gated_residual_ada_norm;
mod gated_residual_backward;
mod layer_norm;
mod layer_norm_backward;
mod linear;
mod linear_hopper;
mod modulate;
mod qk_norm_rope;
mod residual_tanh_gated_rms_norm;
mod rms_norm;
mod rms_norm_backward;
mod rms_norm_gated;
mod rope;
mod softmax;
mod softmax_backward;

pub use activation::*;
pub use activation_backward::*;
pub use ada_norm::*;
pub use add_rms_norm::*;
pub use attention::*;
pub use attention_backward::*;
pub use attention_decode::*;
pub use cross_entropy::*;
pub use cross_entropy_backward::*;
pub use gated_activation::*;
pub use gated_activation_backward::*;
pub use gated_residual::*;
pub use gated_residual_ada_norm::*;
pub use gated_residual_backward::*;
pub use layer_norm::*;
pub use layer_norm_backward::*;
pub use linear::*;
pub use modulate::*;
pub use qk_norm_rope::*;
pub use residual_tanh_gated_rms_norm::*;
pub use rms_norm::*;
pub use rms_norm_backward::*;
pub use rms_norm_gated::*;
pub use rope::*;
pub use softmax::*;
pub use softmax_backward::*;
