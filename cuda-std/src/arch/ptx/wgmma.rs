//! `wgmma`: the matrix product of a warp group, for each number of accumulators that kernels use.
use core::arch::asm;

/// Accumulator registers of a thread for a product of 64 rows and twice as many columns as there are registers.
pub trait Accumulator: Copy + AsRef<[f32]> + AsMut<[f32]> {
    /// How many.
    const LEN: usize;
    /// All zero.
    const ZERO: Self;

    /// `self = a * b`, or `self += a * b` if `add`: 64 x 16 times 16 x columns, both from shared memory, where both lie
    /// with these 16 contiguous.
    ///
    /// # Safety
    /// The descriptors say where the operands are, the whole warp group is here, and `self` is not read before the wait.
    unsafe fn mma_shared(&mut self, bf16: bool, add: bool, a: u64, b: u64);

    /// `self += a * b`, `a` from registers and `b` from shared memory, where it lies with its columns contiguous.
    ///
    /// # Safety
    /// As [`Accumulator::mma_shared`].
    unsafe fn mma_registers(&mut self, bf16: bool, a: [u32; 4], b: u64);
}

macro_rules! accumulators {
    ($($count:literal $columns:literal: $($i:literal)*;)*) => { $(
        impl Accumulator for [f32; $count] {
            const LEN: usize = $count;
            const ZERO: Self = [0.0; $count];
            #[inline(always)]
            unsafe fn mma_shared(&mut self, bf16: bool, add: bool, a: u64, b: u64) {
                let d = self;
                // SAFETY: as the caller promises.
                unsafe {
                    match (bf16, add) {
                        (true, true) => shared!(inout, "eq", "bf16", $columns, d, [$($i)*], a, b),
                        (true, false) => shared!(out, "ne", "bf16", $columns, d, [$($i)*], a, b),
                        (false, true) => shared!(inout, "eq", "f16", $columns, d, [$($i)*], a, b),
                        (false, false) => shared!(out, "ne", "f16", $columns, d, [$($i)*], a, b),
                    }
                }
            }
            #[inline(always)]
            unsafe fn mma_registers(&mut self, bf16: bool, a: [u32; 4], b: u64) {
                let d = self;
                // SAFETY: as the caller promises.
                unsafe {
                    match bf16 {
                        true => registers!("bf16", $columns, d, [$($i)*], a, b),
                        false => registers!("f16", $columns, d, [$($i)*], a, b),
                    }
                }
            }
        }
    )* };
}

/// A product of two operands in shared memory. Without `add` the accumulators are results only: nothing is to be kept in
/// their registers before.
macro_rules! shared {
    ($way:ident, $add:literal, $kind:literal, $columns:literal, $d:ident, $i:tt, $a:ident, $b:ident) => {
        wgmma!($way, $add, $kind, $columns, $d, $i, "{a}, {b}, add, 1, 1, 0, 0; }}", a = in(reg64) $a, b = in(reg64) $b)
    };
}

/// A product of an operand in registers.
macro_rules! registers {
    ($kind:literal, $columns:literal, $d:ident, $i:tt, $a:ident, $b:ident) => {
        wgmma!(
            inout, "eq", $kind, $columns, $d, $i, "{{{p}, {q}, {r}, {s}}}, {b}, add, 1, 1, 1; }}",
            p = in(reg32) $a[0], q = in(reg32) $a[1], r = in(reg32) $a[2], s = in(reg32) $a[3], b = in(reg64) $b
        )
    };
}

macro_rules! wgmma {
    ($way:ident, $add:literal, $kind:literal, $columns:literal, $d:ident, [$first:literal $($i:literal)*],
        $rest:literal, $($operands:tt)*) => {
        asm!(
            concat!("{{ .reg .pred add; setp.", $add, ".b32 add, 0, 0;"),
            concat!(
                "wgmma.mma_async.sync.aligned.m64n", $columns, "k16.f32.", $kind, ".", $kind, " {{{", $first, "}",
                $(", {", $i, "}",)* "}}, ", $rest
            ),
            $way(reg32) $d[$first], $($way(reg32) $d[$i],)*
            $($operands)*,
            options(nostack)
        )
    };
}

accumulators! {
    32 64:
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31;
    40 80:
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
        37 38 39;
    48 96:
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
        37 38 39 40 41 42 43 44 45 46 47;
    64 128:
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
        37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63;
    72 144:
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
        37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69
        70 71;
    128 256:
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36
        37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69
        70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101
        102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126
        127;
}

/// What was written to registers and shared memory is there for the products that follow.
#[inline(always)]
pub unsafe fn wgmma_fence() {
    // SAFETY: the caller vouches for the whole warp group.
    unsafe { asm!("wgmma.fence.sync.aligned;", options(nostack)) }
}

/// Closes the group of products begun since the last one.
#[inline(always)]
pub unsafe fn wgmma_commit() {
    // SAFETY: as `wgmma_fence`.
    unsafe { asm!("wgmma.commit_group.sync.aligned;", options(nostack)) }
}

/// Waits until at most `PENDING` groups are unfinished.
#[inline(always)]
pub unsafe fn wgmma_wait<const PENDING: u32>() {
    // SAFETY: as `wgmma_fence`.
    unsafe { asm!("wgmma.wait_group.sync.aligned {};", const PENDING, options(nostack)) }
}

/// Registers that a product wrote behind the compiler's back: what is read after this is read after this.
#[inline(always)]
pub fn settle(registers: &mut [f32]) {
    for register in registers {
        // SAFETY: no instruction.
        unsafe { asm!("// {}", inout(reg32) * register, options(nostack)) }
    }
}
