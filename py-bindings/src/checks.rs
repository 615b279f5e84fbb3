//! Checks of tensor elements, in addition to the checks in the functions of the `oxiwarp` crate.

use crate::boundary::Failure;
use crate::call::Call;
use crate::shim::Place;
use oxiwarp::arguments::{Argument, Source};
use oxiwarp::{CrossEntropy, Dtype};

/// Returns an error if a target of cross-entropy is not a valid class index, as torch does. Only targets on
/// the CPU are checked, because reading targets from a GPU would block. On a GPU, an invalid target gives the
/// loss NaN.
pub fn expect_classes(call: &Call) -> Result<(), Failure> {
    if call.location.place != Some(Place::Cpu) {
        return Ok(());
    }
    let mut source = call.source();
    let (x, target) = (source.tensor()?, source.tensor()?);
    let ignore_index = CrossEntropy::take(&mut source)?.ignore_index;
    let classes = x.shape().last().copied().unwrap_or(0);
    let rows = target.shape().iter().product::<i64>() as usize;
    for row in 0..rows {
        // SAFETY: the target of this row can be read. `oxiwarp::cross_entropy` has checked that the targets
        // are contiguous integers, one per row. The targets are on the CPU, because this function returns
        // early for other devices.
        let class = unsafe {
            match target.dtype() {
                Dtype::I32 => i64::from(*target.ptr().cast::<i32>().add(row)),
                _ => *target.ptr().cast::<i64>().add(row),
            }
        };
        if class != ignore_index && !(0..classes).contains(&class) {
            let expected = format!("0 to {} or ignore_index ({ignore_index})", classes - 1);
            let op = call.operator.op;
            return Err(Failure(format!("{op}: target of row {row} is {class}, expected {expected}")));
        }
    }
    Ok(())
}
