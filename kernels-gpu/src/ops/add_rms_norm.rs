//! One kernel computes two results: `sum = x + residual`, rounded to the element type, and
//! `y = rms_norm(sum)`.
//!
//! The norm uses the rounded sum. Both results are therefore the same as with two separate operators, an
//! addition and then `rms_norm`.
//!
//! The kernels `add_rms_norm_inplace` write over their inputs: `y` or `sum` may be the tensor `x` or
//! `residual`. Each thread writes only elements that it has read before.
use cuda_std::prelude::*;

use crate::rms::row::{RmsParams, RowSource, load_registers, normalize};
use crate::rms::weight::Weight;

/// The rows `x + residual`. When the kernel loads a tile (16 bytes per thread) for the first time, it also
/// writes the tile of the sum to `sum`. `IN_PLACE` says whether an output may be the tensor `x` or
/// `residual`.
#[derive(Clone, Copy)]
struct Add<T, const VECTOR: bool, const IN_PLACE: bool> {
    x: Row<T, VECTOR>,
    residual: Row<T, VECTOR>,
    sum: RowMut<T, VECTOR>,
    /// The row `sum`, to read it again after it was written.
    written: Row<T, VECTOR>,
}

impl<T: Elem, const VECTOR: bool, const IN_PLACE: bool> Add<T, VECTOR, IN_PLACE> {
    #[inline(always)]
    fn add(&self, tile: u32, how: Load) -> Pack<T> {
        // `ld.global.nc` must not read memory that the kernel writes.
        let how = if IN_PLACE { Load::Default } else { how };
        let (x, residual) = (self.x.load(tile, how), self.residual.load(tile, how));
        Pack::from_lanes(x.lanes().zip(residual.lanes(), |x, residual| x + residual))
    }
}

impl<T: Elem, const VECTOR: bool, const IN_PLACE: bool> RowSource<T> for Add<T, VECTOR, IN_PLACE> {
    const LOAD_FIRST: usize = 4;
    const FETCH_EARLY: usize = 2;
    type RegisterTile = Pack<T>;
    const USES_L2_POLICY: bool = !IN_PLACE;
    #[inline(always)]
    fn load(&self, tile: u32, how: Load) -> Pack<T> {
        let sum = self.add(tile, how);
        self.sum.store(tile, sum, Store::Default);
        sum
    }
    #[inline(always)]
    fn first(&self) -> *const T {
        self.x.first()
    }
    /// Computes the sum again from `x` and `residual`. Loading these two tensors from L2 is faster than
    /// loading `sum`, because a load of `sum` would wait for the store of `sum`. If `sum` may have replaced
    /// `x` or `residual`, the sum is loaded.
    #[inline(always)]
    fn load_again(&self, tile: u32) -> Pack<T> {
        if IN_PLACE { self.written.load(tile, Load::Default) } else { self.add(tile, Load::ReadOnly) }
    }
    #[inline(always)]
    unsafe fn demote(&self, tile: u32) {
        // SAFETY: `demote` requires rows that start and end at the boundary of an L2 line. The caller
        // guarantees this.
        unsafe {
            self.x.demote(tile);
            self.residual.demote(tile);
        }
    }
}

