//! `wgmma`: matrix multiplication by a warpgroup. The trait [`Accumulator`] has one implementation per tile
//! width, which determines the number of accumulator registers per thread.
use core::arch::asm;

pub use crate::base::wgmma::Kind;

/// The accumulator registers of one thread of a warpgroup. The accumulators of the whole warpgroup form a
/// tile of 64 rows and `2 * LEN` columns.
pub trait Accumulator: Copy {
    /// Number of registers per thread.
    const LEN: usize;
    /// An accumulator with zero in every register.
    const ZERO: Self;

    /// Starts `self += a * b` if `add` is true, otherwise `self = a * b`. `a` and `b` are in shared memory.
    ///
    /// `a` has 64 rows (M), and `b` has `2 * LEN` columns (N). A row of K has 32 bytes. An operand is
    /// contiguous along K, or along M or N if its flag is 1.
    ///
    /// # Safety
    /// `a` and `b` are valid matrix descriptors. The whole warpgroup calls the function. No thread reads
    /// `self` before [`wgmma_wait`].
    unsafe fn mma_shared<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64);

    /// Starts `self += a * b`. `a` is in registers and `b` in shared memory. `b` is contiguous along K, or
    /// along N if the flag `B` is 1.
    ///
    /// # Safety
    /// `b` is a valid matrix descriptor. The whole warpgroup calls the function. No thread reads `self`
    /// before [`wgmma_wait`].
    unsafe fn mma_registers<const B: u32>(&mut self, kind: Kind, a: [u32; 4], b: u64);

    /// Prevents the compiler from moving reads of the accumulators before this call.
    ///
    /// An asynchronous `wgmma` writes these registers until [`wgmma_wait`] returns. The compiler does not
    /// know about these writes.
    fn settle(&mut self);

    /// Does nothing. The CPU executor checks that no `wgmma` may still write the registers.
    #[inline(always)]
    fn check_settled(&self) {}
}

macro_rules! accumulators {
    ($($count:literal $columns:literal: $($i:literal)*;)*) => { $(
        impl Accumulator for [f32; $count] {
            const LEN: usize = $count;
            const ZERO: Self = [0.0; $count];
            #[inline(always)]
            unsafe fn mma_shared<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64) {
                let d = self;
                macro_rules! start {
                    ($way:ident, $add:literal) => {
                        match kind {
                            Kind::Bf16 => shared!($way, $add, "k16.f32.bf16.bf16 ", $columns, d, [$($i)*], a, b, "1, 1, {ta}, {tb}; }}", ta = const A, tb = const B,),
                            Kind::F16 => shared!($way, $add, "k16.f32.f16.f16 ", $columns, d, [$($i)*], a, b, "1, 1, {ta}, {tb}; }}", ta = const A, tb = const B,),
                            Kind::Tf32 => shared!($way, $add, "k8.f32.tf32.tf32 ", $columns, d, [$($i)*], a, b, "1, 1; }}",),
                            Kind::E4m3 => shared!($way, $add, "k32.f32.e4m3.e4m3 ", $columns, d, [$($i)*], a, b, "1, 1; }}",),
                            Kind::E5m2 => shared!($way, $add, "k32.f32.e5m2.e5m2 ", $columns, d, [$($i)*], a, b, "1, 1; }}",),
                            Kind::E4m3E5m2 => shared!($way, $add, "k32.f32.e4m3.e5m2 ", $columns, d, [$($i)*], a, b, "1, 1; }}",),
                            Kind::E5m2E4m3 => shared!($way, $add, "k32.f32.e5m2.e4m3 ", $columns, d, [$($i)*], a, b, "1, 1; }}",),
                            Kind::S8 | Kind::U8 => unreachable!(),
                        }
                    };
                }
                // SAFETY: the caller passes valid matrix descriptors and ensures that the whole warpgroup
                // executes the instruction.
                unsafe {
                    if add {
                        start!(inout, "eq")
                    } else {
                        start!(out, "ne")
                    }
                }
            }
            #[inline(always)]
            unsafe fn mma_registers<const B: u32>(&mut self, kind: Kind, a: [u32; 4], b: u64) {
                let d = self;
                // SAFETY: the caller passes valid matrix descriptors and ensures that the whole warpgroup
                // executes the instruction.
                unsafe {
                    match kind {
                        Kind::Bf16 => registers!("k16.f32.bf16.bf16 ", $columns, d, [$($i)*], a, b, "1, 1, {tb}; }}", tb = const B,),
                        Kind::F16 => registers!("k16.f32.f16.f16 ", $columns, d, [$($i)*], a, b, "1, 1, {tb}; }}", tb = const B,),
                        Kind::Tf32 => registers!("k8.f32.tf32.tf32 ", $columns, d, [$($i)*], a, b, "1, 1; }}",),
                        Kind::E4m3 => registers!("k32.f32.e4m3.e4m3 ", $columns, d, [$($i)*], a, b, "1, 1; }}",),
                        Kind::E5m2 => registers!("k32.f32.e5m2.e5m2 ", $columns, d, [$($i)*], a, b, "1, 1; }}",),
                        Kind::E4m3E5m2 => registers!("k32.f32.e4m3.e5m2 ", $columns, d, [$($i)*], a, b, "1, 1; }}",),
                        Kind::E5m2E4m3 => registers!("k32.f32.e5m2.e4m3 ", $columns, d, [$($i)*], a, b, "1, 1; }}",),
                        Kind::S8 | Kind::U8 => unreachable!(),
                    }
                }
            }
            #[inline(always)]
            fn settle(&mut self) {
                for register in self {
                    // SAFETY: the assembly is only a comment.
                    unsafe { asm!("// {}", inout(reg32) * register, options(nostack)) }
                }
            }
        }

        impl Accumulator for [i32; $count] {
            const LEN: usize = $count;
            const ZERO: Self = [0; $count];
            #[inline(always)]
            unsafe fn mma_shared<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64) {
                let d = self;
                // SAFETY: the caller passes valid matrix descriptors and ensures that the whole warpgroup
                // executes the instruction.
                unsafe {
                    match (kind, add) {
                        (Kind::S8, true) => shared!(inout, "eq", "k32.s32.s8.s8 ", $columns, d, [$($i)*], a, b, "; }}",),
                        (Kind::S8, false) => shared!(out, "ne", "k32.s32.s8.s8 ", $columns, d, [$($i)*], a, b, "; }}",),
                        (_, true) => shared!(inout, "eq", "k32.s32.u8.u8 ", $columns, d, [$($i)*], a, b, "; }}",),
                        (_, false) => shared!(out, "ne", "k32.s32.u8.u8 ", $columns, d, [$($i)*], a, b, "; }}",),
                    }
                }
            }
            #[inline(always)]
            unsafe fn mma_registers<const B: u32>(&mut self, kind: Kind, a: [u32; 4], b: u64) {
                let d = self;
                // SAFETY: the caller passes valid matrix descriptors and ensures that the whole warpgroup
                // executes the instruction.
                unsafe {
                    match kind {
                        Kind::S8 => registers!("k32.s32.s8.s8 ", $columns, d, [$($i)*], a, b, "; }}",),
                        _ => registers!("k32.s32.u8.u8 ", $columns, d, [$($i)*], a, b, "; }}",),
                    }
                }
            }
            #[inline(always)]
            fn settle(&mut self) {
                for register in self {
                    // SAFETY: the assembly is only a comment.
                    unsafe { asm!("// {}", inout(reg32) * register, options(nostack)) }
                }
            }
        }
    )* };
}

