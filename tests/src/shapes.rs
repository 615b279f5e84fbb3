//! The table of shapes that Rust and Python tests share: `tests/shapes.json`.
use serde::Deserialize;

/// The numbers of rows and columns of a tensor, and the reason why the tests include this shape.
#[derive(Clone, Debug, Deserialize)]
pub struct Shape {
    /// Rows.
    pub rows: i64,
    /// Columns.
    pub cols: i64,
    /// The fault that this shape can reveal and similar shapes cannot.
    pub why: String,
}

#[derive(Deserialize)]
struct Table {
    shapes: Vec<Shape>,
}

/// Returns the shapes that run on every device.
pub fn shapes() -> Vec<Shape> {
    let table: Table =
        serde_json::from_str(include_str!("../shapes.json")).expect("tests/shapes.json is valid");
    table.shapes
}
