//! Computes RMSNorm of one row. The code loads the row, computes the mean of squares, and writes the
//! normalized row, multiplied by the weight.
//!
//! A team (the threads that share a row) reads the row in tiles. A tile has one pack (16-byte vector) per
//! thread. If the const parameter `IN_REGISTERS` is not 0, the row has at most `IN_REGISTERS` tiles. These
//! tiles stay in registers from the reduction until the result is written. If `IN_REGISTERS` is 0, the kernel
//! loads the row twice: once for the reduction, and once for the result.
use cuda_std::l2::L2Policy;
use cuda_std::prelude::*;

use super::weight::{AnyKind, Applied, SameTypeWeight, Weight, WeightScale};
use crate::layout::operand_kind::OperandKind;

/// Kernel argument: the parameters of the RMSNorm kernels, without the tensors.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RmsParams {
    /// Number of rows of the operands.
    pub rows: u64,
    /// Number of rows per run. Within a run, consecutive rows are `Rows::inner_stride` elements apart.
    /// Consecutive runs start `Rows::outer_stride` elements apart. 0 means that all rows are in one run.
    pub inner: u32,
    /// Columns per row.
    pub cols: u32,
    /// The value `1 / cols`, which the host computes. A division in the kernel would add latency after the
    /// reduction.
    pub inv_cols: f32,
    /// The value `eps`, which the kernel adds to the mean of squares.
    pub eps: f32,
    /// How the kernel applies the weight: the offset that it adds to the weight, and whether it rounds before
    /// the multiplication.
    pub weight: Applied,
    /// 1 if all operands, including the weight, allow 16-byte accesses (`Rows::is_vector`), otherwise 0.
    pub vector: u32,
    /// L2 cache policy for loads of the input, such as `evict_last`. Only kernels with at least four packs
    /// (16 bytes each) of a row in the registers of each thread use this policy.
    pub l2_policy: L2Policy,
}

/// A source of the row to normalize: a row of one tensor, or a combination of rows of several tensors, such
/// as `x + residual`.
pub(crate) trait RowSource<T: Elem>: Copy {
    /// If a row has at most this number of tiles (16-byte packs per thread), a kernel loads the row before
    /// any other work. Other work is, for example, to compute the addresses of other operands. Kernels for
    /// short rows are bound by latency, so they gain from early loads. With longer rows, kernels are
    /// measurably faster if they compute the other addresses first.
    const LOAD_FIRST: usize;
    /// If a row has at most this number of tiles (16-byte packs per thread), a kernel loads the weight before
    /// the reduction. With longer rows, registers have no space for the weight during the reduction.
    const FETCH_EARLY: usize;
    /// The elements of one tile that a thread keeps in registers.
    type RegisterTile: RegisterTile<T>;
    /// Returns the address that the thread reads first.
    fn first(&self) -> *const T;
    /// Loads the thread's elements of tile number `tile`, for the reduction.
    fn load(&self, tile: u32, how: Load) -> Self::RegisterTile;
    /// Loads the thread's elements of tile number `tile` a second time, for the computation of the result.
    fn load_again(&self, tile: u32) -> Self::RegisterTile;
    /// True if loads from this source may use the L2 cache policy of the launch. After the kernel has written
    /// the result, `demote` resets the eviction policy of the loaded L2 lines to the default.
    const USES_L2_POLICY: bool = false;
    /// Resets the L2 eviction policy to the default, for the cache lines that start in tile number `tile` (16
    /// bytes per thread). The default implementation, for sources that do not use an L2 policy, does nothing.
    ///
    /// # Safety
    /// The requirements of [`Row::demote`] apply: each row starts and ends at the boundary of an L2 line.
    #[inline(always)]
    unsafe fn demote(&self, _tile: u32) {}
    /// Returns the values that the kernel stores for a tile (16 bytes per thread). `lanes` contains the
    /// normalized values of the tile, multiplied by the weight.
    #[inline(always)]
    fn finish(&self, _tile: Self::RegisterTile, lanes: T::F32Vec) -> T::F32Vec {
        lanes
    }
}