/// Emits a `wgmma` whose operands are both in shared memory.
///
/// If the product overwrites the accumulators (`d = a * b`), the accumulators are outputs of the `asm!`
/// block, but not inputs. The compiler then need not initialize their registers.
macro_rules! shared {
    ($way:ident, $add:literal, $kind:literal, $columns:literal, $d:ident, $i:tt, $a:ident, $b:ident, $end:tt,
        $($flags:tt)*) => {
        wgmma!($way, $add, $kind, $columns, $d, $i, "{a}, {b}, add", $end, a = in(reg64) $a, b = in(reg64) $b,
            $($flags)*)
    };
}

/// Emits a `wgmma` with the left operand in registers and the right operand in shared memory.
macro_rules! registers {
    ($kind:literal, $columns:literal, $d:ident, $i:tt, $a:ident, $b:ident, $end:tt, $($flags:tt)*) => {
        wgmma!(
            inout, "eq", $kind, $columns, $d, $i, "{{{p}, {q}, {r}, {s}}}, {b}, add", $end,
            p = in(reg32) $a[0], q = in(reg32) $a[1], r = in(reg32) $a[2], s = in(reg32) $a[3], b = in(reg64) $b,
            $($flags)*
        )
    };
}

macro_rules! wgmma {
    ($way:ident, $add:literal, $kind:literal, $columns:literal, $d:ident, [$first:literal $($i:literal)*],
        $operands:literal, $end:tt, $($rest:tt)*) => {
        asm!(
            concat!("{{ .reg .pred add; setp.", $add, ".b32 add, 0, 0;"),
            concat!(
                "wgmma.mma_async.sync.aligned.m64n", $columns, $kind, "{{{", $first, "}",
                $(", {", $i, "}",)* "}}, ", $operands, comma!($end), $end
            ),
            $way(reg32) $d[$first], $($way(reg32) $d[$i],)*
            $($rest)*
            options(nostack)
        )
    };
}

/// The separator between the predicate and the immediate operands.
macro_rules! comma {
    ("; }}") => {
        ""
    };
    ($end:tt) => {
        ", "
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

/// Orders earlier writes to the accumulator and operand registers before the `wgmma` instructions that follow
/// (`wgmma.fence`).
#[inline(always)]
pub unsafe fn wgmma_fence() {
    // SAFETY: the caller ensures that the whole warpgroup executes the instruction.
    unsafe { asm!("wgmma.fence.sync.aligned;", options(nostack)) }
}

/// Commits all `wgmma` operations that started since the last commit as one group.
#[inline(always)]
pub unsafe fn wgmma_commit() {
    // SAFETY: the caller ensures that the whole warpgroup executes the instruction.
    unsafe { asm!("wgmma.commit_group.sync.aligned;", options(nostack)) }
}

/// Waits until at most the last `PENDING` committed groups of `wgmma` operations are unfinished.
#[inline(always)]
pub unsafe fn wgmma_wait<const PENDING: u32>() {
    // SAFETY: the caller ensures that the whole warpgroup executes the instruction.
    unsafe { asm!("wgmma.wait_group.sync.aligned {};", const PENDING, options(nostack)) }
}
