//! The weight of a norm: absent, of the element type, or in f32; with an offset; applied in one of two
//! rounding orders.
//!
//! `WeightScale` is what a norm's body is generic over, so that no register and no branch is spent on a kind of
//! weight that the launch does not have.
use crate::layout::operand_kind::OperandKind;
use cuda_std::prelude::*;

/// The weight operand.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    /// `cols` elements, or null.
    pub base: *const u8,
    /// Whether it is there, and its element type.
    pub kind: OperandKind,
}

/// How the weight multiplies a normalised value: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// Added to the weight (Gemma's `1 + w`).
    pub offset: f32,
    /// Round the value to the element type before the multiplication (Llama), 0 or 1.
    pub round_before: u32,
}

/// What multiplies a normalised row.
pub(crate) trait WeightScale<T: Elem>: Copy {
    /// What of it is read before the reduction, to have it there when the sum is.
    type Fetched: Copy;
    /// Nothing yet.
    const EMPTY: Self::Fetched;
    /// Reads the thread's columns of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// `lanes`, the thread's columns of `tile`, times the weight.
    fn apply(&self, tile: u32, fetched: Self::Fetched, lanes: T::F32Vec, how: Applied) -> T::F32Vec;
}

/// A weight of the element type: half a register an element in 16 bits, so there is room to read it early.
#[derive(Clone, Copy)]
pub(crate) struct SameTypeWeight<T, const VECTOR: bool>(pub Row<T, VECTOR>);

impl<T: Elem, const VECTOR: bool> WeightScale<T> for SameTypeWeight<T, VECTOR> {
    type Fetched = Pack<T>;
    const EMPTY: Pack<T> = Pack::ZERO;
    #[inline(always)]
    fn fetch(&self, tile: u32) -> Pack<T> {
        self.0.load(tile, Load::ReadOnly)
    }
    #[inline(always)]
    fn apply(&self, _: u32, fetched: Pack<T>, lanes: T::F32Vec, how: Applied) -> T::F32Vec {
        times::<T>(lanes, fetched.lanes(), how)
    }
}

/// A weight that is read when it is needed: absent, in f32 (there are no registers to hold it), or of any
/// kind, looked up at each tile. Where the caller names the kind, nothing of the others is left in the
/// kernel.
#[derive(Clone, Copy)]
pub(crate) struct AnyKind<T, const VECTOR: bool> {
    pub kind: OperandKind,
    pub same: Row<T, VECTOR>,
    pub single: Row<f32, VECTOR>,
}

impl<T: Elem, const VECTOR: bool> WeightScale<T> for AnyKind<T, VECTOR> {
    type Fetched = ();
    const EMPTY: () = ();
    #[inline(always)]
    fn fetch(&self, _: u32) {}
    #[inline(always)]
    fn apply(&self, tile: u32, (): (), lanes: T::F32Vec, how: Applied) -> T::F32Vec {
        match self.kind {
            OperandKind::ABSENT => lanes,
            OperandKind::SAME => times::<T>(lanes, self.same.lanes(tile, Load::ReadOnly), how),
            _ => times::<T>(lanes, self.single.lanes(tile, Load::ReadOnly), how),
        }
    }
}

/// Normalised values times their weight, in the rounding order asked for.
#[inline(always)]
fn times<T: Elem>(lanes: T::F32Vec, weight: T::F32Vec, how: Applied) -> T::F32Vec {
    let lanes = if how.round_before != 0 { T::unpack(T::pack(lanes)) } else { lanes };
    lanes.zip(weight, |x, w| x * (how.offset + w))
}
