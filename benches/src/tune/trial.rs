//! The configurations of a case, one by one: what each launches, and whether its results are right.
use std::collections::HashSet;
use std::ops::Range;
use std::slice::from_ref;

use oxiwarp::{Device, Error, LaunchOverride, Result, Stream};

use super::results::{Results, bands};
use crate::cases::{Case, Pool, Singles, Values};

/// Rows of which the CPU executor adds up all: those of several blocks, with a rest.
const SUMMED: usize = 37;

/// A launch configuration whose results are right.
pub struct Trial {
    /// What was chosen.
    pub choice: LaunchOverride,
    /// What it launches.
    pub launches: String,
    /// Is it what the op chooses by itself?
    pub own: bool,
}

/// What there is to say of a configuration.
pub enum Verdict {
    /// Its results are right.
    Right(Trial),
    /// They are not: what was expected.
    Wrong(String),
    /// The op or the device does not take it: why.
    Refused(String),
    /// It launches what another one did.
    Known,
}

/// The checks of a case's configurations.
pub struct Checks<'c> {
    case: Case<'c>,
    bands: Vec<Range<usize>>,
    /// What is expected in the bands and of all rows, as far as it is known.
    expected: Option<Results>,
    /// A case of a few rows with the executor's sums over them, where there are sums over all rows.
    few: Option<(Case<'c>, Results)>,
    seen: HashSet<String>,
}

impl<'c> Checks<'c> {
    /// Asks the CPU executor for what it can give.
    ///
    /// # Errors
    /// The op's own configuration does not run there.
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
            Singles::OfRows(_) => None,
        };
        Ok(Self { case, bands, expected, few, seen: HashSet::new() })
    }

    /// Runs a configuration, the op's own first. Its results have to be those of the CPU executor. So have its sums over
    /// a few rows; those over all rows, and whatever the executor would take too long for, have to be those of the op's own
    /// configuration.
    ///
    /// # Errors
    /// The op's own configuration does not run; a kernel failed.
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

/// Did the op or the device not take the configuration: a rung that does not hold the row, more threads than the launch
/// bounds?
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

    /// The configurations of a case that the executor takes; all of them are right.
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

    /// Every configuration of every op, on rows that several kernels of each op can hold.
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

    /// Rows beside each other, held alone, and read twice; blocks go over their rows more than once.
    #[test]
    fn every_form_of_a_gradient_is_tried() {
        for (cols, operands) in [(1_536, "rows2_block2"), (3_072, "block3")] {
            let trials = right(Case { op: op("layer_norm_backward"), rows: 300, cols });
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
