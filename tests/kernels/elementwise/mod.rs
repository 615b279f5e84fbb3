//! Tests of the activations.
// Written by scripts/module_lists.py: run `make lists` after adding, renaming or removing a file.
pub(crate) mod activation;
pub(crate) mod activation_input;
pub(crate) mod gated_activation;

use crate::support::test::Test;

/// The tests of each module.
#[rustfmt::skip] // a line for each
pub(crate) const TESTS: &[&[Test]] = &[
    activation::TESTS,
    activation_input::TESTS,
    gated_activation::TESTS,
];
