//! `oxiwarp::ada_norm` and `oxiwarp::ada_norm_pair`: unpack, allocate, call the host.

use crate::boundary::{Args, run};
use crate::modulation::{AffineArgs, ScaleShiftArgs};
use oxiwarp::{AdaNorm, Norm};
use std::ffi::CStr;

const OP: &CStr = c"ada_norm";
const PAIR: &CStr = c"ada_norm_pair";
pub(super) const FIRST: [&str; 4] = ["scale", "scale_table", "shift", "shift_table"];
const SECOND: [&str; 4] = ["scale2", "scale2_table", "shift2", "shift2_table"];

/// `bool rms, float eps, bool exact`.
pub(super) fn read_params(args: &mut Args) -> AdaNorm {
    let norm = if args.bool() { Norm::Rms } else { Norm::Layer };
    AdaNorm { norm, eps: args.float() as f32, exact: args.bool() }
}

/// `ada_norm(Tensor x, Tensor scale, Tensor? scale_table, Tensor? shift, Tensor? shift_table, Tensor? weight,
/// Tensor? bias, bool rms, float eps, bool exact) -> Tensor`
pub unsafe extern "C-unwind" fn ada_norm(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (x, by) = (args.tensor("x"), ScaleShiftArgs::read(&mut args, FIRST));
    let (affine, params) = (AffineArgs::read(&mut args), read_params(&mut args));
    run(OP, move || {
        let (place, input) = (x.location()?, x.view()?);
        let (by, affine) = (by.views(place, &input)?, affine.views(place, &input)?);
        let y = x.empty_like("y")?;
        let (device, stream) = place.device_and_stream()?;
        oxiwarp::ada_norm(&device, input, affine, by, y.view_mut()?, params, stream)
            .map_err(|error| error.to_string())?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = y.into_raw() };
        Ok(())
    });
}

/// `ada_norm_pair`: as `ada_norm`, with `Tensor scale2, Tensor? scale2_table, Tensor? shift2, Tensor? shift2_table` after
/// the first four; two results.
pub unsafe extern "C-unwind" fn ada_norm_pair(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: as above.
    let mut args = unsafe { Args::new(stack, PAIR) };
    let (x, by) = (args.tensor("x"), ScaleShiftArgs::read(&mut args, FIRST));
    let by2 = ScaleShiftArgs::read(&mut args, SECOND);
    let (affine, params) = (AffineArgs::read(&mut args), read_params(&mut args));
    run(PAIR, move || {
        let (place, input) = (x.location()?, x.view()?);
        let (by, affine) =
            ([by.views(place, &input)?, by2.views(place, &input)?], affine.views(place, &input)?);
        let (y, y2) = (x.empty_like("y")?, x.empty_like("y2")?);
        let (device, stream) = place.device_and_stream()?;
        let outs = [y.view_mut()?, y2.view_mut()?];
        oxiwarp::ada_norm_pair(&device, input, affine, by, outs, params, stream)
            .map_err(|error| error.to_string())?;
        // SAFETY: the schema has two results, so the stack has places for them.
        unsafe { (*stack, *stack.add(1)) = (y.into_raw(), y2.into_raw()) };
        Ok(())
    });
}
