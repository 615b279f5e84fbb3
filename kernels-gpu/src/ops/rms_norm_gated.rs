//! `y = rms_norm(x) * f(gate)`, or `y = rms_norm(x * f(gate))`, over the last dimension: `f` is SiLU or the sigmoid.
//!
//! The norms behind linear attention and state-space layers, with the roundings of transformers' modules: `f(gate)` is
//! computed in f32 and not rounded; what the norm makes is rounded before `f(gate)` multiplies it
//! where those modules do, the product with `f(gate)` before a norm never is.
use core::f32::consts::LOG2_E;

use cuda_std::libdevice::exp_add;
use cuda_std::math::{ex2_ftz, rcp_ftz};
use cuda_std::prelude::*;

use crate::elementwise::activations::rounded;
use crate::rms::row::{RegisterTile, RmsParams, RowSource, load_registers, normalize};
use crate::rms::weight::Weight;

/// The gate and what is done with it: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GateArg {
    /// As `x`.
    pub rows: Rows,
    /// Does it multiply what the norm reads, and not what it makes? 0 or 1.
    pub first: u32,
    /// Is `f` the sigmoid, and not SiLU? 0 or 1.
    pub sigmoid: u32,
    /// Round to the element type what the norm has made, before the gate multiplies it? 0 or 1.
    pub round: u32,
}

/// The rows of `x` with those of the gate.
#[derive(Clone, Copy)]
struct GatedRows<T, const VECTOR: bool, const GATE_FIRST: bool> {
    x: Row<T, VECTOR>,
    gate: Row<T, VECTOR>,
    sigmoid: bool,
    round: bool,
}

/// A pack of each, which take the registers of the lanes of their product.
#[derive(Clone, Copy)]
struct Packs<T: Elem, const GATE_FIRST: bool> {
    x: Pack<T>,
    gate: Pack<T>,
    sigmoid: bool,
    /// `x * f(gate)`, once it has been made.
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

/// `f(gate)`: for f32 as aten's kernels of SiLU and of the sigmoid compute it. 16 bits hide the errors of approximate
/// instructions; with aten's division the norm of 8192 x 4096 had 60 % of copy bandwidth on an H200, with
/// these 95 %.
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
/// The host checked that `x`, the gate and `y` hold `p.rows` rows of `p.cols` elements and the weight `p.cols`, all
/// `Rows::is_vector` if `VECTOR`, that `y` overlaps nothing else, and that `GATE_FIRST` is what the gate says.
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
    // SAFETY: as the caller promises; a team's row is its own.
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
/// As [`in_order`], in the order that the gate says.
#[inline(always)]
unsafe fn rms_norm_gated<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool>(
    x: Rows,
    gate: GateArg,
    weight: Weight,
    y: Rows,
    p: RmsParams,
) {
    // SAFETY: as the caller promises.
    unsafe {
        if gate.first != 0 {
            in_order::<T, IN_REGISTERS, VECTOR, true>(x, gate, weight, y, p)
        } else {
            in_order::<T, IN_REGISTERS, VECTOR, false>(x, gate, weight, y, p)
        }
    }
}

/// # Safety
/// As [`rms_norm_gated`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, gate: GateArg, weight: Weight, y: Rows, p: RmsParams) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the host sets `p.vector` only where every operand is.
    unsafe {
        if p.vector != 0 {
            rms_norm_gated::<T, 0, true>(x, gate, weight, y, p)
        } else {
            rms_norm_gated::<T, 0, false>(x, gate, weight, y, p)
        }
    }
}

/// # Safety
/// As [`rms_norm_gated`].
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    gate: GateArg,
    weight: Weight,
    y: Rows,
    p: RmsParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { rms_norm_gated::<T, IN_REGISTERS, true>(x, gate, weight, y, p) }
}

entry! {
    rms_norm_gated_any<T: [f32, f16, bf16]>(x: Rows, gate: GateArg, weight: Weight, y: Rows, p: RmsParams)
        => any_layout::<T>(x, gate, weight, y, p);
    rms_norm_gated_block2<T: [f32, f16, bf16]>(x: Rows, gate: GateArg, weight: Weight, y: Rows, p: RmsParams)
        => in_registers::<T, 2, 256, 4>(x, gate, weight, y, p);
    rms_norm_gated_block4<T: [f32, f16, bf16]>(x: Rows, gate: GateArg, weight: Weight, y: Rows, p: RmsParams)
        => in_registers::<T, 4, 768, 1>(x, gate, weight, y, p)
}
