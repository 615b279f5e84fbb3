//! The measured time of a case (an op with a tensor size), and its line in a CSV file.
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Environment;
use crate::cases::{Case, current_name};

/// The measured time of a case (an op with a tensor size). The fields are the columns of the CSV file.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Record {
    /// The op, with its variant.
    pub op: String,
    /// Number of rows. For attention: batches.
    pub rows: usize,
    /// Number of columns. For attention: tokens.
    pub columns: usize,
    /// Bytes of all inputs and all results together.
    pub bytes: usize,
    /// Time per call, in microseconds.
    pub us: f64,
    /// `bytes` divided by the time, in GB/s.
    pub gb_per_s: f64,
    /// Time in microseconds of a device-to-device copy that moves as many bytes as the measured call. `bytes`
    /// is the sum of the bytes that it reads and the bytes that it writes.
    pub copy_us: f64,
    /// The copy's time divided by the call's time.
    pub of_copy: f64,
    /// The GPU's name.
    pub gpu: String,
    /// The version of its driver.
    pub driver: String,
    /// The commit of the checkout.
    pub commit: String,
    /// Date and time of the run, UTC.
    pub date: String,
}

impl Record {
    /// Makes the record of `case` (an op with a tensor size). `time` is the time of one call. `copy` is the
    /// time of a device-to-device copy that moves as many bytes as the call.
    pub fn new(case: &Case, time: Duration, copy: Duration, environment: &Environment) -> Self {
        let Environment { gpu, driver, commit, date } = environment.clone();
        let [seconds, copy] = [time.as_secs_f64(), copy.as_secs_f64()];
        Self {
            op: case.op.name.into(),
            rows: case.rows,
            columns: case.cols,
            bytes: case.bytes(),
            us: rounded(seconds * 1e6),
            gb_per_s: rounded(case.bytes() as f64 / seconds * 1e-9),
            copy_us: rounded(copy * 1e6),
            of_copy: rounded(copy / seconds),
            gpu,
            driver,
            commit,
            date,
        }
    }

    /// Returns the op, the number of rows and the number of columns. Together they identify a benchmark case.
    pub fn key(&self) -> (&str, usize, usize) {
        (&self.op, self.rows, self.columns)
    }
}

/// Rounds to 3 decimals.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Writes records to a CSV file and flushes after each record.
pub struct Writer<W: Write>(csv::Writer<W>);

impl Writer<File> {
    /// Creates a new file at `path`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        File::create(path).map(Self::new).map_err(named)
    }
}

impl<W: Write> Writer<W> {
    /// Makes a writer to `to`.
    pub fn new(to: W) -> Self {
        Self(csv::Writer::from_writer(to))
    }

    /// Writes the record as one line. The first call also writes the header line.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        self.0.serialize(record)?;
        self.0.flush()
    }
}

/// Reads the records of a CSV file that `bench` wrote.
///
/// # Errors
/// Returns an error if the file cannot be read, has no record, or has a malformed line. The message names a
/// malformed line.
pub fn read(path: &Path) -> Result<Vec<Record>, String> {
    let named = |problem: String| format!("{}: {problem}", path.display());
    let file = File::open(path).map_err(|error| named(error.to_string()))?;
    parse(file).map_err(named)
}

fn parse(from: impl io::Read) -> Result<Vec<Record>, String> {
    let mut records: Vec<Record> = vec![];
    for record in csv::Reader::from_reader(from).into_deserialize() {
        let mut record: Record = record.map_err(|error| error.to_string())?;
        record.op = current_name(&record.op).into();
        if !(record.us.is_finite() && record.us > 0.0) {
            return Err(format!("us of {:?} is {}, expected a positive number", record.key(), record.us));
        }
        records.push(record);
    }
    if records.is_empty() { Err("the file has no record".into()) } else { Ok(records) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cases::OPS;

    pub fn record(op: &str, columns: usize, us: f64) -> Record {
        let environment = Environment {
            gpu: "NVIDIA \"GPU\", large".into(),
            driver: "580.159.04".into(),
            commit: "0123abc".into(),
            date: "2026-01-02T03:04:05Z".into(),
        };
        let case = Case { op: &OPS[0], rows: 8, cols: columns };
        let record = Record::new(&case, Duration::from_secs(1), Duration::from_millis(900), &environment);
        Record { op: op.into(), us, ..record }
    }

    #[test]
    fn a_file_reads_as_it_was_written() {
        let records = [record("rms_norm", 64, 12.25), record("ada_norm-layernorm", 128, 1e4)];
        let mut bytes = vec![];
        let mut writer = Writer::new(&mut bytes);
        records.iter().for_each(|record| writer.write(record).expect("memory"));
        drop(writer);
        let text = String::from_utf8(bytes.clone()).expect("text");
        assert!(
            text.starts_with("op,rows,columns,bytes,us,gb_per_s,copy_us,of_copy,gpu,driver,commit,date\n")
        );
        assert_eq!(text.lines().count(), 3);
        assert_eq!(parse(&bytes[..]).as_deref(), Ok(&records[..]));
        let old = text.replace("ada_norm-layernorm", "ada_norm LayerNorm");
        assert_eq!(parse(old.as_bytes()).as_deref(), Ok(&records[..]), "a file with an old name");
    }

    #[test]
    fn rates_follow_from_bytes_and_times() {
        let case = Case { op: &OPS[0], rows: 1_000, cols: 512 };
        let environment = Environment::of(&oxiwarp::Device::cpu());
        let record = Record::new(&case, Duration::from_micros(10), Duration::from_micros(9), &environment);
        assert_eq!(record.bytes, 2 * 1_000 * 512 * 2 + 512 * 2);
        assert_eq!((record.us, record.gb_per_s, record.of_copy), (10.0, 204.902, 0.9));
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let errors = [
            ("", "no record"),
            ("op,rows\nrms_norm,1\n", "missing field"),
            (
                "op,rows,columns,bytes,us,gb_per_s,copy_us,of_copy,gpu,driver,commit,date\nx,1,1,1,fast,1,1,1,g,d,c,t\n",
                "line: 2",
            ),
            (
                "op,rows,columns,bytes,us,gb_per_s,copy_us,of_copy,gpu,driver,commit,date\nx,1,1,1,0,1,1,1,g,d,c,t\n",
                "expected a positive number",
            ),
        ];
        for (text, expected) in errors {
            let error = parse(text.as_bytes()).expect_err(text);
            assert!(error.contains(expected), "{error}");
        }
        let error = read(Path::new("no-such-file.csv")).expect_err("it does not exist");
        assert!(error.starts_with("no-such-file.csv: "), "{error}");
    }
}
