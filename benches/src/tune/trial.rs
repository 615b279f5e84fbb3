//! Runs the launch configurations of one case (an op with a tensor size), and checks the results of each
//! configuration.
use std::collections::HashSet;
use std::ops::Range;
use std::slice::from_ref;

use oxiwarp::{Device, Error, LaunchOverride, Overridable as _, Result, Stream};

use super::results::{Results, bands};
use crate::cases::{Case, Pool, Singles, Values};

/// Number of rows with which sums over rows are compared with the results of the CPU executor. With 37 rows,
/// a launch has several blocks, and the last block has fewer rows than the others.
const SUMMED: usize = 37;

/// A launch configuration whose results are correct.
pub struct Trial {
    /// The configuration that was requested.
    pub choice: LaunchOverride,
    /// The launches that the op made for it.
    pub launches: String,
    /// Whether this is the op's default configuration.
    pub own: bool,
}

/// The result of checking one configuration.
pub enum Verdict {
    /// The results are correct.
    Right(Trial),
    /// The results are wrong. The text gives the expected value.
    Wrong(String),
    /// The op or the device refuses the launch configuration. The text gives the reason.
    Refused(String),
    /// An earlier configuration made the same launches.
    Known,
}

/// Checks the configurations of one case.
pub struct Checks<'c> {
    case: Case<'c>,
    bands: Vec<Range<usize>>,
    /// The expected results: values of the compared rows, and sums over all rows. Values that the CPU
    /// executor does not compute are taken from the results of the first configuration.
    expected: Option<Results>,
    /// For an op that sums over all rows, a second benchmark case (tensor size) with few rows. The second
    /// element is the expected results of this case, which the CPU executor computes.
    few: Option<(Case<'c>, Results)>,
    seen: HashSet<String>,
}

impl<'c> Checks<'c> {
    /// Computes the expected results on the CPU executor, if the CPU executor is fast enough for this op.
    ///
    /// # Errors
    /// Returns an error if the op's default configuration fails on the CPU executor.
    pub fn of(case: Case<'c>, values: &Values) -> Result<Self> {
        let bands = bands(&case);
        let mut expected = None;
        if case.op.light {
            let of_bands = bands.iter().map(|interval| Results::by_executor(&case, values, interval));
            let of_rows = of_bands.map(|results| Ok(results?.of_rows)).collect::<Result<Vec<_>>>()?.concat();
            expected = Some(Results { of_rows, of_columns: vec![] });
        }
        let few = Case { rows: SUMMED.min(case.rows), ..case };
        let few = match case.op.singles {
            Singles::OfColumns(_) => Some((few, Results::by_executor(&few, values, &(0..few.rows))?)),
            Singles::OfRows(_) | Singles::OfBlocks => None,
        };
        Ok(Self { case, bands, expected, few, seen: HashSet::new() })
    }

    /// Runs the op with the configuration `choice` and checks its results. In the first call, `choice` must
    /// be the op's default configuration.
    ///
    /// The CPU executor computes the expected values of some rows, and the expected sums over a few rows. For
    /// some ops, and for sums over all rows, the CPU executor is too slow. In these cases, the expected
    /// values are the results of the default configuration. Differences up to a tolerance are allowed.
    ///
    /// # Errors
    /// Returns an error if the op's default configuration does not run, or if a kernel failed.
    pub fn check(
        &mut self,
        device: &Device,
        choice: LaunchOverride,
        pool: &mut Pool,
        stream: Stream,
    ) -> Result<Verdict> {
        let (case, own) = (self.case, self.seen.is_empty());
        let device = device.with_override(choice);
        pool.poison(stream)?;
        let run = case.run(&device, pool, stream);
        let launches = device.take_launches().join(" + ");
        match run {
            Err(error) if !own && is_refusal(&error) => {
                return Ok(Verdict::Refused(format!("{launches}: {error}")));
            }
            run => run?,
        }
        if !self.seen.insert(launches.clone()) {
            return Ok(Verdict::Known);
        }
        device.synchronize()?;
        let results = Results::of(case.op, case.cols, pool, &self.bands)?;
        let expected = self.expected.get_or_insert_with(|| results.clone());
        if expected.of_columns.is_empty() {
            expected.of_columns.clone_from(&results.of_columns);
        }
        let mut difference = results.difference(expected);
        if let Some((few, expected)) = &self.few {
            pool.poison(stream)?;
            few.run(&device, pool, stream)?;
            device.synchronize()?;
            let narrow = Results::of(few.op, few.cols, pool, from_ref(&(0..few.rows)))?;
            difference =
                difference.or(narrow.difference(expected).map(|text| format!("{} rows: {text}", few.rows)));
        }
        let Case { op, rows, cols } = case;
        Ok(match difference {
            None => Verdict::Right(Trial { choice, launches, own }),
            Some(text) => Verdict::Wrong(format!("{}, {rows} x {cols}: {launches}: {text}", op.name)),
        })
    }
}

