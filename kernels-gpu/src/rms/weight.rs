//! The weight of a norm. The weight is absent, has the element type of the rows, or is f32. The result is
//! `xhat * (offset + weight)`. `xhat` is the normalized row, which can be rounded before the multiplication.
//!
//! The code of a norm is generic over `WeightScale`. Each instantiation therefore has only the registers and
//! branches that its type of weight needs.
use crate::layout::operand_kind::OperandKind;
use cuda_std::prelude::*;

/// Kernel argument: the weight operand.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    /// Address of the weight, which has `cols` elements, or null.
    pub base: *const u8,
    /// Presence and element type of the weight.
    pub kind: OperandKind,
}

impl Weight {
    /// No weight.
    pub const ABSENT: Self = Self { base: core::ptr::null(), kind: OperandKind::ABSENT };
}

/// Kernel argument: a weight or bias that may differ between heads.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadVectors {
    /// Address and type of the vector of the first head.
    pub first: Weight,
    /// Number of heads, which have one vector of `cols` elements each. The head of a row is the remainder of
    /// its index divided by this number. 1 means that all rows have the same vector.
    pub heads: u32,
}

impl HeadVectors {
    /// Returns the vector of row `row`. A vector has `cols` elements.
    #[inline(always)]
    pub(crate) fn of<T>(&self, row: u64, cols: u32) -> Weight {
        let head = if self.heads > 1 { row % u64::from(self.heads) } else { 0 };
        let size = if self.first.kind == OperandKind::SAME { size_of::<T>() } else { size_of::<f32>() };
        let offset = head as usize * cols as usize * size;
        Weight { base: self.first.base.wrapping_add(offset), ..self.first }
    }
}

/// How a kernel multiplies a normalized value by the weight. This struct is part of a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// The value that the kernel adds to the weight, for example 1 for the factor `1 + w` of Gemma models.
    pub offset: f32,
    /// 1 if the kernel rounds the normalized value to the element type before the multiplication, as Llama
    /// models do, otherwise 0.
    pub round_before: u32,
}

/// A weight that multiplies a normalized row.
pub(crate) trait WeightScale<T: Elem>: Copy {
    /// The weight values that `fetch` loads for one tile. A kernel may call `fetch` before the reduction, so
    /// that the load and the reduction overlap.
    type Fetched: Copy;
    /// An initial value, before `fetch` has loaded the weight.
    const EMPTY: Self::Fetched;
    /// Loads the weight for the thread's columns of tile number `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// Multiplies `lanes` by the weight, as `how` specifies. `lanes` contains the thread's columns of tile
    /// number `tile`.
    fn apply(&self, tile: u32, fetched: Self::Fetched, lanes: T::F32Vec, how: Applied) -> T::F32Vec;
}

/// A weight with the element type of the rows. The method `fetch` of this type loads the weight, so a kernel
/// can load the weight before the reduction. The weight then stays in registers during the reduction. A
/// 16-bit weight takes only half a register per element.
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

/// A weight that may be absent, of type `T`, or f32. The method `fetch` does nothing, and `apply` loads the
/// weight immediately before use. An f32 weight would need too many registers during the reduction. If `kind`
/// is known at compile time, the compiler keeps only the code for this kind of weight.
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

/// A weight and a bias of type `T` or f32. Each of them is optional.
#[derive(Clone, Copy)]
pub(crate) struct WeightAndBias<T, const VECTOR: bool> {
    pub weight: AnyKind<T, VECTOR>,
    pub bias: AnyKind<T, VECTOR>,
}

impl<T: Elem, const VECTOR: bool> WeightScale<T> for WeightAndBias<T, VECTOR> {
    type Fetched = ();
    const EMPTY: () = ();
    #[inline(always)]
    fn fetch(&self, _: u32) {}
    #[inline(always)]
    fn apply(&self, tile: u32, (): (), lanes: T::F32Vec, how: Applied) -> T::F32Vec {
        let lanes = self.weight.apply(tile, (), lanes, how);
        let bias: T::F32Vec = match self.bias.kind {
            OperandKind::ABSENT => return lanes,
            OperandKind::SAME => self.bias.same.lanes(tile, Load::ReadOnly),
            _ => self.bias.single.lanes(tile, Load::ReadOnly),
        };
        let lanes = if how.round_before != 0 { T::unpack(T::pack(lanes)) } else { lanes };
        lanes.zip(bias, |x, bias| x + bias)
    }
}

/// Multiplies normalized values by `offset + weight`. If `round_before` is 1, the function first rounds the
/// normalized values to `T`.
#[inline(always)]
fn times<T: Elem>(lanes: T::F32Vec, weight: T::F32Vec, how: Applied) -> T::F32Vec {
    let lanes = if how.round_before != 0 { T::unpack(T::pack(lanes)) } else { lanes };
    lanes.zip(weight, |x, w| x * (how.offset + w))
}
