//! Tests of attention and of its gradients.
// The script scripts/module_lists.py writes the list of modules below. Run `make lists` after you add, rename
// or remove a file.
pub(crate) mod alignment;
pub(crate) mod backward;
pub(crate) mod decode;
pub(crate) mod forward;
pub(crate) mod input;
pub(crate) mod packed;
pub(crate) mod tiles;

use crate::support::test::Test;

/// The tests of each module.
#[rustfmt::skip] // a line for each
pub(crate) const TESTS: &[&[Test]] = &[
    alignment::TESTS,
    backward::TESTS,
    decode::TESTS,
    forward::TESTS,
    input::TESTS,
    packed::TESTS,
    tiles::TESTS,
];
