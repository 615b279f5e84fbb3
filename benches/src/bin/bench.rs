//! Measures the time of every op on a GPU and the time of a device-to-device copy of as many bytes. Command:
//! `cargo run --release -p oxiwarp-benches --bin bench`
//!
//! A case is an op with a tensor size. For each case, the program captures 20 or more calls in one CUDA
//! graph. The calls use several buffers in rotation. Between two uses of a buffer, other calls access three
//! times as many bytes as fit in the L2 cache of an H200. The contents of a buffer are therefore no longer in
//! L2 when a call uses the buffer again. CUDA events measure several replays of the graph, and the program
//! reports the median.
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use oxiwarp::Stream;
use oxiwarp_benches::cases::{Case, ELEMENTS, Op, Pool, SETS, Selection, Values};
use oxiwarp_benches::report::{self, Comparison, Environment, Progress, Record, Writer};
use oxiwarp_benches::{Gpu, NO_GPU};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Exit code if every case (op with a tensor size) was measured. Compared with the results file of
/// `--compare`, no case is slower by more than `--tolerance`.
const DONE: u8 = 0;
/// Exit code if a case (op with a tensor size) is slower by more than `--tolerance`, compared with the
/// results file of `--compare`.
const SLOWER: u8 = 1;
/// Exit code of every other error.
const FAILED: u8 = 3;

/// Measure every op on the first GPU: its time, its GB/s, and the time of a device copy divided by its time.
///
/// The bytes of a case count every input and every result once. The copy reads and writes the same number of
/// bytes in total, in the same run. Results must be finite. The program `tune` checks their values.
#[derive(Debug, Parser)]
#[command(
    name = "bench",
    after_help = "Exit codes:\n  0  everything was measured, and nothing is slower than in the run of --compare\n  \
                  1  a case is slower than in the run of --compare by more than --tolerance\n  \
                  2  there is no GPU; one line on stderr says what is missing\n  \
                  3  another error: arguments, files, a driver error, a result that is not finite"
)]
struct Options {
    /// Ops to measure, separated by commas: `rope,softmax`, or one variant, `ada_norm-rmsnorm` [default: all]
    #[arg(long, value_name = "OP", value_delimiter = ',', value_parser = Selection::op_name)]
    op: Vec<String>,
    /// Measure only cases whose id, `<op>/<rows>x<columns>`, contains TEXT
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Write the results to FILE: one line per case with GPU, driver, commit and date
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Compare with FILE, which an earlier run wrote: print new time / old time of each case, and the
    /// geometric mean of each op
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Percent by which a case may be slower than in FILE of --compare
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, value_parser = percent)]
    tolerance: f64,
    /// Number of timed replays of each case's graph
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
    replays: u16,
    /// Print the ids and the bytes of the selected cases without measuring them; needs no GPU
    #[arg(long)]
    list: bool,
}

fn percent(text: &str) -> std::result::Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| "expected a number of percent, 0 or more".into())
}

/// The selected ops, each with its selected cases.
type Selected = Vec<(&'static Op, Vec<Case<'static>>)>;

/// The state that all cases of a run share.
struct Bench<'a> {
    gpu: &'a Gpu,
    replays: usize,
    environment: Environment,
    values: Values,
    csv: Option<Writer<std::fs::File>>,
    progress: Progress,
    not_finite: Vec<String>,
}

impl Bench<'_> {
    /// Measures the cases of `op` and prints their table.
    fn measure(&mut self, op: &Op, cases: &[Case]) -> Result<Vec<Record>> {
        let mut pool = Pool::of_ops(&self.gpu.device, &self.values, &[op])?;
        let mut records = vec![];
        for case in cases {
            self.progress.show(case.id());
            records
                .push(self.measure_case(case, &mut pool).map_err(|error| format!("{}: {error}", case.id()))?);
            self.progress.step();
        }
        self.progress.print(format_args!("{}\n", report::of_records(&records)));
        Ok(records)
    }

    fn measure_case(&mut self, case: &Case, pool: &mut Pool) -> Result<Record> {
        let Gpu { device, stream } = self.gpu;
        if let Some(problem) = case.not_finite(device, pool, stream.as_stream())? {
            self.not_finite.push(format!("{}: {problem}", case.id()));
        }
        let call = |number, stream: Stream| case.call(device, pool, number, stream);
        let time = self.gpu.time(case.calls(SETS), self.replays, call)?;
        let copy = self.gpu.copy_time(case.bytes())?;
        let record = Record::new(case, time, copy, &self.environment);
        if let Some(csv) = &mut self.csv {
            csv.write(&record)?;
        }
        Ok(record)
    }
}

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            // If printing fails, there is no way to report the failure. So the error is ignored.
            let _ = error.print();
            return if asked { ExitCode::SUCCESS } else { FAILED.into() };
        }
    };
    match run(&options) {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("bench: {error}");
            FAILED.into()
        }
    }
}

