//! Checks the text of an error.
use oxiwarp::Error;

/// Panics if `result` is `Ok`, or if the message of its error does not contain `text`.
#[track_caller]
pub fn says(result: Result<(), Error>, text: &str) {
    let error = result.expect_err(text).to_string();
    assert!(error.contains(text), "the error is: {error}\nexpected in it: {text}");
}
