//! Tests of the activations.
// The script scripts/module_lists.py writes the list of modules below. Run `make lists` after you add, rename
// or remove a file.
pub(crate) mod activation;
pub(crate) mod activation_input;
pub(crate) mod gated_activation;
pub(crate) mod quantize_fp8;
pub(crate) mod quantize_fp8_input;

use crate::support::test::Test;

/// The tests of each module.
#[rustfmt::skip] // a line for each
pub(crate) const TESTS: &[&[Test]] = &[
    activation::TESTS,
    activation_input::TESTS,
    gated_activation::TESTS,
    quantize_fp8::TESTS,
    quantize_fp8_input::TESTS,
];