/// # Safety The host checked that `x`, `residual`, `y` and `sum` hold `p.rows` rows of `p.cols` elements, and
/// that the weight has `p.cols` elements. If `VECTOR` is true, all these operands allow 16-byte accesses
/// (`Rows::is_vector`). `y` and `sum` overlap no other operand. If `IN_PLACE` is true, each of them may
/// instead be the whole tensor `x` or `residual`, with the same strides.
#[inline(always)]
unsafe fn add_rms_norm<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool, const IN_PLACE: bool>(
    x: Rows,
    residual: Rows,
    weight: Weight,
    y: Rows,
    sum: Rows,
    p: RmsParams,
) {
    let team = Team::of_block();
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: the kernel accesses only its operands. The host checked the rows of all operands, and the
    // weight. No thread outside of the calling team (the threads that share a row) writes row `at` of `y` and
    // `sum`.
    unsafe {
        let source = Add::<T, VECTOR, IN_PLACE> {
            x: Row::<T, VECTOR>::of(&x, team, at, p.cols),
            residual: Row::<T, VECTOR>::of(&residual, team, at, p.cols),
            sum: RowMut::<T, VECTOR>::of(&sum, team, at, p.cols),
            written: Row::<T, VECTOR>::of(&sum, team, at, p.cols),
        };
        let first = IN_REGISTERS <= Add::<T, VECTOR, IN_PLACE>::LOAD_FIRST;
        let in_registers = load_registers::<T, IN_REGISTERS, _>(source, first, &p);
        let y = RowMut::<T, VECTOR>::of(&y, team, at, p.cols);
        normalize::<T, IN_REGISTERS, VECTOR, _>(source, in_registers, weight, y, team, p);
    }
}

/// # Safety
/// The requirements of [`add_rms_norm`] apply. If `p.vector` is 1, all operands allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn any_layout<T: Elem, const IN_PLACE: bool>(
    x: Rows,
    residual: Rows,
    weight: Weight,
    y: Rows,
    sum: Rows,
    p: RmsParams,
) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` to 1 only if all operands allow 16-byte accesses.
    unsafe {
        if p.vector != 0 {
            add_rms_norm::<T, 0, true, IN_PLACE>(x, residual, weight, y, sum, p)
        } else {
            add_rms_norm::<T, 0, false, IN_PLACE>(x, residual, weight, y, sum, p)
        }
    }
}

/// Calls [`add_rms_norm`] with its launch bounds.
///
/// # Safety
/// The requirements of [`add_rms_norm`] apply, and all operands allow 16-byte accesses (`Rows::is_vector`).
#[inline(always)]
unsafe fn in_registers<
    T: Elem,
    const IN_REGISTERS: usize,
    const MAX_THREADS: u32,
    const MIN_BLOCKS: u32,
    const IN_PLACE: bool,
>(
    x: Rows,
    residual: Rows,
    weight: Weight,
    y: Rows,
    sum: Rows,
    p: RmsParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. All operands allow 16-byte accesses.
    unsafe { add_rms_norm::<T, IN_REGISTERS, true, IN_PLACE>(x, residual, weight, y, sum, p) }
}

entry! {
    @shared(|block| Team::shared_bytes(block))
    add_rms_norm_any<T: [f32, f16, bf16]>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: RmsParams)
        => any_layout::<T, false>(x, residual, weight, y, sum, p);
    @overlap(Before) @shared(|block| Team::shared_bytes(block))
    add_rms_norm_block2<T: [f32, f16, bf16]>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: RmsParams)
        => in_registers::<T, 2, 256, 4, false>(x, residual, weight, y, sum, p);
    @shared(|block| Team::shared_bytes(block))
    add_rms_norm_block4<T: [f32, f16, bf16]>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: RmsParams)
        => in_registers::<T, 4, 1024, 1, false>(x, residual, weight, y, sum, p);
    @shared(|block| Team::shared_bytes(block))
    add_rms_norm_inplace_any<T: [f32, f16, bf16]>
        (x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: RmsParams)
        => any_layout::<T, true>(x, residual, weight, y, sum, p);
    @shared(|block| Team::shared_bytes(block))
    add_rms_norm_inplace_block2<T: [f32, f16, bf16]>
        (x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: RmsParams)
        => in_registers::<T, 2, 256, 4, true>(x, residual, weight, y, sum, p);
    @shared(|block| Team::shared_bytes(block))
    add_rms_norm_inplace_block4<T: [f32, f16, bf16]>
        (x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: RmsParams)
        => in_registers::<T, 4, 1024, 1, true>(x, residual, weight, y, sum, p)
}
