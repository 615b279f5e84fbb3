//! Sliding windows of attention: the range of keys that a query attends to, and the range of queries that
//! attend to a key.

/// A sliding window: in row `i` of the score matrix, the columns from `i + offset - before` to `i + offset +
/// after`, inclusive, are visible. Rows are queries and columns are keys. After [`Window::transposed`], rows
/// are keys and columns are queries.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    offset: i32,
    before: i32,
    after: i32,
    cols: i32,
}

impl Window {
    /// Creates the sliding window of a sequence. The last query and the last key have the same position.
    #[inline(always)]
    pub fn of(queries: u32, keys: u32, before: i32, after: i32) -> Self {
        Self { offset: keys as i32 - queries as i32, before, after, cols: keys as i32 }
    }

    /// Returns this sliding window with keys as rows and `queries` queries as columns.
    #[inline(always)]
    pub fn transposed(&self, queries: u32) -> Self {
        Self { offset: -self.offset, before: self.after, after: self.before, cols: queries as i32 }
    }

    /// First column of the row.
    #[inline(always)]
    pub fn first(&self, row: u32) -> i32 {
        (row as i32 + self.offset - self.before).max(0)
    }

    /// Index of the last visible column of the row, plus one. If no column of the row is visible, the result
    /// can be less than [`Window::first`].
    #[inline(always)]
    pub fn end(&self, row: u32) -> i32 {
        (row as i32 + self.offset + self.after + 1).min(self.cols)
    }

    /// Returns the range of tiles that contain a column visible to at least one of the rows `first` to
    /// `last`. The result is the number of the first tile, and the number of the last tile plus one. A tile
    /// has `size` columns.
    #[inline(always)]
    pub fn tiles(&self, [first, last]: [u32; 2], size: u32) -> [u32; 2] {
        let end = self.end(last).max(0) as u32;
        [self.first(first) as u32 / size, end.div_ceil(size)]
    }

    /// Returns true if all columns from `col` to `col + size - 1` are hidden in all rows from `first` to
    /// `last`.
    #[inline(always)]
    pub fn hides(&self, [first, last]: [u32; 2], col: u32, size: u32) -> bool {
        self.end(last) <= col as i32 || self.first(first) >= (col + size) as i32
    }

    /// Returns true if all columns from `col` to `col + size - 1` are visible in all rows from `first` to
    /// `last`.
    #[inline(always)]
    pub fn shows(&self, [first, last]: [u32; 2], col: u32, size: u32) -> bool {
        self.first(last) <= col as i32 && self.end(first) >= (col + size) as i32
    }
}
