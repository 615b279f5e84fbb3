//! Checks the text of an error.
use oxiwarp::Error;

/// Panics if the result is not an error whose message contains `text`.
#[track_caller]
pub fn says(result: Result<(), Error>, text: &str) {
    let error = result.expect_err(text).to_string();
    assert!(error.contains(text), "the error is: {error}\nexpected in it: {text}");
}
