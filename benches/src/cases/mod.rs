//! The cases of all Rust benchmarks. A case is an op of the crate `oxiwarp` with a tensor size and operands.
//!
//! The program `bench` and the criterion benchmarks measure all cases. The program `tune` measures only ops
//! that have several launch configurations.
mod attention;
mod call;
mod case;
mod choices;
mod finite;
mod linear;
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
