//! What `bench` writes and compares: a record for each case, as CSV and as a table; and how far a run is.
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
