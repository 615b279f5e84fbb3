//! Which keys a query may see by its position, and which queries a key.

/// Row `i` has the columns from `i + offset - before` to `i + offset + after`. Rows are queries and columns the keys that
/// they see, or the other way round.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    offset: i32,
    before: i32,
    after: i32,
    cols: i32,
}

impl Window {
    /// The last query stands at the last key.
    #[inline(always)]
    pub fn of(queries: u32, keys: u32, before: i32, after: i32) -> Self {
        Self { offset: keys as i32 - queries as i32, before, after, cols: keys as i32 }
    }

    /// The same with keys as rows, of so many queries.
    #[inline(always)]
    pub fn transposed(&self, queries: u32) -> Self {
        Self { offset: -self.offset, before: self.after, after: self.before, cols: queries as i32 }
    }

    /// The first column that the row has.
    #[inline(always)]
    pub fn first(&self, row: u32) -> i32 {
        (row as i32 + self.offset - self.before).max(0)
    }

    /// The column behind its last.
    #[inline(always)]
    pub fn end(&self, row: u32) -> i32 {
        (row as i32 + self.offset + self.after + 1).min(self.cols)
    }

    /// The tiles of `size` columns that rows from `first` to `last` have any of, and the one behind them.
    #[inline(always)]
    pub fn tiles(&self, [first, last]: [u32; 2], size: u32) -> [u32; 2] {
        let end = self.end(last).max(0) as u32;
        [self.first(first) as u32 / size, end.div_ceil(size)]
    }

    /// Has none of the rows from `first` to `last` a column from `col` on, `size` of them?
    #[inline(always)]
    pub fn hides(&self, [first, last]: [u32; 2], col: u32, size: u32) -> bool {
        self.end(last) <= col as i32 || self.first(first) >= (col + size) as i32
    }

    /// Have all of them all of these?
    #[inline(always)]
    pub fn shows(&self, [first, last]: [u32; 2], col: u32, size: u32) -> bool {
        self.first(last) <= col as i32 && self.end(first) >= (col + size) as i32
    }
}
