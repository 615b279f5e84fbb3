//! Checks and times the launch configurations of each op, and compares each time with the time of the op's
//! default configuration. The program needs a GPU. Command: `cargo run --release -p oxiwarp-benches --bin
//! tune [-- --out FOLDER --seconds 110 softmax rope]`
//!
//! A case is an op with a tensor size. During the run, the program writes one line per configuration to
//! `tune.csv`, and prints one line per case. It divides the time limit (`--seconds`) among the cases. If a
//! case exceeds its part of the time, its remaining configurations are skipped and counted. The op's default
//! configuration is always measured. The program also counts the configurations that the op or the GPU
//! refuses, and prints the reason of the first refusal.
use oxiwarp::Overridable as _;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use oxiwarp::Stream;
use oxiwarp_benches::cases::{Case, Choices, ELEMENTS, Op, Pool, SETS, Selection, Values};
use oxiwarp_benches::report::Progress;
use oxiwarp_benches::tune::{Checks, Trial, Verdict};
use oxiwarp_benches::{Gpu, NO_GPU};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const REPLAYS: usize = 5;

/// Times the launch configurations of every op that has several.
///
/// Exit codes: 0 all results are right; 1 a result is wrong, or another error; 2 no GPU, or wrong arguments.
#[derive(Parser)]
struct Options {
    /// Time limit in seconds; the default configurations are always measured.
    #[arg(long, default_value_t = 110.0)]
    seconds: f64,
    /// The folder for tune.csv.
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Ops to measure [default: all].
    #[arg(value_name = "OP", value_parser = Selection::op_name)]
    only: Vec<String>,
}

/// The state that all cases of a run share.
struct Bench {
    gpu: Gpu,
    /// Copy bandwidth in bytes per second.
    copy: f64,
    values: Values,
    pool: Pool,
    csv: File,
    progress: Progress,
    wrong: Vec<String>,
    refused: usize,
}

/// The results of all configurations of a case.
#[derive(Default)]
struct Outcome {
    times: Vec<(Duration, Trial)>,
    refused: Vec<String>,
    left_out: usize,
}

impl Bench {
    /// Checks and times the configurations of `case` until `deadline`.
    fn try_out(&mut self, case: Case, deadline: Instant) -> Result<Outcome> {
        let Self { gpu, values, pool, progress, wrong, .. } = self;
        let (mut checks, mut outcome) = (Checks::of(case, values)?, Outcome::default());
        let choices = case.op.choices.list(&gpu.device, case.cols);
        let count = choices.len();
        for (number, choice) in choices.into_iter().enumerate() {
            progress.show(format_args!("{}, configuration {} of {count}", case.id(), number + 1));
            if number > 0 && Instant::now() > deadline {
                outcome.left_out += 1;
                continue;
            }
            match checks.check(&gpu.device, choice, pool, gpu.stream.as_stream())? {
                Verdict::Known => {}
                Verdict::Refused(text) => outcome.refused.push(text),
                Verdict::Wrong(text) => {
                    progress.print(format_args!("WRONG: {text}"));
                    wrong.push(text);
                }
                Verdict::Right(trial) => {
                    let device = gpu.device.with_override(choice);
                    let call = |i, stream: Stream| case.call(&device, pool, i, stream);
                    outcome.times.push((gpu.time(case.calls(SETS), REPLAYS, call)?, trial));
                }
            }
        }
        Ok(outcome)
    }

    /// Checks and times the launch configurations of `case` (an op with a tensor size). Writes the times to
    /// `tune.csv` and prints a summary.
    fn measure(&mut self, case: Case, deadline: Instant) -> Result<()> {
        let Outcome { mut times, refused, left_out } = self.try_out(case, deadline)?;
        let (Op { name, .. }, Case { rows, cols, .. }) = (case.op, case);
        self.refused += refused.len();
        if let Some(first) = refused.first() {
            let count = refused.len();
            let line =
                format_args!("{name} {rows} x {cols}: {count} configurations refused, the first: {first}");
            self.progress.print(line);
        }
        if left_out > 0 {
            self.progress.print(format_args!("{name} {rows} x {cols}: {left_out} configurations left out"));
        }
        times.sort_by_key(|(time, _)| *time);
        let Some(&(own, _)) = times.iter().find(|(_, trial)| trial.own) else { return Ok(()) };
        let best = times[0].0;
        for (time, Trial { launches, own, .. }) in &times {
            let (us, rate) = (time.as_secs_f64() * 1e6, case.bytes() as f64 / time.as_secs_f64());
            let (of_copy, of_best) = (rate / self.copy, best.as_secs_f64() / time.as_secs_f64());
            let chosen = if *own { "chosen" } else { "" };
            let gbps = rate * 1e-9;
            writeln!(
                self.csv,
                "{name},{rows},{cols},{launches},{us:.2},{gbps:.0},{of_copy:.3},{of_best:.3},{chosen}"
            )?;
        }
        self.csv.flush()?;
        let of_best = best.as_secs_f64() / own.as_secs_f64();
        let of_copy = case.bytes() as f64 / own.as_secs_f64() / self.copy;
        let tried = times.len();
        let faster = if of_best < 0.98 { format!(": {}", times[0].1.launches) } else { String::new() };
        self.progress.print(format_args!(
            "{name:40} {rows:7} x {cols:6}: {of_copy:5.3} of copy, {of_best:5.3} of the best of {tried:2}{faster}"
        ));
        Ok(())
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(error) => {
            eprintln!("tune: {error}");
            return NO_GPU.into();
        }
    };
    match measure_all(gpu, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tune: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure_all(gpu: Gpu, options: Options) -> Result<()> {
    let start = Instant::now();
    let copy = gpu.copy_bandwidth(512 << 20)?;
    println!("{:?}, copy {:.0} GB/s", gpu.device, copy * 1e-9);
    std::fs::create_dir_all(&options.out)?;
    let mut csv = File::create(options.out.join("tune.csv"))?;
    writeln!(csv, "op,rows,columns,configuration,us,gb_per_s,of_copy,of_best,chosen")?;
    let mut selected = Selection { ops: options.only, filter: None }.cases();
    selected.retain(|(op, _)| !matches!(op.choices, Choices::Nothing));
    let ops: Vec<_> = selected.iter().map(|&(op, _)| op).collect();
    let cases: Vec<_> = selected.into_iter().flat_map(|(_, cases)| cases).collect();
    let values = Values::new(ELEMENTS);
    let pool = Pool::of_ops(&gpu.device, &values, &ops)?;
    let progress = Progress::new(cases.len());
    let mut bench = Bench { gpu, copy, values, pool, csv, progress, wrong: vec![], refused: 0 };
    for (number, case) in cases.iter().enumerate() {
        let left = options.seconds - start.elapsed().as_secs_f64();
        let part = left.max(0.0) / (cases.len() - number) as f64;
        // The remaining time is divided equally among the remaining cases (ops with tensor sizes). The time
        // limit of a case is three times its part, because the driver may first have to compile the kernels
        // of the case.
        bench.measure(*case, Instant::now() + Duration::from_secs_f64(3.0 * part))?;
        bench.progress.step();
    }
    bench.progress.finish();
    let (seconds, Bench { wrong, refused, .. }) = (start.elapsed().as_secs_f64(), &bench);
    println!("{} cases in {seconds:.0} s, {} wrong, {refused} refused", cases.len(), wrong.len());
    if bench.wrong.is_empty() { Ok(()) } else { Err(bench.wrong.join("\n").into()) }
}
