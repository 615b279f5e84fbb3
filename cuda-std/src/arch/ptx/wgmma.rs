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
    /// `add` must be a compile-time constant, because each of its values selects another instruction.
    ///
    /// `a` has 64 rows (M), and `b` has `2 * LEN` columns (N). Each row of `a` and each column of `b` has 32
    /// bytes along K. If the flag of an operand (`A` or `B`) is 0, the operand is contiguous along K. If the
    /// flag is 1, it is contiguous along M or N instead.
    ///
    /// # Safety
    /// `a` and `b` are valid matrix descriptors. The whole warpgroup calls the function. No thread reads
    /// `self` before [`wgmma_wait`].
    unsafe fn mma_shared<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64);

    /// Computes the same as [`Accumulator::mma_shared`], but `add` need not be a constant: the emitted
    /// instruction tests it at run time.
    ///
    /// # Safety
    /// The requirements of [`Accumulator::mma_shared`] apply. All threads pass the same `add`.
    unsafe fn mma_shared_if<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64);

    /// Starts `self += a * b` if `add` is true, otherwise `self = a * b`. `a` is in registers and `b` in
    /// shared memory. `b` is contiguous along K, or along N if the flag `B` is 1. `add` must be a
    /// compile-time constant.
    ///
    /// # Safety
    /// `b` is a valid matrix descriptor. The whole warpgroup calls the function. No thread reads `self`
    /// before [`wgmma_wait`].
    unsafe fn mma_registers<const B: u32>(&mut self, kind: Kind, add: bool, a: [u32; 4], b: u64);

    /// Computes the same as [`Accumulator::mma_registers`], but `add` need not be a constant: the emitted
    /// instruction tests it at run time.
    ///
    /// # Safety
    /// The requirements of [`Accumulator::mma_registers`] apply. All threads pass the same `add`.
    unsafe fn mma_registers_if<const B: u32>(&mut self, kind: Kind, add: bool, a: [u32; 4], b: u64);

    /// Prevents the compiler from moving reads of the accumulators before this call.
    ///
    /// An asynchronous `wgmma` writes these registers until [`wgmma_wait`] returns. The compiler does not
    /// know about these writes.
    fn settle(&mut self);

    /// Raises a fault on the CPU executor if a `wgmma` may still write the registers. This default
    /// implementation does nothing.
    #[inline(always)]
    fn check_settled(&self) {}
}

/// Implements [`Accumulator`] for each width of the result. A line of the macro's input has the number of
/// registers and the number of columns. It also has the indices of the additional registers, compared with
/// the line before. For 8-bit integers, only some of the widths exist.
macro_rules! widths {
    ([$($i:literal)*]) => {};
    ([$($i:literal)*] $count:literal $columns:literal integers: $($new:literal)*; $($rest:tt)*) => {
        accumulators!(i32, 0, integers, $count, $columns, [$($i)* $($new)*]);
        widths!([$($i)*] $count $columns: $($new)*; $($rest)*);
    };
    ([$($i:literal)*] $count:literal $columns:literal: $($new:literal)*; $($rest:tt)*) => {
        accumulators!(f32, 0.0, floats, $count, $columns, [$($i)* $($new)*]);
        widths!([$($i)* $($new)*] $($rest)*);
    };
}

