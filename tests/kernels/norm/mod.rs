//! Tests of the norms, of their gradients and of gated residuals.
// The script scripts/module_lists.py writes the list of modules below. Run `make lists` after you add, rename
// or remove a file.
pub(crate) mod ada_norm;
pub(crate) mod ada_norm_bits;
pub(crate) mod add_rms_norm;
pub(crate) mod bad_input;
pub(crate) mod gated_forms;
pub(crate) mod gated_residual;
pub(crate) mod gated_residual_backward;
pub(crate) mod layer_norm;
pub(crate) mod mixed;
pub(crate) mod mochi;
pub(crate) mod modulate;
pub(crate) mod modulation_input;
pub(crate) mod modulation_overlap;
pub(crate) mod norm_backward;
pub(crate) mod norm_backward_input;
pub(crate) mod norm_backward_multi_row;
pub(crate) mod norm_gated_residual;
pub(crate) mod rms_norm;
pub(crate) mod rms_norm_affine;
pub(crate) mod rms_norm_affine_backward;
pub(crate) mod rms_norm_gated;
pub(crate) mod row_gates;

use crate::support::test::Test;

/// The tests of each module.
#[rustfmt::skip] // a line for each
pub(crate) const TESTS: &[&[Test]] = &[
    ada_norm::TESTS,
    ada_norm_bits::TESTS,
    add_rms_norm::TESTS,
    bad_input::TESTS,
    gated_forms::TESTS,
    gated_residual::TESTS,
    gated_residual_backward::TESTS,
    layer_norm::TESTS,
    mixed::TESTS,
    mochi::TESTS,
    modulate::TESTS,
    modulation_input::TESTS,
    modulation_overlap::TESTS,
    norm_backward::TESTS,
    norm_backward_input::TESTS,
    norm_backward_multi_row::TESTS,
    norm_gated_residual::TESTS,
    rms_norm::TESTS,
    rms_norm_affine::TESTS,
    rms_norm_affine_backward::TESTS,
    rms_norm_gated::TESTS,
    row_gates::TESTS,
];
