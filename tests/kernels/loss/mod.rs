//! Tests of softmax and cross-entropy.
// The script scripts/module_lists.py writes the list of modules below. Run `make lists` after you add, rename
// or remove a file.
pub(crate) mod cross_entropy;
pub(crate) mod cross_entropy_backward;
pub(crate) mod softmax;
pub(crate) mod softmax_backward;

use crate::support::test::Test;

/// The tests of each module.
#[rustfmt::skip] // a line for each
pub(crate) const TESTS: &[&[Test]] = &[
    cross_entropy::TESTS,
    cross_entropy_backward::TESTS,
    softmax::TESTS,
    softmax_backward::TESTS,
];
