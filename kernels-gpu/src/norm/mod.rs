//! Building blocks of LayerNorm and RMSNorm: reductions in torch's summation order, and operands such as
//! weight, scale and gate.
//!
//! The operators `layer_norm`, `ada_norm`, `gated_residual_ada_norm`, `norm_gated_residual` and
//! `residual_tanh_gated_rms_norm` use these building blocks.

/// Evaluates a condition on type parameters, for example on the access type (how many elements one load
/// reads). In a build for the host, the condition is a constant expression, so only the branch that can run
/// is compiled. In a build for the GPU, LLVM evaluates the condition, because a constant expression would
/// change the instructions and register counts of the kernels.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! known {
    ($condition:expr) => {
        const { $condition }
    };
}
#[cfg(target_arch = "nvptx64")]
macro_rules! known {
    ($condition:expr) => {
        $condition
    };
}

pub mod affine;
pub(crate) mod broadcast_elements;
pub mod gated_residual;
pub(crate) mod io;
pub(crate) mod known_form;
pub mod mixed;
pub(crate) mod modulation;
pub mod normed_branch;
pub mod operand;
pub(crate) mod operand_forms;
pub mod params;
pub mod passes;
pub(crate) mod reduce;
pub(crate) mod row_context;
