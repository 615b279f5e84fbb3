//! An op for rows of one length: its configurations that give right results, each with what it launches.
use std::collections::HashSet;
use std::ops::Range;

use oxiwarp::{Choice, Device, Error, Result, Stream};

use super::{Op, Pool, Singles, Values};

/// Rows that are compared in each of three places, if they are short.
const ROWS: usize = 4;
/// Elements of those rows, about.
const COMPARED: usize = 16 << 10;

/// An op, and the size of its tensors.
pub struct Case<'a> {
    /// The op.
    pub op: &'a Op,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// A launch configuration whose results are right.
pub struct Trial {
    /// What was chosen.
    pub choice: Choice,
    /// What it launches.
    pub launches: String,
    /// Is it what the op chooses by itself?
    pub own: bool,
}

/// Results in some places: of rows, and of columns.
struct Results {
    of_rows: Vec<Vec<f32>>,
    of_columns: Vec<Vec<f32>>,
}

impl Case<'_> {
    /// Bytes that a call reads and writes.
    pub fn bytes(&self) -> usize {
        let of_row: usize = self.op.reads.iter().chain(self.op.writes).map(|width| width(self.cols)).sum();
        let singles = match self.op.singles {
            Singles::OfRows(0) => 0,
            Singles::OfRows(count) => self.rows * (count * 4 + 8),
            Singles::OfColumns(count) => self.cols * count * 4,
        };
        self.rows * of_row * 2 + singles
    }

    /// The configurations that the device takes, each once, the op's own first; and what is wrong with those whose results
    /// are not those of the CPU executor, or for sums over all rows those of the op's own configuration.
    ///
    /// # Errors
    /// The op's own configuration does not run; a kernel failed.
    pub fn right(
        &self,
        device: &Device,
        pool: &mut Pool,
        values: &Values,
        stream: Stream,
    ) -> Result<(Vec<Trial>, Vec<String>)> {
        let bands = self.bands();
        let mut expected = if self.op.light { Some(self.expected(values, &bands)?) } else { None };
        let (mut right, mut wrong, mut seen) = (vec![], vec![], HashSet::new());
        for choice in self.op.choices.list(device, self.cols) {
            let of_choice = device.with_choice(choice);
            pool.poison(stream)?;
            match (self.op.call)(&of_choice, pool.turn(0, self.rows, self.cols), stream) {
                Err(error) if !seen.is_empty() && is_refusal(&error) => continue,
                result => result?,
            }
            let launches = of_choice.take_launches().join(" + ");
            if !seen.insert(launches.clone()) {
                continue;
            }
            device.synchronize()?;
            let results = self.results(pool, &bands)?;
            let expected = expected.get_or_insert_with(|| results.clone());
            if expected.of_columns.is_empty() {
                expected.of_columns.clone_from(&results.of_columns);
            }
            match results.difference(expected) {
                None => right.push(Trial { choice, launches, own: seen.len() == 1 }),
                Some(text) => {
                    wrong.push(format!("{}, {} x {}: {launches}: {text}", self.op.name, self.rows, self.cols))
                }
            }
        }
        Ok((right, wrong))
    }

    /// Where results are compared: the first rows, some in the middle, the last.
    fn bands(&self) -> Vec<Range<usize>> {
        let count = (COMPARED / self.cols).clamp(1, ROWS).min(self.rows);
        [0, (self.rows - count) / 2, self.rows - count].map(|first| first..first + count).to_vec()
    }

    /// What the CPU executor gives for these rows.
    fn expected(&self, values: &Values, bands: &[Range<usize>]) -> Result<Results> {
        let mut of_rows = vec![];
        for band in bands {
            let mut pool = Pool::of_rows(values, self.op, self.cols, band)?;
            (self.op.call)(&Device::cpu(), pool.turn(0, band.len(), self.cols), Stream::default())?;
            of_rows.extend(self.of_rows(&pool, &(0..band.len()))?);
        }
        Ok(Results { of_rows, of_columns: vec![] })
    }

    fn results(&self, pool: &Pool, bands: &[Range<usize>]) -> Result<Results> {
        let of_bands = bands.iter().map(|band| self.of_rows(pool, band)).collect::<Result<Vec<_>>>()?;
        let columns = if let Singles::OfColumns(count) = self.op.singles { count } else { 0 };
        let of_columns =
            (0..columns).map(|number| pool.single(number, 0..self.cols)).collect::<Result<_>>()?;
        Ok(Results { of_rows: of_bands.concat(), of_columns })
    }

    fn of_rows(&self, pool: &Pool, band: &Range<usize>) -> Result<Vec<Vec<f32>>> {
        let mut results = vec![];
        for (number, width) in self.op.writes.iter().enumerate() {
            let width = width(self.cols);
            results.push(pool.result(number, band.start * width..band.end * width)?);
        }
        if let Singles::OfRows(count) = self.op.singles {
            results.extend(
                (0..count).map(|number| pool.single(number, band.clone())).collect::<Result<Vec<_>>>()?,
            );
        }
        Ok(results)
    }
}

