//! `oxiwarp::activation` and `oxiwarp::activation_out`: unpack, allocate, call the host.

use crate::boundary::{Args, run};
use crate::tensor::Tensor;
use oxiwarp::{Activation, Roundings, View};
use std::ffi::CStr;

const OP: &CStr = c"activation";

/// `activation(Tensor x, Tensor? bias, int kind, bool exact) -> Tensor`
pub unsafe extern "C-unwind" fn activation(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let call = unsafe { Call::read(stack) }.0;
    run(OP, move || {
        let y = call.x.empty_like("y")?;
        call.launch(&y)?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = y.into_raw() };
        Ok(())
    });
}

/// `activation_out(Tensor x, Tensor? bias, int kind, bool exact, Tensor(a!) out) -> ()`
pub unsafe extern "C-unwind" fn activation_out(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: as above, with `out` as one more argument.
    let (call, mut rest) = unsafe { Call::read(stack) };
    let out = rest.tensor("out");
    run(OP, move || {
        out.expect_on(call.x.location()?)?;
        call.launch(&out)
    });
}

struct Call {
    x: Tensor,
    bias: Option<Tensor>,
    kind: i64,
    roundings: Roundings,
}

impl Call {
    /// # Safety
    /// `stack` holds the four arguments that both schemas begin with.
    unsafe fn read(stack: *mut u64) -> (Self, Args) {
        // SAFETY: passed on to the caller; one read per argument, in order.
        let mut args = unsafe { Args::new(stack, OP) };
        let (x, bias) = (args.tensor("x"), args.optional_tensor("bias"));
        let (kind, roundings) = (args.int(), roundings(args.bool()));
        (Call { x, bias, kind, roundings }, args)
    }

    fn launch(&self, y: &Tensor) -> Result<(), String> {
        let kind = by_number("activation", self.kind, 0.0)?;
        let place = self.x.location()?;
        let x = self.x.view()?;
        let bias = on(place, self.bias.as_ref(), &x)?;
        let (device, stream) = place.device_and_stream()?;
        oxiwarp::activation(&device, x, bias, y.view_mut_like(&x)?, kind, self.roundings, stream)
            .map_err(|error| error.to_string())
    }
}

/// The functions by the numbers that the operators take: the constants of `oxiwarp/ops/activation.py`.
pub(super) fn by_number(op: &str, kind: i64, threshold: f32) -> Result<Activation, String> {
    Ok(match kind {
        0 => Activation::Gelu,
        1 => Activation::GeluCuda13_2,
        2 => Activation::GeluTanh,
        3 => Activation::GeluNew,
        4 => Activation::GeluFast,
        5 => Activation::GeluQuick,
        6 => Activation::Silu,
        7 => Activation::Fatrelu(threshold),
        _ => return Err(format!("{op}: kind is {kind}, expected 0 to 7")),
    })
}

/// The operators' `exact` as the host names it.
pub(super) fn roundings(exact: bool) -> Roundings {
    if exact { Roundings::Exact } else { Roundings::Once }
}

/// The view of an optional tensor, which must live where `x` does and have its dtype.
pub(super) fn on<'a>(
    place: crate::device::Location,
    tensor: Option<&'a Tensor>,
    x: &View,
) -> Result<Option<View<'a>>, String> {
    let Some(tensor) = tensor else { return Ok(None) };
    tensor.expect_on(place)?;
    tensor.view_like(x).map(Some)
}
