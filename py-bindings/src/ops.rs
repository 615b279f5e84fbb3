//! The operators, one file each, and their registration on CPU and CUDA.
//!
//! Schemas, fakes and tags are Python's (`oxiwarp/ops/*.py`); the order and types of arguments here must be theirs.

mod add_rms_norm;
mod heads;
mod qk_norm_rope;
mod rms_norm;
mod rope;

use crate::shim::{Boxed, shim};
use oxiwarp::Rounding;
use std::ffi::CStr;

const KERNELS: &[(&CStr, Boxed)] = &[
    (c"rms_norm", rms_norm::rms_norm),
    (c"rms_norm_out", rms_norm::rms_norm_out),
    (c"add_rms_norm", add_rms_norm::add_rms_norm),
    (c"qk_norm_rope", qk_norm_rope::qk_norm_rope),
    (c"qk_norm_rope_one", qk_norm_rope::qk_norm_rope_one),
    (c"qk_norm_rope_out", qk_norm_rope::qk_norm_rope_out),
    (c"rope", rope::rope),
    (c"rope_pair", rope::rope_pair),
];

/// Registers every kernel on both dispatch keys.
pub fn register() -> Result<(), String> {
    shim().register(c"oxiwarp", c"CPU", KERNELS)?;
    shim().register(c"oxiwarp", c"CUDA", KERNELS)
}

/// The operators' `round_before_weight` as the host names it.
fn rounding(before_weight: bool) -> Rounding {
    if before_weight { Rounding::BeforeWeight } else { Rounding::Once }
}
