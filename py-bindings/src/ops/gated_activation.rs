//! `oxiwarp::gated_activation` and `oxiwarp::gated_activation_out`: unpack, allocate, call the host.

use super::activation::{by_number, on, roundings};
use crate::boundary::{Args, run};
use crate::tensor::Tensor;
use oxiwarp::{Gate, GatedActivation};
use std::ffi::CStr;

const OP: &CStr = c"gated_activation";

/// `gated_activation(Tensor x, Tensor? second, Tensor? bias, int kind, bool gate_first, float threshold, bool exact)
/// -> Tensor`
pub unsafe extern "C-unwind" fn gated_activation(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    // SAFETY: as above; what `Call` reads comes first.
    let call = unsafe { Call::read(&mut args) };
    run(OP, move || {
        let mut sizes = call.x.sizes()?.to_vec();
        if call.second.is_none() {
            sizes.iter_mut().last().into_iter().for_each(|last| *last /= 2);
        }
        let y = call.x.empty("y", &sizes)?;
        call.launch(&y)?;
        // SAFETY: the schema has one result, so the stack has a place for it.
        unsafe { *stack = y.into_raw() };
        Ok(())
    });
}

/// `gated_activation_out(Tensor x, Tensor? second, Tensor? bias, int kind, bool gate_first, float threshold, bool exact,
/// Tensor(a!) out) -> ()`
pub unsafe extern "C-unwind" fn gated_activation_out(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: as above, with `out` as one more argument.
    let (call, out) = unsafe {
        let mut args = Args::new(stack, OP);
        (Call::read(&mut args), args.tensor("out"))
    };
    run(OP, move || {
        out.expect_on(call.x.location()?)?;
        call.launch(&out)
    });
}

/// The arguments that forward and backward pass share.
pub(super) struct Call {
    pub x: Tensor,
    pub second: Option<Tensor>,
    pub bias: Option<Tensor>,
    kind: i64,
    gate_first: bool,
    threshold: f32,
    exact: bool,
}

impl Call {
    /// # Safety
    /// The next arguments are those of the schema above.
    pub(super) unsafe fn read(args: &mut Args) -> Self {
        let x = args.tensor("x");
        let second = args.optional_tensor("the second tensor");
        let bias = args.optional_tensor("bias");
        let (kind, gate_first, threshold) = (args.int(), args.bool(), args.float() as f32);
        let second = second.map(|second| second.named(if gate_first { "up" } else { "gate" }));
        Self { x, second, bias, kind, gate_first, threshold, exact: args.bool() }
    }

    fn launch(&self, y: &Tensor) -> Result<(), String> {
        let params = self.params("gated_activation")?;
        let place = self.x.location()?;
        let x = self.x.view()?;
        let (second, bias) = (on(place, self.second.as_ref(), &x)?, on(place, self.bias.as_ref(), &x)?);
        let (device, stream) = place.device_and_stream()?;
        oxiwarp::gated_activation(&device, x, second, bias, y.view_mut_like(&x)?, params, stream)
            .map_err(|error| error.to_string())
    }

    pub(super) fn params(&self, op: &str) -> Result<GatedActivation, String> {
        Ok(GatedActivation {
            activation: by_number(op, self.kind, self.threshold)?,
            gate: if self.gate_first { Gate::First } else { Gate::Second },
            roundings: roundings(self.exact),
        })
    }
}