macro_rules! accumulators {
    ($t:ty, $zero:literal, $kinds:ident, $count:literal, $columns:literal, $i:tt) => {
        impl Accumulator for [$t; $count] {
            const LEN: usize = $count;
            const ZERO: Self = [$zero; $count];
            #[inline(always)]
            unsafe fn mma_shared<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64) {
                let d = self;
                // SAFETY: the caller passes valid matrix descriptors and ensures that the whole warpgroup
                // executes the instruction.
                unsafe {
                    if add {
                        $kinds!(kind, shared, inout, always, [], $columns, d, $i, a, b)
                    } else {
                        $kinds!(kind, shared, out, never, [], $columns, d, $i, a, b)
                    }
                }
            }
            #[inline(always)]
            unsafe fn mma_shared_if<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64) {
                let (d, add) = (self, u32::from(add));
                // SAFETY: as in `mma_shared`.
                unsafe { $kinds!(kind, shared, inout, if_set, [set = in(reg32) add,], $columns, d, $i, a, b) }
            }
            #[inline(always)]
            unsafe fn mma_registers<const B: u32>(&mut self, kind: Kind, add: bool, a: [u32; 4], b: u64) {
                let d = self;
                // SAFETY: as in `mma_shared`.
                unsafe {
                    if add {
                        $kinds!(kind, registers, inout, always, [], $columns, d, $i, a, b)
                    } else {
                        $kinds!(kind, registers, out, never, [], $columns, d, $i, a, b)
                    }
                }
            }
            #[inline(always)]
            unsafe fn mma_registers_if<const B: u32>(&mut self, kind: Kind, add: bool, a: [u32; 4], b: u64) {
                let (d, add) = (self, u32::from(add));
                // SAFETY: as in `mma_shared`.
                unsafe { $kinds!(kind, registers, inout, if_set, [set = in(reg32) add,], $columns, d, $i, a, b) }
            }
            #[inline(always)]
            fn settle(&mut self) {
                for register in self {
                    // SAFETY: the assembly is only a comment.
                    unsafe { asm!("// {}", inout(reg32) * register, options(nostack)) }
                }
            }
        }
    };
}

/// Emits a `wgmma` of floats. The flags `A` and `B` exist only for 16-bit operands.
macro_rules! floats {
    ($kind:ident, shared, $($rest:tt)*) => {
        floats!(@ $kind, shared, "1, 1, {ta}, {tb}; }}", [ta = const A, tb = const B,], $($rest)*)
    };
    ($kind:ident, registers, $($rest:tt)*) => {
        floats!(@ $kind, registers, "1, 1, {tb}; }}", [tb = const B,], $($rest)*)
    };
    (@ $kind:ident, $operands:ident, $end:tt, $flags:tt, $($rest:tt)*) => {
        match $kind {
            Kind::Bf16 => $operands!("k16.f32.bf16.bf16 ", $end, $flags, $($rest)*),
            Kind::F16 => $operands!("k16.f32.f16.f16 ", $end, $flags, $($rest)*),
            Kind::Tf32 => $operands!("k8.f32.tf32.tf32 ", "1, 1; }}", [], $($rest)*),
            Kind::E4m3 => $operands!("k32.f32.e4m3.e4m3 ", "1, 1; }}", [], $($rest)*),
            Kind::E5m2 => $operands!("k32.f32.e5m2.e5m2 ", "1, 1; }}", [], $($rest)*),
            Kind::E4m3E5m2 => $operands!("k32.f32.e4m3.e5m2 ", "1, 1; }}", [], $($rest)*),
            Kind::E5m2E4m3 => $operands!("k32.f32.e5m2.e4m3 ", "1, 1; }}", [], $($rest)*),
            Kind::S8 | Kind::U8 => unreachable!(),
        }
    };
}

/// Emits a `wgmma` of 8-bit integers.
macro_rules! integers {
    ($kind:ident, $operands:ident, $($rest:tt)*) => {
        match $kind {
            Kind::S8 => $operands!("k32.s32.s8.s8 ", "; }}", [], $($rest)*),
            _ => $operands!("k32.s32.u8.u8 ", "; }}", [], $($rest)*),
        }
    };
}

/// Emits a `wgmma` whose operands are both in shared memory.
///
/// If the product overwrites the accumulators (`d = a * b`), the accumulators are outputs of the `asm!`
/// block, but not inputs. The compiler then need not initialize their registers.
macro_rules! shared {
    ($kind:literal, $end:tt, [$($flags:tt)*], $way:ident, $when:ident, [$($set:tt)*], $columns:literal, $d:ident,
        $i:tt, $a:ident, $b:ident) => {
        wgmma!($way, $when, $kind, $columns, $d, $i, "{a}, {b}, add", $end, a = in(reg64) $a, b = in(reg64) $b,
            $($set)* $($flags)*)
    };
}

