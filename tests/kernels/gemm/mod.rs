//! Tests of matrix products.
// The script scripts/module_lists.py writes the list of modules below. Run `make lists` after you add, rename
// or remove a file.
pub(crate) mod linear;
pub(crate) mod linear_epilogue;
pub(crate) mod linear_fp8;
pub(crate) mod linear_input;

use crate::support::test::Test;

/// The tests of each module.
#[rustfmt::skip] // a line for each
pub(crate) const TESTS: &[&[Test]] = &[
    linear::TESTS,
    linear_epilogue::TESTS,
    linear_fp8::TESTS,
    linear_input::TESTS,
];