/// Measures or lists the cases (ops with tensor sizes) that the options select, and returns the exit code.
fn run(options: &Options) -> Result<u8> {
    let selected = Selection { ops: options.op.clone(), filter: options.filter.clone() }.cases();
    if selected.is_empty() {
        return Err("no case is selected: --list without --filter prints all ids".into());
    }
    if options.list {
        for case in selected.iter().flat_map(|(_, cases)| cases) {
            println!("{}\t{} bytes", case.id(), case.bytes());
        }
        return Ok(DONE);
    }
    // Read the file of `--compare` before the GPU is used, so that the program fails at once if the file
    // cannot be read. `--csv` may name the same file and overwrites it, so the file must be read first.
    let old = options.compare.as_deref().map(report::read).transpose()?;
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(error) => {
            eprintln!("bench: {error}");
            return Ok(NO_GPU);
        }
    };
    let new = measure_all(&gpu, options, &selected)?;
    match old {
        Some(old) => compare(&old, &new, options.tolerance),
        None => Ok(DONE),
    }
}

fn measure_all(gpu: &Gpu, options: &Options, selected: &Selected) -> Result<Vec<Record>> {
    let environment = Environment::of(&gpu.device);
    let Environment { gpu: name, driver, commit, date } = &environment;
    println!("{name}, driver {driver}, commit {commit}, {date}\n");
    let mut bench = Bench {
        gpu,
        replays: options.replays.into(),
        environment,
        values: Values::new(ELEMENTS),
        csv: options.csv.as_deref().map(Writer::create).transpose()?,
        progress: Progress::new(selected.iter().map(|(_, cases)| cases.len()).sum()),
        not_finite: vec![],
    };
    let mut records = vec![];
    for (op, cases) in selected {
        records.extend(bench.measure(op, cases)?);
    }
    bench.progress.finish();
    if bench.not_finite.is_empty() { Ok(records) } else { Err(bench.not_finite.join("\nbench: ").into()) }
}

/// Prints new time / old time for the runs `old` and `new` of this program, and returns the exit code.
fn compare(old: &[Record], new: &[Record], tolerance: f64) -> Result<u8> {
    let comparison = Comparison::of(old, new)?;
    if let Some([before, now]) = &comparison.gpus {
        eprintln!("bench: the old run is of {before}, this one of {now}");
    }
    println!("{}\n", report::of_changes(&comparison.changes, tolerance));
    println!("{}\n", report::of_means(&comparison.means()));
    if comparison.only_new > 0 {
        println!("{} cases are not in the old run", comparison.only_new);
    }
    let slower = comparison.slower(tolerance).len();
    println!("{slower} of {} cases are slower by more than {tolerance} %", comparison.changes.len());
    Ok(if slower == 0 { DONE } else { SLOWER })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> std::result::Result<Options, clap::Error> {
        Options::try_parse_from([&["bench"], arguments].concat())
    }

    #[test]
    fn ops_are_a_list_and_the_tolerance_has_a_default() {
        let options = parse(&["--op", "rope,ada_norm-rmsnorm", "--op", "softmax"]).expect("valid");
        assert_eq!(options.op, ["rope", "ada_norm-rmsnorm", "softmax"]);
        assert_eq!((options.tolerance, options.replays), (3.0, 15));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for arguments in [["--op", "rms"], ["--tolerance", "-1"], ["--tolerance", "inf"], ["--replays", "0"]]
        {
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn the_exit_code_says_whether_a_case_is_slower() {
        let case = Selection::default().cases()[0].1[0];
        let environment = Environment::of(&oxiwarp::Device::cpu());
        let time = std::time::Duration::from_micros;
        let [old, new] = [100, 104].map(|us| [Record::new(&case, time(us), time(90), &environment)]);
        let codes = [3.0, 5.0].map(|tolerance| compare(&old, &new, tolerance).expect("the same case"));
        assert_eq!(codes, [SLOWER, DONE]);
        assert!(compare(&old, &[], 3.0).is_err());
    }

    #[test]
    fn the_help_names_the_exit_codes() {
        let help = parse(&["--help"]).expect_err("help").to_string();
        assert!(help.contains("2  there is no GPU"), "{help}");
    }
}
