//! Tests that a launch with wrong arguments does not compile, and that the compiler's message names the
//! kernel.

#[test]
fn wrong_arguments_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/typed_launches/*.rs");
}
