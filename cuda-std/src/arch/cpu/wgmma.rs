//! `wgmma` on the CPU executor. The functions have the same names as the PTX versions in `arch/ptx/wgmma.rs`,
//! which document them.
#![allow(clippy::missing_safety_doc, reason = "see the PTX version")]
use crate::base::wgmma::Kind;
use crate::cpu::here;
use crate::cpu::multiplication::{Elements, Left, Multiplication};
use crate::cpu::tensor_core::OperandType;
use crate::cpu::wgmma::{self, ThreadRegisters};

impl Kind {
    fn elements(self) -> Elements {
        match self {
            Self::Bf16 => Elements::Floats(OperandType::Bf16, OperandType::Bf16),
            Self::F16 => Elements::Floats(OperandType::F16, OperandType::F16),
            Self::Tf32 => Elements::Floats(OperandType::Tf32, OperandType::Tf32),
            Self::E4m3 => Elements::Floats(OperandType::E4m3, OperandType::E4m3),
            Self::E5m2 => Elements::Floats(OperandType::E5m2, OperandType::E5m2),
            Self::E4m3E5m2 => Elements::Floats(OperandType::E4m3, OperandType::E5m2),
            Self::E5m2E4m3 => Elements::Floats(OperandType::E5m2, OperandType::E4m3),
            Self::S8 => Elements::Int8(true, true),
            Self::U8 => Elements::Int8(false, false),
        }
    }
}

/// The accumulator registers of one thread of a warpgroup.
pub trait Accumulator: Copy {
    const LEN: usize;
    const ZERO: Self;

    #[track_caller]
    unsafe fn mma_shared<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64);
    #[track_caller]
    unsafe fn mma_registers<const B: u32>(&mut self, kind: Kind, add: bool, a: [u32; 4], b: u64);
    #[track_caller]
    fn settle(&mut self);
    #[track_caller]
    fn check_settled(&self);

    #[track_caller]
    unsafe fn mma_shared_if<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64) {
        // SAFETY: the requirements are equal.
        unsafe { self.mma_shared::<A, B>(kind, add, a, b) };
    }
    #[track_caller]
    unsafe fn mma_registers_if<const B: u32>(&mut self, kind: Kind, add: bool, a: [u32; 4], b: u64) {
        // SAFETY: the requirements are equal.
        unsafe { self.mma_registers::<B>(kind, add, a, b) };
    }
}

macro_rules! accumulators {
    ($($t:ty: $zero:literal, [$($count:literal)*];)*) => { $($(
        impl Accumulator for [$t; $count] {
            const LEN: usize = $count;
            const ZERO: Self = [$zero; $count];

            #[track_caller]
            unsafe fn mma_shared<const A: u32, const B: u32>(&mut self, kind: Kind, add: bool, a: u64, b: u64) {
                here();
                let (elements, transposed) = (kind.elements(), [A == 1, B == 1]);
                let m = Multiplication { elements, a: Left::Shared(a), b, add, transposed };
                // SAFETY: the registers belong to the running thread.
                unsafe { wgmma::start(ThreadRegisters::of(self.as_mut_ptr().cast(), $count), m) };
            }

            #[track_caller]
            unsafe fn mma_registers<const B: u32>(&mut self, kind: Kind, add: bool, a: [u32; 4], b: u64) {
                here();
                let (elements, transposed) = (kind.elements(), [false, B == 1]);
                let m = Multiplication { elements, a: Left::Registers(a), b, add, transposed };
                // SAFETY: the registers belong to the running thread.
                unsafe { wgmma::start(ThreadRegisters::of(self.as_mut_ptr().cast(), $count), m) };
            }

            #[track_caller]
            fn settle(&mut self) {
                here();
                // SAFETY: the registers belong to the running thread.
                unsafe { wgmma::settle(ThreadRegisters::of(self.as_mut_ptr().cast(), $count)) };
            }

            #[track_caller]
            fn check_settled(&self) {
                here();
                // SAFETY: the slice covers the elements of `self`. These elements are f32 or i32, which have
                // the size and alignment of u32. Every bit pattern is a valid u32.
                wgmma::check_settled(unsafe { core::slice::from_raw_parts(self.as_ptr().cast(), $count) });
            }
        }
    )*)* };
}
accumulators! {
    f32: 0.0, [4 8 12 16 20 24 28 32 36 40 44 48 52 56 60 64 68 72 76 80 84 88 92 96 100 104 108 112 116 120 124
        128];
    i32: 0, [4 8 12 16 24 32 40 48 56 64 72 80 88 96 104 112 120 128];
}

#[track_caller]
pub unsafe fn wgmma_fence() {
    here();
    wgmma::fence();
}

#[track_caller]
pub unsafe fn wgmma_commit() {
    here();
    wgmma::commit();
}

#[track_caller]
pub unsafe fn wgmma_wait<const PENDING: u32>() {
    here();
    wgmma::wait(PENDING);
}
