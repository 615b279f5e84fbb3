//! Tests that incorrect launches do not compile, and that the compiler prints the expected message. Examples
//! are a misspelt kernel name and an argument of the wrong type.
//!
//! trybuild compiles all dependencies again, so only `make test-extra` runs this test. The documentation
//! tests of the crate `oxiwarp-tests` check the error codes of the same programs.

#[test]
#[ignore = "slow: run by make test-extra"]
fn wrong_arguments_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/typed_launches/*.rs");
}
