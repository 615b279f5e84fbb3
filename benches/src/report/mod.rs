//! The output of `bench`: the measurements as CSV and as tables, comparisons of runs, and a progress bar.
mod compare;
mod environment;
mod progress;
mod record;
mod table;

pub use compare::{Change, Comparison};
pub use environment::Environment;
pub use progress::Progress;
pub use record::{Record, Writer, read};
pub use table::{of_changes, of_means, of_records};