/// The elements of one tile that a thread keeps in registers, from the reduction until the result is written.
/// A tile has 16 bytes per thread.
pub(crate) trait RegisterTile<T: Elem>: Copy {
    /// Returns an initial value, before the tile is loaded.
    fn empty() -> Self;
    /// Returns the values to normalize, in f32, for the reduction. If their computation is more than a
    /// conversion, for example a multiplication by a gate, this method also saves the values for
    /// `lanes_again`.
    fn lanes(&mut self) -> T::F32Vec;
    /// Returns the values that `lanes` returned, for the computation of the result.
    fn lanes_again(&self) -> T::F32Vec;
}

/// A pack (16-byte vector) stays in registers without conversion to f32. Packed 16-bit elements take half as
/// many registers as f32 values.
impl<T: Elem> RegisterTile<T> for Pack<T> {
    #[inline(always)]
    fn empty() -> Self {
        Self::ZERO
    }
    #[inline(always)]
    fn lanes(&mut self) -> T::F32Vec {
        Pack::lanes(*self)
    }
    #[inline(always)]
    fn lanes_again(&self) -> T::F32Vec {
        self.opaque_lanes().lanes()
    }
}

impl<T: Elem, const VECTOR: bool> RowSource<T> for Row<T, VECTOR> {
    const LOAD_FIRST: usize = 2;
    const FETCH_EARLY: usize = 4;
    type RegisterTile = Pack<T>;
    const USES_L2_POLICY: bool = true;
    #[inline(always)]
    fn first(&self) -> *const T {
        Row::first(self)
    }
    #[inline(always)]
    fn load(&self, tile: u32, how: Load) -> Pack<T> {
        // This load allocates lines in L1, although the kernel reads each row only once. On an H200, loads
        // with `L1::no_allocate` are slower.
        Row::load(self, tile, how)
    }
    #[inline(always)]
    fn load_again(&self, tile: u32) -> Pack<T> {
        Row::load(self, tile, Load::ReadOnly)
    }
    #[inline(always)]
    unsafe fn demote(&self, tile: u32) {
        // SAFETY: the caller guarantees that each row starts and ends at the boundary of an L2 line, as
        // `Row::demote` requires.
        unsafe { Row::demote(self, tile) }
    }
}

/// Returns whether a kernel uses the L2 cache policy of the launch. The kernel keeps `IN_REGISTERS` tiles (16
/// bytes per thread each) of a row in registers. On an H200, the policy does not speed up kernels with fewer
/// than four tiles.
const fn uses_l2_policy<T: Elem, const IN_REGISTERS: usize, X: RowSource<T>>() -> bool {
    X::USES_L2_POLICY && IN_REGISTERS >= 4
}

/// If `wanted` is true, waits until earlier launches have finished, and then loads the tiles of `source` into
/// registers. Otherwise, returns empty tiles. With programmatic dependent launch, earlier launches may still
/// run when the kernel starts, so it must not access global memory before this wait.
#[inline(always)]
pub(crate) fn load_registers<T: Elem, const IN_REGISTERS: usize, X: RowSource<T>>(
    source: X,
    wanted: bool,
    p: &RmsParams,
) -> [X::RegisterTile; IN_REGISTERS] {
    let mut in_registers = [X::RegisterTile::empty(); IN_REGISTERS];
    if wanted {
        thread::wait_for_earlier_launches(source.first());
        let how = if uses_l2_policy::<T, IN_REGISTERS, X>() { p.l2_policy.load() } else { Load::ReadOnly };
        for tile in 0..IN_REGISTERS {
            in_registers[tile] = source.load(tile as u32, how);
        }
    }
    in_registers
}

