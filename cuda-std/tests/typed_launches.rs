//! Launches with wrong arguments do not compile, and the compiler's message names the kernel.

#[test]
fn wrong_arguments_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/typed_launches/*.rs");
}
