//! Tests of `rope` and `qk_norm_rope`.
// The script scripts/module_lists.py writes the list of modules below. Run `make lists` after you add, rename
// or remove a file.
pub(crate) mod bad_input;
pub(crate) mod empty;
pub(crate) mod in_place;
pub(crate) mod kernels;
pub(crate) mod positions;
pub(crate) mod qk_norm_rope;
pub(crate) mod rope;

use crate::support::test::Test;

/// The tests of each module.
#[rustfmt::skip] // a line for each
pub(crate) const TESTS: &[&[Test]] = &[
    bad_input::TESTS,
    empty::TESTS,
    in_place::TESTS,
    kernels::TESTS,
    positions::TESTS,
    qk_norm_rope::TESTS,
    rope::TESTS,
];
