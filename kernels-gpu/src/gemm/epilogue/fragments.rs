//! Selects a fragment of a thread's accumulators of a matrix product, and loads the operands of the epilogue
//! for this fragment. A fragment is the part of the accumulators that an epilogue processes together.
use cuda_std::elem::Elem;
use cuda_std::mem::{self, Load};

/// The place of a fragment in the result.
#[derive(Clone, Copy)]
pub(crate) struct FragmentPlace {
    /// Row of the thread's first element.
    pub row: u32,
    /// Column of the thread's first element.
    pub column: u32,
}

impl FragmentPlace {
    /// Returns the row and the column of word number `word` of the fragment. A word contains two adjacent
    /// 16-bit elements.
    #[inline(always)]
    pub fn word(self, word: u32) -> [u32; 2] {
        [self.row + word % 2 * 8, self.column + word / 2 * 8]
    }
}

/// Returns `fragment(index)`, where `fragment` reads a fragment of the accumulators from registers. Registers
/// cannot be indexed at run time, so a loop that is not unrolled needs this function. The function contains
/// the code of `fragment(0)` to `fragment(23)`, because a thread has at most 24 fragments, and selects one of
/// these results.
#[inline(always)]
pub(crate) fn select(index: u32, fragment: impl Fn(usize) -> [f32; 8]) -> [f32; 8] {
    match index {
        0 => fragment(0),
        1 => fragment(1),
        2 => fragment(2),
        3 => fragment(3),
        4 => fragment(4),
        5 => fragment(5),
        6 => fragment(6),
        7 => fragment(7),
        8 => fragment(8),
        9 => fragment(9),
        10 => fragment(10),
        11 => fragment(11),
        12 => fragment(12),
        13 => fragment(13),
        14 => fragment(14),
        15 => fragment(15),
        16 => fragment(16),
        17 => fragment(17),
        18 => fragment(18),
        19 => fragment(19),
        20 => fragment(20),
        21 => fragment(21),
        22 => fragment(22),
        _ => fragment(23),
    }
}

/// Loads two adjacent 16-bit elements as one word. If `pair` is true, this is one 4-byte load, otherwise two
/// loads.
///
/// # Safety
/// Both elements are readable. If `pair` is true, `from` is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn load_word(from: *const u8, pair: bool) -> u32 {
    // SAFETY: the caller guarantees that both elements are readable, and that the address is a multiple of 4
    // if `pair` is true.
    unsafe {
        if pair {
            mem::load_u32(from, Load::ReadOnly)
        } else {
            let [low, high] = [0, 2].map(|offset| mem::load_u16(from.wrapping_add(offset), Load::ReadOnly));
            u32::from(low) | u32::from(high) << 16
        }
    }
}

/// The bias of a matrix product.
#[derive(Clone, Copy)]
pub(crate) struct ColumnBias {
    /// One element per row of `w`, or null.
    pub base: *const u8,
    /// Number of columns of the result.
    pub columns: u32,
    /// Whether `base` is a multiple of 4.
    pub pairs: bool,
}

impl ColumnBias {
    /// Returns the bias of four columns of the result: `column`, `column + 1`, `column + 8` and `column + 9`.
    /// A thread's fragment (its eight elements of a 16 x 16 block) has these columns. `start` is the index of
    /// the bias of column 0.
    ///
    /// # Safety
    /// The fields describe the bias of this launch.
    #[inline(always)]
    pub unsafe fn fetch<T: Elem>(self, start: u32, column: u32) -> [[f32; 2]; 2] {
        // SAFETY: the caller guarantees that the fields describe the bias of this launch.
        [0, 8].map(|offset| unsafe { self.pair::<T>(start, column + offset) })
    }

    /// Does the same as [`ColumnBias::fetch`], but returns pairs of 16-bit elements.
    ///
    /// # Safety
    /// The fields describe the bias of this launch.
    #[inline(always)]
    pub unsafe fn words(self, start: u32, column: u32) -> [u32; 2] {
        // SAFETY: the caller guarantees that the fields describe the bias of this launch.
        [0, 8].map(|offset| unsafe { self.word(start, column + offset) }.unwrap_or(0))
    }

    /// Returns the bias of two columns as a pair of 16-bit elements, or `None` if there is no bias or the
    /// result does not have these columns. The method `pair` does not call this method, because the compiler
    /// would then emit other code for all kernels.
    ///
    /// # Safety
    /// The fields describe the bias of this launch.
    #[inline(always)]
    unsafe fn word(self, start: u32, column: u32) -> Option<u32> {
        if self.base.is_null() || column >= self.columns {
            return None;
        }
        let from = self.base.wrapping_add(2 * (start + column) as usize);
        // SAFETY: the load reads the bias of two columns. The bias has one element per column, and the number
        // of columns is even, so both elements exist.
        Some(unsafe { load_word(from, self.pairs) })
    }

    /// Returns the bias of two columns, or zeros if there is no bias or the result does not have these
    /// columns.
    ///
    /// # Safety
    /// The fields describe the bias of this launch.
    #[inline(always)]
    unsafe fn pair<T: Elem>(self, start: u32, column: u32) -> [f32; 2] {
        if self.base.is_null() || column >= self.columns {
            return [0.0; 2];
        }
        let from = self.base.wrapping_add(2 * (start + column) as usize);
        // SAFETY: the load reads the bias of two columns. The bias has one element per column, and the number
        // of columns is even, so both elements exist.
        let word = unsafe { load_word(from, self.pairs) };
        [word & 0xffff, word >> 16].map(|bits| T::from_bits(bits).to_f32())
    }
}

/// Converts the bias of four columns, two pairs of 16-bit elements, to f32.
#[inline(always)]
pub(crate) fn bias_pairs<T: Elem>(words: [u32; 2]) -> [[f32; 2]; 2] {
    words.map(|word| [word & 0xffff, word >> 16].map(|bits| T::from_bits(bits).to_f32()))
}

/// Adds the bias to the sums of a fragment.
#[inline(always)]
pub(crate) fn plus_bias(sums: [f32; 8], bias: [[f32; 2]; 2]) -> [f32; 8] {
    core::array::from_fn(|i| sums[i] + bias[i / 4][i % 2])
}
