//! Checks that the results of a benchmark call are finite. All inputs are finite, so a result that is not
//! finite is an error. The check takes little time because it does not compare the results with expected
//! values. The program `tune` and the tests do this comparison.
use oxiwarp::{Device, Result, Stream};

use super::op::BLOCK;
use super::{Case, Pool, Singles};

/// Number of elements to read at the start of a result, in its middle, and at its end.
const READ: usize = 64 << 10;

impl Case<'_> {
    /// Fills the results with NaN and runs the op. Then it reads three ranges of each result, and describes
    /// the first element that is not finite. Returns `None` if all elements are finite.
    ///
    /// # Errors
    /// Returns the errors of [`Case::call`], or an error if a kernel failed.
    pub fn not_finite(&self, device: &Device, pool: &mut Pool, stream: Stream) -> Result<Option<String>> {
        pool.poison(stream)?;
        self.run(device, pool, stream)?;
        device.synchronize()?;
        for (number, width) in self.op.writes.iter().enumerate() {
            let found = first(self.rows * width(self.cols), |range| pool.result(number, range))?;
            if let Some((at, value)) = found {
                return Ok(Some(format!("element {at} of result {number} is {value}")));
            }
        }
        let (count, len) = match self.op.singles {
            Singles::OfRows(count) => (count, self.rows),
            Singles::OfBlocks => (1, self.rows * self.cols.div_ceil(BLOCK)),
            Singles::OfColumns(count) => (count, self.cols),
        };
        for number in 0..count {
            if let Some((at, value)) = first(len, |range| pool.single(number, range))? {
                return Ok(Some(format!("element {at} of f32 result {number} is {value}")));
            }
        }
        Ok(None)
    }
}

/// Reads the start, the middle and the end of a result with `read`. Returns the first element that is not
/// finite, with its index.
fn first(
    len: usize,
    read: impl Fn(std::ops::Range<usize>) -> Result<Vec<f32>>,
) -> Result<Option<(usize, f32)>> {
    let count = READ.min(len);
    for begin in [0, (len - count) / 2, len - count] {
        let values = read(begin..begin + count)?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Ok(Some((begin + at, values[at])));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{Choices, OPS, Values};

    /// Checks that every benchmarked op runs on the CPU executor with a few rows, and writes all of its
    /// results.
    #[test]
    fn every_op_runs_and_its_results_are_finite() {
        let (cpu, stream) = (Device::cpu(), Stream::default());
        for op in OPS {
            let (rows, cols) = match op.choices {
                _ if op.max_rows == 1 => (1, 64),
                Choices::Decode => (1, 256),
                _ => (3, 1_024),
            };
            let case = Case { op, rows, cols };
            let values = Values::new(case.step());
            let mut pool = Pool::new(&cpu, &values, case.step(), 1 << 12, 1).expect("memory");
            let found = case.not_finite(&cpu, &mut pool, stream);
            assert_eq!(found.unwrap_or_else(|error| panic!("{}: {error}", op.name)), None, "{}", op.name);
            // The table `OPS` of all benchmarked ops gives the elements per row of each tensor. The call must
            // use exactly that many elements.
            let widths = op.reads.iter().chain(op.writes).map(|width| width(cols));
            assert_eq!(pool.viewed.get(), rows * widths.sum::<usize>(), "{}", op.name);
        }
    }

    #[test]
    fn an_element_at_any_place_that_is_read_is_found() {
        for at in [0, READ - 1, 5 * READ - 1] {
            let read = |range: std::ops::Range<usize>| {
                Ok(range.map(|i| if i == at { f32::NAN } else { 1.0 }).collect::<Vec<_>>())
            };
            assert!(matches!(first(5 * READ, read), Ok(Some((found, _))) if found == at));
        }
        assert!(matches!(first(3, |range| Ok(vec![1.0; range.len()])), Ok(None)));
    }
}
