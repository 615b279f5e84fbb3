//! Reads the results of a call in three groups of rows, and compares these results with expected values.
use std::ops::Range;
use std::slice::from_ref;

use oxiwarp::{Device, Result, Stream};

use crate::cases::{Case, Op, Pool, Singles, Values};

/// Maximum number of rows to compare in each of three groups: at the start, in the middle and at the end of
/// the tensor. If rows are long, the program compares fewer rows.
const ROWS: usize = 4;
/// Maximum number of elements to compare in each of the three groups of rows. At least one row is compared,
/// even if it has more elements.
const COMPARED: usize = 16 << 10;

/// The collected results: values of rows, and sums over all rows.
#[derive(Clone, Default)]
pub(super) struct Results {
    pub of_rows: Vec<Vec<f32>>,
    pub of_columns: Vec<Vec<f32>>,
}

impl Results {
    /// Reads results of the last call from `pool`: the rows in the ranges `bands`, and each result that is a
    /// sum over all rows.
    pub fn of(op: &Op, cols: usize, pool: &Pool, bands: &[Range<usize>]) -> Result<Self> {
        let of_bands =
            bands.iter().map(|interval| of_rows(op, cols, pool, interval)).collect::<Result<Vec<_>>>()?;
        let columns = if let Singles::OfColumns(count) = op.singles { count } else { 0 };
        let of_columns = (0..columns).map(|number| pool.single(number, 0..cols)).collect::<Result<_>>()?;
        Ok(Self { of_rows: of_bands.concat(), of_columns })
    }

    /// Computes the results of these rows on the CPU executor.
    pub fn by_executor(case: &Case, values: &Values, rows: &Range<usize>) -> Result<Self> {
        let mut pool = Pool::of_rows(values, case.op, case.cols, rows)?;
        let count = rows.len();
        Case { rows: count, ..*case }.run(&Device::cpu(), &mut pool, Stream::default())?;
        Self::of(case.op, case.cols, &pool, from_ref(&(0..count)))
    }

    /// Describes the first value that differs from its expected value by more than the tolerance. For results
    /// with one value per row or element, the tolerance is about two bf16 roundings. For sums over all rows,
    /// the tolerance allows a different order of summation.
    pub fn difference(&self, expected: &Self) -> Option<String> {
        let of_rows = self.of_rows.iter().zip(&expected.of_rows).map(|pair| (pair, 1.0 / 64.0));
        let of_columns = self.of_columns.iter().zip(&expected.of_columns).map(|pair| (pair, 1.0 / 4_096.0));
        of_rows.chain(of_columns).find_map(|((ours, theirs), share)| first_difference(ours, theirs, share))
    }
}

/// Returns the ranges of rows to compare: a few rows at the start, in the middle and at the end of the
/// tensor.
pub(super) fn bands(case: &Case) -> Vec<Range<usize>> {
    let count = (COMPARED / case.cols).clamp(1, ROWS).min(case.rows);
    [0, (case.rows - count) / 2, case.rows - count].map(|first| first..first + count).to_vec()
}

fn of_rows(op: &Op, cols: usize, pool: &Pool, interval: &Range<usize>) -> Result<Vec<Vec<f32>>> {
    let mut results = vec![];
    for (number, width) in op.writes.iter().enumerate() {
        let width = width(cols);
        results.push(pool.result(number, interval.start * width..interval.end * width)?);
    }
    if let Singles::OfRows(count) = op.singles {
        let single = |number| pool.single(number, interval.clone());
        results.extend((0..count).map(single).collect::<Result<Vec<_>>>()?);
    }
    Ok(results)
}

/// Describes the first element for which `|ours - theirs| > share * (|theirs| + mean)`. `ours` are the
/// computed values, `theirs` are the expected values, and `mean` is the mean magnitude of the expected
/// values.
fn first_difference(ours: &[f32], theirs: &[f32], share: f32) -> Option<String> {
    let mean = theirs.iter().map(|value| value.abs()).sum::<f32>() / theirs.len().max(1) as f32;
    let close = |(ours, theirs): (&f32, &f32)| (ours - theirs).abs() <= share * (theirs.abs() + mean);
    let at = ours.iter().zip(theirs).position(|pair| !close(pair))?;
    Some(format!("element {at} is {}, expected {}", ours[at], theirs[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_or_missing_value_is_found() {
        let theirs = [1.0, -2.0, 0.25, 0.0];
        assert_eq!(first_difference(&[1.005, -1.99, 0.251, 0.001], &theirs, 1.0 / 64.0), None);
        let text = first_difference(&[1.0, -2.0, 0.35, 0.0], &theirs, 1.0 / 64.0).expect("it is another one");
        assert!(text.starts_with("element 2 is 0.35"), "{text}");
        assert!(first_difference(&[1.0, f32::NAN, 0.25, 0.0], &theirs, 1.0 / 64.0).is_some());
    }
}