/// Returns whether `error` means that the op or the device refuses the launch configuration. Examples of
/// reasons: the row does not fit into the registers, or the block exceeds the kernel's launch bounds.
fn is_refusal(error: &Error) -> bool {
    const INVALID_VALUE: u32 = 1;
    const OUT_OF_RESOURCES: u32 = 701;
    match error {
        Error::Value { arg, .. } => *arg == "rung",
        Error::Driver { call, code, .. } => {
            *call == "cuLaunchKernelEx" && [INVALID_VALUE, OUT_OF_RESOURCES].contains(code)
        }
        Error::Fault(fault) => fault.to_string().contains("launch bounds"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{Choices, OPS, Op};

    /// Returns the launch configurations with which the CPU executor can run `case`, an op with a tensor
    /// size. Panics if a configuration gives a wrong result.
    fn right(case: Case) -> Vec<Trial> {
        let (cpu, stream) = (Device::cpu(), Stream::default());
        let values = Values::new(case.step().max(1 << 14));
        let mut pool = Pool::new(&cpu, &values, case.step(), 1 << 12, 1).unwrap();
        let (mut checks, mut right) = (Checks::of(case, &values).unwrap(), vec![]);
        for choice in case.op.choices.list(&cpu, case.cols) {
            match checks.check(&cpu, choice, &mut pool, stream).unwrap() {
                Verdict::Right(trial) => right.push(trial),
                Verdict::Wrong(text) => panic!("{text}"),
                Verdict::Refused(_) | Verdict::Known => {}
            }
        }
        eprintln!("{}, {} columns: {} configurations", case.op.name, case.cols, right.len());
        right
    }

    fn op(name: &str) -> &'static Op {
        OPS.iter().find(|op| op.name == name).expect("it is listed")
    }

    /// Checks every launch configuration of every op. The numbers of columns are chosen so that several
    /// kernels of an op support the row.
    #[test]
    fn every_configuration_is_right_on_the_executor() {
        for op in OPS.iter().filter(|op| !matches!(op.choices, Choices::Nothing)) {
            let columns: &[usize] = match op.choices {
                Choices::Decode => &[1_024],
                Choices::Rungs { .. } => &[512, 2_560],
                Choices::Vec4s => &[640, 1_536],
                _ => &[1_536],
            };
            for &cols in columns {
                let trials = right(Case { op, rows: if op.light { 5 } else { 1 }, cols });
                assert!(trials.len() > 1, "{}: nothing to choose at {cols} columns", op.name);
            }
        }
    }

    /// The configurations of LayerNorm's gradient use all three kernels. One processes several rows at a
    /// time, one keeps a row in registers, and one reads each row twice.
    #[test]
    fn every_form_of_a_gradient_is_tried() {
        for (cols, operands) in [(1_536, "rows2_block2"), (3_072, "block3")] {
            let trials = right(Case { op: op("layer_norm_backward"), rows: 40, cols });
            for kernel in
                [&format!("_{operands}"), "_block4", "_any"].map(|form| format!("layer_norm_backward{form} "))
            {
                assert!(
                    trials.iter().any(|trial| trial.launches.starts_with(&kernel)),
                    "{cols}: no {kernel}"
                );
            }
        }
    }
}
