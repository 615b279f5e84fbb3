//! `oxiwarp::cross_entropy`: unpack, look at targets on the CPU, allocate both results, call the host.

use crate::boundary::{Args, run};
use crate::device::Location;
use crate::shim::Place;
use crate::tensor::Tensor;
use oxiwarp::{CrossEntropy, Dtype, View};
use std::ffi::CStr;

const OP: &CStr = c"cross_entropy";

/// `cross_entropy(Tensor logits, Tensor target, int ignore_index, float label_smoothing, float z_loss)
/// -> (Tensor, Tensor)`: the loss and the logarithm of the sum of exponentials, of each row.
pub unsafe extern "C-unwind" fn cross_entropy(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let (logits, target, params) = (args.tensor("logits"), args.tensor("target"), params(&mut args));
    run(OP, move || {
        let (loss, lse) = launch(&logits, &target, params)?;
        // SAFETY: the schema has two results, so the stack has places for them.
        unsafe { (*stack, *stack.add(1)) = (loss.into_raw(), lse.into_raw()) };
        Ok(())
    });
}

/// The last three arguments of the schemas of the loss and of its gradient.
pub(super) fn params(args: &mut Args) -> CrossEntropy {
    CrossEntropy {
        ignore_index: args.int(),
        label_smoothing: args.float() as f32,
        z_loss: args.float() as f32,
    }
}

fn launch(logits: &Tensor, target: &Tensor, params: CrossEntropy) -> Result<(Tensor, Tensor), String> {
    let place = logits.location()?;
    target.expect_beside(place, "logits")?;
    let (device, stream) = place.device_and_stream()?;
    let (x, classes) = (logits.view()?, target.index_view()?);
    let (loss, lse) = (logits.empty_rows("loss")?, logits.empty_rows("lse")?);
    let results = (loss.view_mut()?, lse.view_mut()?);
    oxiwarp::cross_entropy(&device, x, classes, results.0, results.1, params, stream)
        .map_err(|error| error.to_string())?;
    expect_classes(place, &x, &classes, params)?;
    Ok((loss, lse))
}

/// An error for a target on the CPU that is no class, as torch has it. On a GPU nobody but the kernel knows: there the
/// loss is NaN.
fn expect_classes(place: Location, x: &View, target: &View, params: CrossEntropy) -> Result<(), String> {
    if place.place != Some(Place::Cpu) {
        return Ok(());
    }
    let classes = x.shape().last().copied().unwrap_or(0);
    let rows = target.shape().iter().product::<i64>() as usize;
    for row in 0..rows {
        // SAFETY: the op has checked that the targets are contiguous integers, one for each row, on the CPU.
        let class = unsafe {
            match target.dtype() {
                Dtype::I32 => i64::from(*target.ptr().cast::<i32>().add(row)),
                _ => *target.ptr().cast::<i64>().add(row),
            }
        };
        if class != params.ignore_index && !(0..classes).contains(&class) {
            let expected = format!("0 to {} or ignore_index ({})", classes - 1, params.ignore_index);
            return Err(format!("cross_entropy: target of row {row} is {class}, expected {expected}"));
        }
    }
    Ok(())
}
