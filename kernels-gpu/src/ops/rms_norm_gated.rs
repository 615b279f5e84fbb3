//! `y = rms_norm(x) * f(gate)`, or `y = rms_norm(x * f(gate))`, over the last dimension. `f` is SiLU or the
//! sigmoid.
//!
//! Models apply these norms after linear attention and state-space layers. The kernels round after the same
//! steps as the modules of the library transformers. `f(gate)` is computed in f32 and not rounded. Some
//! modules round the result of the norm before they multiply it by `f(gate)`. In the second formula, the
//! product `x * f(gate)` is not rounded.
use core::f32::consts::LOG2_E;

use cuda_std::libdevice::exp_add;
use cuda_std::math::{ex2_ftz, rcp_ftz};
use cuda_std::prelude::*;

use crate::elementwise::activations::rounded;
use crate::rms::row::{RegisterTile, RmsParams, RowSource, load_registers, normalize};
use crate::rms::weight::Weight;

/// The gate and how it is applied: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GateArg {
    /// The rows of the gate, with the shape and dtype of `x`.
    pub rows: Rows,
    /// 1 if `f(gate)` multiplies the input of the norm, 0 if `f(gate)` multiplies the result of the norm.
    pub first: u32,
    /// 1 if `f` is the sigmoid, 0 if it is SiLU.
    pub sigmoid: u32,
    /// 1 to round the result of the norm to the element type before `f(gate)` multiplies it, else 0.
    pub round: u32,
}

/// The rows of `x` and of the gate.
#[derive(Clone, Copy)]
struct GatedRows<T, const VECTOR: bool, const GATE_FIRST: bool> {
    x: Row<T, VECTOR>,
    gate: Row<T, VECTOR>,
    sigmoid: bool,
    round: bool,
}

/// A pack (16 bytes) of `x` and a pack of the gate. For 16-bit types, the product of the two packs in f32
/// takes as many registers as both packs. The kernel can therefore keep the product instead of the packs.
#[derive(Clone, Copy)]
struct Packs<T: Elem, const GATE_FIRST: bool> {
    x: Pack<T>,
    gate: Pack<T>,
    sigmoid: bool,
    /// The product `x * f(gate)`. If `GATE_FIRST` is true, this value is valid after the first call of the
    /// method `lanes`. Otherwise, it is not used.
    product: T::F32Vec,
}

impl<T: Elem, const GATE_FIRST: bool> RegisterTile<T> for Packs<T, GATE_FIRST> {
    #[inline(always)]
    fn empty() -> Self {
        Self { x: Pack::ZERO, gate: Pack::ZERO, sigmoid: false, product: T::F32Vec::splat(0.0) }
    }
    #[inline(always)]
    fn lanes(&mut self) -> T::F32Vec {
        if GATE_FIRST {
            self.product = self.x.lanes().zip(activated::<T>(self.gate, self.sigmoid), |x, gate| x * gate);
            self.product
        } else {
            self.x.lanes()
        }
    }
    #[inline(always)]
    fn lanes_again(&self) -> T::F32Vec {
        if GATE_FIRST { self.product } else { self.x.opaque_lanes().lanes() }
    }
}

/// Returns `f(gate)` in f32. For f32 rows, the function performs the same operations as aten's kernels for
/// SiLU and sigmoid. For 16-bit types, it uses approximate instructions instead of the slow IEEE division.
/// Rounding to 16 bits hides their errors.
#[inline(always)]
fn activated<T: Elem>(gate: Pack<T>, sigmoid: bool) -> T::F32Vec {
    gate.lanes().map(|gate| {
        let factor = if sigmoid { 1.0 } else { gate };
        if size_of::<T>() == 2 {
            factor * rcp_ftz(1.0 + ex2_ftz(-LOG2_E * gate))
        } else {
            factor / exp_add(-gate, 1.0)
        }
    })
}

impl<T: Elem, const VECTOR: bool, const GATE_FIRST: bool> RowSource<T> for GatedRows<T, VECTOR, GATE_FIRST> {
    const LOAD_FIRST: usize = 4;
    const FETCH_EARLY: usize = 2;
    type RegisterTile = Packs<T, GATE_FIRST>;
    #[inline(always)]
    fn load(&self, tile: u32, how: Load) -> Self::RegisterTile {
        let (x, gate) = (self.x.load(tile, how), self.gate.load(tile, how));
        Packs { x, gate, sigmoid: self.sigmoid, ..Packs::empty() }
    }
    #[inline(always)]
    fn first(&self) -> *const T {
        self.x.first()
    }
    #[inline(always)]
    fn load_again(&self, tile: u32) -> Self::RegisterTile {
        self.load(tile, Load::ReadOnly)
    }
    #[inline(always)]
    fn finish(&self, in_registers: Self::RegisterTile, lanes: T::F32Vec) -> T::F32Vec {
        if GATE_FIRST {
            return lanes;
        }
        let lanes = if self.round { rounded::<T>(lanes) } else { lanes };
        lanes.zip(activated::<T>(in_registers.gate, self.sigmoid), |normed, gate| normed * gate)
    }
}