/// Normalizes the row of `source`, multiplies it by the weight, and writes the result to `y`. The weight may
/// be absent, of type `T`, or f32. If `IN_REGISTERS` is at most `LOAD_FIRST`, the caller has already loaded
/// the tiles `in_registers`.
///
/// # Safety
/// `weight` has `p.cols` elements of the type in `weight.kind`. If `VECTOR` is true, the weight is aligned to
/// 16 bytes.
#[inline(always)]
pub(crate) unsafe fn normalize<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool, X: RowSource<T>>(
    source: X,
    in_registers: [X::RegisterTile; IN_REGISTERS],
    weight: Weight,
    y: RowMut<T, VECTOR>,
    team: Team,
    p: RmsParams,
) {
    let rows = Rows::single(weight.base);
    // SAFETY: `same` reads the weight as type `T`, and `single` reads it as f32. The caller guarantees a
    // weight of `p.cols` elements of the type in `weight.kind`. The kernel uses only `same` or only `single`,
    // depending on this type.
    let (same, single) = unsafe {
        (
            Row::<T, VECTOR>::of(&rows, team, RowIndex::FIRST, p.cols),
            Row::<f32, VECTOR>::of(&rows, team, RowIndex::FIRST, p.cols),
        )
    };
    let read_late = |kind| AnyKind { kind, same, single };
    match weight.kind {
        // If rows do not stay in registers, the kernel tests the type of the weight at run time. This test is
        // not what limits the speed of such a kernel.
        kind if IN_REGISTERS == 0 => {
            scale::<T, IN_REGISTERS, VECTOR, X, _>(source, in_registers, read_late(kind), y, team, p)
        }
        OperandKind::ABSENT => scale::<T, IN_REGISTERS, VECTOR, X, _>(
            source,
            in_registers,
            read_late(OperandKind::ABSENT),
            y,
            team,
            p,
        ),
        OperandKind::SAME => {
            scale::<T, IN_REGISTERS, VECTOR, X, _>(source, in_registers, SameTypeWeight(same), y, team, p)
        }
        // For f32 rows, `OperandKind::SAME` and `OperandKind::F32` mean the same type. The host then passes
        // `SAME`, so this arm is never executed.
        _ if size_of::<T>() == 4 => {}
        _ => scale::<T, IN_REGISTERS, VECTOR, X, _>(
            source,
            in_registers,
            read_late(OperandKind::F32),
            y,
            team,
            p,
        ),
    }
}

/// Computes the mean of squares of the row of `source`. Writes the normalized row, multiplied by `weight`, to
/// `y`.
#[inline(always)]
pub(crate) fn scale<
    T: Elem,
    const IN_REGISTERS: usize,
    const VECTOR: bool,
    X: RowSource<T>,
    S: WeightScale<T>,
>(
    source: X,
    in_registers: [X::RegisterTile; IN_REGISTERS],
    weight: S,
    y: RowMut<T, VECTOR>,
    team: Team,
    p: RmsParams,
) {
    let mut in_registers =
        if IN_REGISTERS <= X::LOAD_FIRST { in_registers } else { load_registers(source, true, &p) };
    // If registers suffice, load the weight now, so that the load overlaps the reduction.
    let fetch_early = IN_REGISTERS <= X::FETCH_EARLY;
    let mut fetched = [S::EMPTY; IN_REGISTERS];
    if fetch_early {
        for tile in 0..IN_REGISTERS {
            fetched[tile] = weight.fetch(tile as u32);
        }
    }

    let mut squares = T::F32Vec::splat(0.0);
    for tile in 0..IN_REGISTERS {
        squares = squares.zip(in_registers[tile].lanes(), |sum, x| fma(x, x, sum));
    }
    let streamed = if IN_REGISTERS == 0 { y.tiles() } else { 0 };
    for tile in 0..streamed {
        squares = squares.zip(source.load(tile, Load::ReadOnly).lanes(), |sum, x| fma(x, x, sum));
    }
    let mean = team.sum(squares.sum(), &mut SharedMemory::of_launch()) * p.inv_cols;
    let inv_rms = rsqrt(mean + p.eps);

    let put = |tile: u32, in_registers: X::RegisterTile, lanes: T::F32Vec, fetched: S::Fetched| {
        let normalized = lanes.map(|x| x * inv_rms);
        let scaled = weight.apply(tile, fetched, normalized, p.weight);
        y.store(tile, Pack::from_lanes(source.finish(in_registers, scaled)), Store::Default);
    };
    for tile in 0..IN_REGISTERS {
        let weight = if fetch_early { fetched[tile] } else { weight.fetch(tile as u32) };
        put(tile as u32, in_registers[tile], in_registers[tile].lanes_again(), weight);
    }
    if uses_l2_policy::<T, IN_REGISTERS, X>() && !team.cluster && p.l2_policy.demotes() {
        for tile in 0..IN_REGISTERS {
            // SAFETY: `demote` requires that each row starts and ends at the boundary of an L2 line. The host
            // passes a policy that demotes L2 lines only if the rows do.
            unsafe { source.demote(tile as u32) };
        }
    }
    for tile in 0..streamed {
        let mut again = source.load_again(tile);
        let lanes = again.lanes();
        put(tile, again, lanes, weight.fetch(tile));
    }
}
