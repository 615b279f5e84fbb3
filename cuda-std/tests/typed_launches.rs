//! Tests that incorrect launches do not compile, and that the compiler prints the expected message. Examples
//! are a misspelt kernel name and an argument of the wrong type.

#[test]
fn wrong_arguments_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/typed_launches/*.rs");
}
