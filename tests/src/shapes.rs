//! The table of shapes that Rust and Python tests share: `tests/shapes.json`.
use serde::Deserialize;

/// Rows and columns of a tensor, and why they are in the table.
#[derive(Clone, Debug, Deserialize)]
pub struct Shape {
    /// Rows.
    pub rows: i64,
    /// Columns.
    pub cols: i64,
    /// What this shape can find that its neighbours cannot.
    pub why: String,
}

#[derive(Deserialize)]
struct Table {
    shapes: Vec<Shape>,
}

/// The shapes that run on every device.
pub fn shapes() -> Vec<Shape> {
    let table: Table =
        serde_json::from_str(include_str!("../shapes.json")).expect("tests/shapes.json is valid");
    table.shapes
}
