//! What `bench` writes and compares: a record for each case, as CSV and as a table.
mod compare;
mod environment;
mod record;
mod table;

pub use compare::{Change, Comparison};
pub use environment::Environment;
pub use record::{Record, Writer, read};
pub use table::{of_changes, of_means, of_records};
