//! Checks of the values in tensors. The functions of the `oxiwarp` crate do not make these checks.

use crate::boundary::Failure;
use crate::call::Call;
use crate::shim::Place;
use oxiwarp::arguments::{Argument, Source};
use oxiwarp::{CrossEntropy, Dtype};

/// Returns an error if a target of cross-entropy is not a class. torch also raises an error in this case. The
/// function checks only targets on the CPU, because reading targets from a GPU would block. On a GPU, the
/// loss of a target that is not a class is NaN.
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
        // SAFETY: `oxiwarp::cross_entropy` has checked that the targets are contiguous integers, one per row.
        // This function returns early if the targets are not on the CPU.
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
