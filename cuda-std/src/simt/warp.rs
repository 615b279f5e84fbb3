//! Warp operations: shuffles, votes and reductions of the 32 threads of a warp.
//!
//! If a function has a parameter `mask`, all lanes in `mask` must call the function. The CPU executor reports
//! a fault if one of these lanes does not call it.
use crate::arch;

/// Threads in a warp.
pub const SIZE: u32 = 32;
/// Mask of all 32 lanes.
pub const ALL: u32 = u32::MAX;

/// Returns the thread's lane, 0 to 31.
#[inline(always)]
pub fn lane() -> u32 {
    arch::lane()
}

/// Waits for all lanes in `mask` and orders the memory accesses of these lanes (`__syncwarp`).
#[inline(always)]
#[track_caller]
pub fn sync(mask: u32) {
    arch::sync_warp(mask);
}

/// A 32-bit value that one shuffle can exchange.
pub trait Word: Copy {
    /// Returns the bits of the value.
    fn to_word(self) -> u32;
    /// Returns the value with these bits.
    fn from_word(word: u32) -> Self;
}
macro_rules! word {
    ($($t:ty: $to:expr, $from:expr;)*) => { $(impl Word for $t {
        #[inline(always)]
        fn to_word(self) -> u32 { $to(self) }
        #[inline(always)]
        fn from_word(word: u32) -> Self { $from(word) }
    })* };
}
word! {
    u32: |v| v, |w| w;
    i32: |v| v as u32, |w| w as i32;
    f32: f32::to_bits, f32::from_bits;
}

/// A value that a reduction exchanges between lanes: one or two 32-bit words.
pub trait Exchange: Copy {
    /// Returns the value of lane `lane() ^ lane_mask`. Every lane of the warp must call the function.
    fn shuffle_xor(self, lane_mask: u32) -> Self;
    /// Returns the value as a 64-bit word. The blocks of a cluster exchange values as such words.
    fn to_bits(self) -> u64;
    /// Converts `bits` back to a value. This function is the inverse of [`Exchange::to_bits`].
    fn from_bits(bits: u64) -> Self;
}
impl<T: Word> Exchange for T {
    #[inline(always)]
    #[track_caller]
    fn shuffle_xor(self, lane_mask: u32) -> Self {
        shuffle_xor(ALL, self, lane_mask)
    }
    #[inline(always)]
    fn to_bits(self) -> u64 {
        u64::from(self.to_word())
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        T::from_word(bits as u32)
    }
}
impl Exchange for [f32; 2] {
    #[inline(always)]
    #[track_caller]
    fn shuffle_xor(self, lane_mask: u32) -> Self {
        [self[0].shuffle_xor(lane_mask), self[1].shuffle_xor(lane_mask)]
    }
    #[inline(always)]
    fn to_bits(self) -> u64 {
        u64::from(self[0].to_bits()) | u64::from(self[1].to_bits()) << 32
    }
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        [bits, bits >> 32].map(|word| f32::from_bits(word as u32))
    }
}

/// Returns the value of lane `lane() ^ lane_mask`.
#[inline(always)]
#[track_caller]
pub fn shuffle_xor<T: Word>(mask: u32, value: T, lane_mask: u32) -> T {
    T::from_word(arch::shfl_xor(mask, value.to_word(), lane_mask))
}

/// Returns the value of lane `lane() + delta`, or the caller's own value if that lane does not exist.
#[inline(always)]
#[track_caller]
pub fn shuffle_down<T: Word>(mask: u32, value: T, delta: u32) -> T {
    T::from_word(arch::shfl_down(mask, value.to_word(), delta))
}

/// Returns the value of lane `lane() - delta`, or the caller's own value if that lane does not exist.
#[inline(always)]
#[track_caller]
pub fn shuffle_up<T: Word>(mask: u32, value: T, delta: u32) -> T {
    T::from_word(arch::shfl_up(mask, value.to_word(), delta))
}

/// Returns the value of lane `lane`.
#[inline(always)]
#[track_caller]
pub fn shuffle<T: Word>(mask: u32, value: T, lane: u32) -> T {
    T::from_word(arch::shfl_idx(mask, value.to_word(), lane))
}

/// Returns a word in which bit `l` is the `predicate` that lane `l` passed. Bits of lanes outside `mask` are
/// 0.
#[inline(always)]
#[track_caller]
pub fn ballot(mask: u32, predicate: bool) -> u32 {
    arch::ballot(mask, predicate)
}

/// Returns whether `predicate` is true in any lane in `mask`.
#[inline(always)]
#[track_caller]
pub fn any(mask: u32, predicate: bool) -> bool {
    ballot(mask, predicate) != 0
}

/// Returns whether `predicate` is true in all lanes in `mask`.
#[inline(always)]
#[track_caller]
pub fn all(mask: u32, predicate: bool) -> bool {
    ballot(mask, predicate) == mask
}

/// Reduces `value` within each group of `width` neighbouring lanes. `width` is a power of two up to 32.
///
/// In each step, pairs of lanes exchange their values, and both lanes of a pair combine the two values.
/// `combine` must be commutative. All lanes of a group therefore return the same bits.
#[inline(always)]
#[track_caller]
pub fn reduce<T: Exchange>(value: T, width: u32, combine: impl Fn(T, T) -> T) -> T {
    let mut reduced = value;
    let mut distance = width / 2;
    while distance > 0 {
        reduced = combine(reduced, reduced.shuffle_xor(distance));
        distance /= 2;
    }
    reduced
}

/// Returns the sum of `value` within each group of `width` neighbouring lanes.
#[inline(always)]
#[track_caller]
pub fn sum(value: f32, width: u32) -> f32 {
    reduce(value, width, |a, b| a + b)
}

/// Returns the maximum of `value` within each group of `width` neighbouring lanes. The maximum of a NaN and a
/// number is the number, as in PTX `max.f32`.
#[inline(always)]
#[track_caller]
pub fn max(value: f32, width: u32) -> f32 {
    reduce(value, width, f32::max)
}
