//! Which keys a query may see by its position.

/// Query `i` of a sequence sees the keys from `i + offset - before` to `i + offset + after`.
#[derive(Clone, Copy)]
pub(super) struct Band {
    offset: i32,
    before: i32,
    after: i32,
    keys: i32,
}

impl Band {
    /// The last query stands at the last key.
    #[inline(always)]
    pub fn of(queries: u32, keys: u32, before: i32, after: i32) -> Self {
        Self { offset: keys as i32 - queries as i32, before, after, keys: keys as i32 }
    }

    /// The first key that the query sees.
    #[inline(always)]
    pub fn first(&self, query: u32) -> i32 {
        (query as i32 + self.offset - self.before).max(0)
    }

    /// The key behind the last that it sees.
    #[inline(always)]
    pub fn end(&self, query: u32) -> i32 {
        (query as i32 + self.offset + self.after + 1).min(self.keys)
    }

    /// The tiles of `size` keys that queries from `first` to `last` see any key of, and the one behind them.
    #[inline(always)]
    pub fn tiles(&self, [first, last]: [u32; 2], size: u32) -> [u32; 2] {
        let end = self.end(last).max(0) as u32;
        [self.first(first) as u32 / size, end.div_ceil(size)]
    }

    /// Does none of the queries from `first` to `last` see a key from `key` on, `size` of them?
    #[inline(always)]
    pub fn hides(&self, [first, last]: [u32; 2], key: u32, size: u32) -> bool {
        self.end(last) <= key as i32 || self.first(first) >= (key + size) as i32
    }

    /// Do all of them see all of these?
    #[inline(always)]
    pub fn shows(&self, [first, last]: [u32; 2], key: u32, size: u32) -> bool {
        self.first(last) <= key as i32 && self.end(first) >= (key + size) as i32
    }
}
