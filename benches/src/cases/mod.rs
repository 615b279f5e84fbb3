//! The cases of all benchmarks in Rust: every op of `oxiwarp`, the sizes at which it is measured, and its operands.
//!
//! `bench` and criterion measure all of them, `tune` those whose launch leaves something to choose.
mod attention;
mod call;
mod case;
mod choices;
mod finite;
mod norms;
mod op;
mod operands;
mod ops;
mod rows;

pub use call::Operands;
pub use case::Case;
pub use choices::Choices;
pub use op::{Op, Selection, Singles, Width, current_name};
pub use operands::{COLUMNS, ELEMENTS, Pool, SETS, Values};
pub use ops::OPS;
