//! Sliding windows of attention. A window determines the range of keys that each query attends to. The
//! transposed window determines the range of queries that attend to each key.

/// A sliding window. In row `i` of the score matrix, the visible columns are `i + offset - before` to
/// `i + offset + after`, inclusive. Rows are queries and columns are keys. In a window that
/// [`Window::transposed`] returned, rows are keys and columns are queries.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    offset: i32,
    before: i32,
    after: i32,
    cols: i32,
}

impl Window {
    /// Creates the sliding window of a sequence with `queries` queries and `keys` keys. The last query has
    /// the position of the last key, even if the sequence has more keys than queries or fewer.
    #[inline(always)]
    pub fn of(queries: u32, keys: u32, before: i32, after: i32) -> Self {
        Self { offset: keys as i32 - queries as i32, before, after, cols: keys as i32 }
    }

    /// Returns this sliding window for the transposed score matrix, in which rows are keys and columns are
    /// queries. The number of queries is `queries`.
    #[inline(always)]
    pub fn transposed(&self, queries: u32) -> Self {
        Self { offset: -self.offset, before: self.after, after: self.before, cols: queries as i32 }
    }

    /// Returns the index of the first visible column of row `row`.
    #[inline(always)]
    pub fn first(&self, row: u32) -> i32 {
        (row as i32 + self.offset - self.before).max(0)
    }

    /// Returns the index of the last visible column of row `row`, plus one. If no column of the row is
    /// visible, the result can be less than [`Window::first`].
    #[inline(always)]
    pub fn end(&self, row: u32) -> i32 {
        (row as i32 + self.offset + self.after + 1).min(self.cols)
    }

    /// Returns the range of column tiles that contain all columns visible in the rows `first` to `last`. The
    /// range is the number of the first tile, and the number of the last tile plus one. A column tile has
    /// `size` columns.
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