/// Emits a `wgmma` with the left operand in registers and the right operand in shared memory.
macro_rules! registers {
    ($kind:literal, $end:tt, [$($flags:tt)*], $way:ident, $when:ident, [$($set:tt)*], $columns:literal, $d:ident,
        $i:tt, $a:ident, $b:ident) => {
        wgmma!(
            $way, $when, $kind, $columns, $d, $i, "{{{p}, {q}, {r}, {s}}}, {b}, add", $end,
            p = in(reg32) $a[0], q = in(reg32) $a[1], r = in(reg32) $a[2], s = in(reg32) $a[3], b = in(reg64) $b,
            $($set)* $($flags)*
        )
    };
}

macro_rules! wgmma {
    ($way:ident, $when:ident, $kind:literal, $columns:literal, $d:ident, [$first:literal $($i:literal)*],
        $operands:literal, $end:tt, $($rest:tt)*) => {
        asm!(
            concat!("{{ .reg .pred add; ", predicate!($when)),
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

/// Emits the PTX that sets the predicate `add`. If `add` is true, `wgmma` adds the product to the
/// accumulators, otherwise it overwrites them.
macro_rules! predicate {
    (always) => {
        "setp.eq.b32 add, 0, 0;"
    };
    (never) => {
        "setp.ne.b32 add, 0, 0;"
    };
    (if_set) => {
        "setp.ne.b32 add, {set}, 0;"
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

widths! {
    []
    4 8 integers: 0 1 2 3;
    8 16 integers: 4 5 6 7;
    12 24 integers: 8 9 10 11;
    16 32 integers: 12 13 14 15;
    20 40: 16 17 18 19;
    24 48 integers: 20 21 22 23;
    28 56: 24 25 26 27;
    32 64 integers: 28 29 30 31;
    36 72: 32 33 34 35;
    40 80 integers: 36 37 38 39;
    44 88: 40 41 42 43;
    48 96 integers: 44 45 46 47;
    52 104: 48 49 50 51;
    56 112 integers: 52 53 54 55;
    60 120: 56 57 58 59;
    64 128 integers: 60 61 62 63;
    68 136: 64 65 66 67;
    72 144 integers: 68 69 70 71;
    76 152: 72 73 74 75;
    80 160 integers: 76 77 78 79;
    84 168: 80 81 82 83;
    88 176 integers: 84 85 86 87;
    92 184: 88 89 90 91;
    96 192 integers: 92 93 94 95;
    100 200: 96 97 98 99;
    104 208 integers: 100 101 102 103;
    108 216: 104 105 106 107;
    112 224 integers: 108 109 110 111;
    116 232: 112 113 114 115;
    120 240 integers: 116 117 118 119;
    124 248: 120 121 122 123;
    128 256 integers: 124 125 126 127;
}

unsafe extern "C" {
    #[link_name = "llvm.nvvm.wgmma.fence.sync.aligned"]
    fn fence();
    #[link_name = "llvm.nvvm.wgmma.commit_group.sync.aligned"]
    fn commit_group();
    #[link_name = "llvm.nvvm.wgmma.wait_group.sync.aligned"]
    fn wait_group(pending: u64);
}

/// Orders earlier writes to the accumulator and operand registers before the `wgmma` instructions that follow
/// (`wgmma.fence`). LLVM treats this intrinsic as convergent, unlike inline assembly, and therefore does not
/// copy it into the branches of an earlier `if`.
#[inline(always)]
pub unsafe fn wgmma_fence() {
    // SAFETY: the caller ensures that the whole warpgroup executes the instruction.
    unsafe { fence() }
}

/// Commits all `wgmma` operations that started since the last commit as one group.
#[inline(always)]
pub unsafe fn wgmma_commit() {
    // SAFETY: the caller ensures that the whole warpgroup executes the instruction.
    unsafe { commit_group() }
}

/// Waits until all committed groups of `wgmma` operations, except at most the last `PENDING` ones, have
/// finished.
#[inline(always)]
pub unsafe fn wgmma_wait<const PENDING: u32>() {
    // SAFETY: the caller ensures that the whole warpgroup executes the instruction.
    unsafe { wait_group(PENDING as u64) }
}
