//! What an error says.
use oxiwarp::Error;

/// Panics unless the result is an error with this text in it.
#[track_caller]
pub fn says(result: Result<(), Error>, text: &str) {
    let error = result.expect_err(text).to_string();
    assert!(error.contains(text), "the error is: {error}\nexpected in it: {text}");
}