/// # Safety
/// The host checked that `x`, the gate and `y` hold `p.rows` rows of `p.cols` elements, and that the weight
/// has `p.cols` elements. If `VECTOR` is true, all these operands allow 16-byte accesses (`Rows::is_vector`).
/// `y` overlaps no other operand. `GATE_FIRST` equals `gate.first != 0`.
#[inline(always)]
unsafe fn in_order<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool, const GATE_FIRST: bool>(
    x: Rows,
    gate: GateArg,
    weight: Weight,
    y: Rows,
    p: RmsParams,
) {
    let team = Team::of_block();
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: the kernel reads `x`, the gate and the weight and writes `y`. The host checked all four. No
    // thread outside of the calling team (the threads that share a row) writes row `at` of `y`.
    unsafe {
        let source = GatedRows::<T, VECTOR, GATE_FIRST> {
            x: Row::of(&x, team, at, p.cols),
            gate: Row::of(&gate.rows, team, at, p.cols),
            sigmoid: gate.sigmoid != 0,
            round: gate.round != 0,
        };
        let in_registers = load_registers::<T, IN_REGISTERS, _>(
            source,
            IN_REGISTERS <= GatedRows::<T, VECTOR, GATE_FIRST>::LOAD_FIRST,
            &p,
        );
        let y = RowMut::<T, VECTOR>::of(&y, team, at, p.cols);
        normalize::<T, IN_REGISTERS, VECTOR, _>(source, in_registers, weight, y, team, p);
    }
}

/// # Safety
/// The requirements of [`in_order`] apply, except for the requirement on `GATE_FIRST`.
#[inline(always)]
unsafe fn rms_norm_gated<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool>(
    x: Rows,
    gate: GateArg,
    weight: Weight,
    y: Rows,
    p: RmsParams,
) {
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. In each branch, `GATE_FIRST` has the value of `gate.first != 0`.
    unsafe {
        if gate.first != 0 {
            in_order::<T, IN_REGISTERS, VECTOR, true>(x, gate, weight, y, p)
        } else {
            in_order::<T, IN_REGISTERS, VECTOR, false>(x, gate, weight, y, p)
        }
    }
}

/// # Safety
/// The requirements of [`rms_norm_gated`] apply. If `p.vector` is 1, all operands allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, gate: GateArg, weight: Weight, y: Rows, p: RmsParams) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` to 1 only if all operands allow 16-byte accesses.
    unsafe {
        if p.vector != 0 {
            rms_norm_gated::<T, 0, true>(x, gate, weight, y, p)
        } else {
            rms_norm_gated::<T, 0, false>(x, gate, weight, y, p)
        }
    }
}

/// # Safety
/// The requirements of [`rms_norm_gated`] apply, and all operands allow 16-byte accesses (`Rows::is_vector`).
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    gate: GateArg,
    weight: Weight,
    y: Rows,
    p: RmsParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. All operands allow 16-byte accesses.
    unsafe { rms_norm_gated::<T, IN_REGISTERS, true>(x, gate, weight, y, p) }
}

entry! {
    @shared(|block| Team::shared_bytes(block))
    rms_norm_gated_any<T: [f32, f16, bf16]>(x: Rows, gate: GateArg, weight: Weight, y: Rows, p: RmsParams)
        => any_layout::<T>(x, gate, weight, y, p);
    @shared(|block| Team::shared_bytes(block))
    rms_norm_gated_block2<T: [f32, f16, bf16]>(x: Rows, gate: GateArg, weight: Weight, y: Rows, p: RmsParams)
        => in_registers::<T, 2, 256, 4>(x, gate, weight, y, p);
    @shared(|block| Team::shared_bytes(block))
    rms_norm_gated_block4<T: [f32, f16, bf16]>(x: Rows, gate: GateArg, weight: Weight, y: Rows, p: RmsParams)
        => in_registers::<T, 4, 768, 1>(x, gate, weight, y, p)
}
