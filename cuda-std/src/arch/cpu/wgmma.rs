//! `wgmma` on the CPU executor. The functions have the same names as the PTX versions in `arch/ptx/wgmma.rs`,
//! which document them.
#![allow(clippy::missing_safety_doc, reason = "see the PTX version")]
use crate::base::wgmma::Kind;
use crate::cpu::hopper::{self, Elements, Left, Multiplication, Registers};
use crate::cpu::tensor_core::Operand;

impl Kind {
    fn elements(self) -> Elements {
        match self {
            Self::Bf16 => Elements::Floats(Operand::Bf16, Operand::Bf16),
            Self::F16 => Elements::Floats(Operand::F16, Operand::F16),
            Self::Tf32 => Elements::Floats(Operand::Tf32, Operand::Tf32),
            Self::E4m3 => Elements::Floats(Operand::E4m3, Operand::E4m3),
            Self::E5m2 => Elements::Floats(Operand::E5m2, Operand::E5m2),
            Self::E4m3E5m2 => Elements::Floats(Operand::E4m3, Operand::E5m2),
            Self::E5m2E4m3 => Elements::Floats(Operand::E5m2, Operand::E4m3),
            Self::S8 => Elements::Int8(true, true),
            Self::U8 => Elements::Int8(false, false),
        }
    }
}

/// The accumulator registers of one thread of a warpgroup.
pub trait Accumulator: Copy {
    const LEN: usize;
    const ZERO: Self;

    unsafe fn mma_shared<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64);
    unsafe fn mma_registers<const B: u32>(&mut self, kind: Kind, a: [u32; 4], b: u64);
    fn settle(&mut self);
    fn check_settled(&self);
}

macro_rules! accumulators {
    ($($t:ty: $zero:literal, [$($count:literal)*];)*) => { $($(
        impl Accumulator for [$t; $count] {
            const LEN: usize = $count;
            const ZERO: Self = [$zero; $count];

            unsafe fn mma_shared<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64) {
                let (elements, transposed) = (kind.elements(), [A == 1, B == 1]);
                let m = Multiplication { elements, a: Left::Shared(a), b, add, transposed };
                // SAFETY: the registers belong to the running thread.
                unsafe { hopper::wgmma_start(Registers::of(self.as_mut_ptr().cast(), $count), m) };
            }

            unsafe fn mma_registers<const B: u32>(&mut self, kind: Kind, a: [u32; 4], b: u64) {
                let (elements, transposed) = (kind.elements(), [false, B == 1]);
                let m = Multiplication { elements, a: Left::Registers(a), b, add: true, transposed };
                // SAFETY: the registers belong to the running thread.
                unsafe { hopper::wgmma_start(Registers::of(self.as_mut_ptr().cast(), $count), m) };
            }

            fn settle(&mut self) {
                // SAFETY: the registers belong to the running thread.
                unsafe { hopper::settle(Registers::of(self.as_mut_ptr().cast(), $count)) };
            }

            fn check_settled(&self) {
                hopper::check_settled(self.as_ptr().cast(), $count);
            }
        }
    )*)* };
}
accumulators! {
    f32: 0.0, [32 40 48 64 72 128];
    i32: 0, [32 40 48 64 72 128];
}

pub unsafe fn wgmma_fence() {
    hopper::wgmma_fence();
}

pub unsafe fn wgmma_commit() {
    hopper::wgmma_commit();
}

pub unsafe fn wgmma_wait<const PENDING: u32>() {
    hopper::wgmma_wait(PENDING);
}
