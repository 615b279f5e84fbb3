//! Checks of numbers among the arguments of an op.
use crate::{Error, Result};

/// Returns `value` if it is finite and at least `min`. Otherwise returns an error that names `op` and `arg`.
pub(crate) fn finite(op: &'static str, arg: &'static str, value: f32, min: f32) -> Result<f32> {
    if value.is_finite() && value >= min {
        return Ok(value);
    }
    let expected = if min < 0.0 { "a finite number" } else { "a finite number of 0 or more" };
    Err(Error::Value { op, arg, got: value.into(), expected })
}
