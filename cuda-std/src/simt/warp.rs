//! The 32 threads that run together: exchange, vote, reduce.
//!
//! Every function with a `mask` must be reached by all the lanes that the mask names; the CPU executor reports the
//! lane that is missing.
use crate::arch;

/// Threads in a warp.
pub const SIZE: u32 = 32;
/// All lanes.
pub const ALL: u32 = u32::MAX;

/// The thread's lane, 0 to 31.
#[inline(always)]
pub fn lane() -> u32 {
    arch::lane()
}

/// Waits for all lanes of `mask` and orders their memory accesses.
#[inline(always)]
pub fn sync(mask: u32) {
    arch::sync_warp(mask);
}

/// The bits of a 32-bit value, as shuffles move them.
pub trait Word: Copy {
    /// To bits.
    fn to_word(self) -> u32;
    /// From bits.
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

/// What a fold exchanges: a word, or several that belong together.
pub trait Exchange: Copy {
    /// The value of lane `lane() ^ lane_mask`; every lane of the warp must be here.
    fn shuffle_xor(self, lane_mask: u32) -> Self;
    /// To 64 bits, as blocks exchange it.
    fn to_bits(self) -> u64;
    /// From those.
    fn from_bits(bits: u64) -> Self;
}
impl<T: Word> Exchange for T {
    #[inline(always)]
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

/// The value of lane `lane() ^ lane_mask`.
#[inline(always)]
pub fn shuffle_xor<T: Word>(mask: u32, value: T, lane_mask: u32) -> T {
    T::from_word(arch::shfl_xor(mask, value.to_word(), lane_mask))
}

/// The value of lane `lane() + delta`; a lane past the end gets its own.
#[inline(always)]
pub fn shuffle_down<T: Word>(mask: u32, value: T, delta: u32) -> T {
    T::from_word(arch::shfl_down(mask, value.to_word(), delta))
}

/// The value of lane `lane() - delta`; a lane before the start gets its own.
#[inline(always)]
pub fn shuffle_up<T: Word>(mask: u32, value: T, delta: u32) -> T {
    T::from_word(arch::shfl_up(mask, value.to_word(), delta))
}

/// The value of lane `lane`.
#[inline(always)]
pub fn shuffle<T: Word>(mask: u32, value: T, lane: u32) -> T {
    T::from_word(arch::shfl_idx(mask, value.to_word(), lane))
}

/// One bit per lane of `mask`: its `predicate`.
#[inline(always)]
pub fn ballot(mask: u32, predicate: bool) -> u32 {
    arch::ballot(mask, predicate)
}

/// Does any lane of `mask` say yes?
#[inline(always)]
pub fn any(mask: u32, predicate: bool) -> bool {
    ballot(mask, predicate) != 0
}

/// Do all lanes of `mask` say yes?
#[inline(always)]
pub fn all(mask: u32, predicate: bool) -> bool {
    ballot(mask, predicate) == mask
}

/// Folds `value` over groups of `width` neighbouring lanes (a power of two up to 32), the same bits in every lane.
///
/// A butterfly: both lanes of a pair compute the same commutative `combine`, so all end with one result.
#[inline(always)]
pub fn reduce<T: Exchange>(value: T, width: u32, combine: impl Fn(T, T) -> T) -> T {
    let mut reduced = value;
    let mut distance = width / 2;
    while distance > 0 {
        reduced = combine(reduced, reduced.shuffle_xor(distance));
        distance /= 2;
    }
    reduced
}

/// The sum of `value` over groups of `width` neighbouring lanes.
#[inline(always)]
pub fn sum(value: f32, width: u32) -> f32 {
    reduce(value, width, |a, b| a + b)
}

/// The maximum of `value` over groups of `width` neighbouring lanes; a NaN loses to a number, as `max.f32` has it.
#[inline(always)]
pub fn max(value: f32, width: u32) -> f32 {
    reduce(value, width, f32::max)
}