impl Clone for Results {
    fn clone(&self) -> Self {
        Self { of_rows: self.of_rows.clone(), of_columns: self.of_columns.clone() }
    }
}

impl Results {
    /// The first value that is another one: by more than two roundings to bf16, or in sums over all rows more than their order
    /// explains.
    fn difference(&self, expected: &Self) -> Option<String> {
        let of_rows = self.of_rows.iter().zip(&expected.of_rows).map(|pair| (pair, 1.0 / 64.0));
        let of_columns = self.of_columns.iter().zip(&expected.of_columns).map(|pair| (pair, 1.0 / 4_096.0));
        of_rows.chain(of_columns).find_map(|((ours, theirs), share)| first_difference(ours, theirs, share))
    }
}

/// The first of `ours` that is further from `theirs` than a share of it and of their mean.
fn first_difference(ours: &[f32], theirs: &[f32], share: f32) -> Option<String> {
    let mean = theirs.iter().map(|value| value.abs()).sum::<f32>() / theirs.len().max(1) as f32;
    let close = |(ours, theirs): (&f32, &f32)| (ours - theirs).abs() <= share * (theirs.abs() + mean);
    let at = ours.iter().zip(theirs).position(|pair| !close(pair))?;
    Some(format!("element {at} is {}, expected {}", ours[at], theirs[at]))
}

/// Did the op or the device not take the configuration: a rung that does not hold the row, more threads than the launch bounds?
fn is_refusal(error: &Error) -> bool {
    const INVALID_VALUE: u32 = 1;
    const OUT_OF_RESOURCES: u32 = 701;
    match error {
        Error::Value { arg, .. } => *arg == "rung",
        Error::Driver { code, .. } => [INVALID_VALUE, OUT_OF_RESOURCES].contains(code),
        Error::Fault(fault) => fault.to_string().contains("launch bounds"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Choices, OPS};

    #[test]
    fn a_wrong_or_missing_value_is_found() {
        let theirs = [1.0, -2.0, 0.25, 0.0];
        assert_eq!(first_difference(&[1.005, -1.99, 0.251, 0.001], &theirs, 1.0 / 64.0), None);
        let text = first_difference(&[1.0, -2.0, 0.35, 0.0], &theirs, 1.0 / 64.0).expect("it is another one");
        assert!(text.starts_with("element 2 is 0.35"), "{text}");
        assert!(first_difference(&[1.0, f32::NAN, 0.25, 0.0], &theirs, 1.0 / 64.0).is_some());
    }

    /// Every configuration of every op that the executor takes, on rows that several kernels of each op can hold.
    #[test]
    fn every_configuration_is_right_on_the_executor() {
        let cpu = Device::cpu();
        for op in OPS {
            let columns: &[usize] = match op.choices {
                Choices::Decode => &[1_024],
                Choices::Rungs { .. } => &[512, 2_560],
                Choices::Quads => &[640, 1_536],
                _ => &[1_536],
            };
            for &cols in columns {
                let case = Case { op, rows: if op.light { 5 } else { 1 }, cols };
                let widths = op.reads.iter().chain(op.writes).map(|width| width(cols));
                let len = case.rows * widths.max().expect("it has operands");
                let values = Values::new(len.max(1 << 14));
                let mut pool = Pool::new(&cpu, &values, len, 1 << 12, 1).unwrap();
                let (right, wrong) = case.right(&cpu, &mut pool, &values, Stream::default()).unwrap();
                eprintln!("{}, {cols} columns: {} configurations", op.name, right.len());
                assert!(wrong.is_empty(), "{wrong:#?}");
                assert!(right.len() > 1, "{}: nothing to choose at {cols} columns", op.name);
            }
        }
    }
}
