//! RMSNorm of one row: the source of the row, the tiles in registers, the reduction, and the scaled result.
//!
//! A team (the threads that share a row) reads the row in tiles of one pack (16 bytes) per thread.
//! `IN_REGISTERS` tiles stay in registers between the reduction and the result. If `IN_REGISTERS` is 0, the
//! kernel reads the row again for the result.
use cuda_std::l2::L2Policy;
use cuda_std::prelude::*;

use super::weight::{AnyKind, Applied, SameTypeWeight, Weight, WeightScale};
use crate::layout::operand_kind::OperandKind;

/// Parameters of the RMSNorm kernels apart from their operands: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RmsParams {
    /// Rows of the operands.
    pub rows: u64,
    /// Rows per group of the outer stride, or 0 if only the inner stride exists.
    pub inner: u32,
    /// Columns per row.
    pub cols: u32,
    /// `1 / cols`. The host computes it, because a division at the end of the reduction would add its
    /// latency.
    pub inv_cols: f32,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Offset of the weight, and rounding order.
    pub weight: Applied,
    /// 1 if all operands, including the weight, are `Rows::is_vector`, else 0.
    pub vector: u32,
    /// L2 policy of the loads, for operators that use one. It applies if a thread keeps four packs or more in
    /// registers.
    pub l2_policy: L2Policy,
}

/// A source of the rows to normalize: one tensor, or a combination of several.
pub(crate) trait RowSource<T: Elem>: Copy {
    /// Maximum number of tiles for which the row's loads come before all other work, such as the addresses of
    /// the other operands. Short rows are bound by latency. Longer rows measure faster if the other work
    /// comes first.
    const LOAD_FIRST: usize;
    /// Maximum number of tiles for which the weight is loaded before the reduction. Longer rows leave no
    /// registers for it.
    const FETCH_EARLY: usize;
    /// A thread's part of a tile, in registers.
    type RegisterTile: RegisterTile<T>;
    /// Returns the address that the thread reads first.
    fn first(&self) -> *const T;
    /// Loads the thread's part of `tile` for the reduction.
    fn load(&self, tile: u32, how: Load) -> Self::RegisterTile;
    /// Loads the thread's part of `tile` again, for the result.
    fn load_again(&self, tile: u32) -> Self::RegisterTile;
    /// Whether long rows of this source use the launch's L2 policy. If so, `demote` resets the priority of
    /// the L2 lines that start in `tile`.
    const USES_L2_POLICY: bool = false;
    /// Resets the L2 priority of the lines that start in `tile`, if the source uses an L2 policy.
    ///
    /// # Safety
    /// The requirements of [`Row::demote`] apply: rows start and end on an L2 line.
    #[inline(always)]
    unsafe fn demote(&self, _tile: u32) {}
    /// Returns the output for `lanes`, the normalized and scaled values of a tile.
    #[inline(always)]
    fn finish(&self, _tile: Self::RegisterTile, lanes: T::F32Vec) -> T::F32Vec {
        lanes
    }
}

/// A thread's part of a tile, which stays in registers between the reduction and the result.
pub(crate) trait RegisterTile<T: Elem>: Copy {
    /// Returns a tile that is not loaded yet.
    fn empty() -> Self;
    /// Returns the values to normalize, for the reduction. Stores them if they cost more than a conversion to
    /// f32.
    fn lanes(&mut self) -> T::F32Vec;
    /// Returns the same values again, for the result.
    fn lanes_again(&self) -> T::F32Vec;
}

/// A pack in its element type. For a 16-bit type, it takes half the registers of its f32 lanes.
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
        // This load allocates in L1 although the row is read once. `L1::no_allocate` measures slower on an
        // H200.
        Row::load(self, tile, how)
    }
    #[inline(always)]
    fn load_again(&self, tile: u32) -> Pack<T> {
        Row::load(self, tile, Load::ReadOnly)
    }
    #[inline(always)]
    unsafe fn demote(&self, tile: u32) {
        // SAFETY: the caller passes rows that start and end on an L2 line.
        unsafe { Row::demote(self, tile) }
    }
}

/// Returns whether rows of `IN_REGISTERS` tiles use the launch's L2 policy. Shorter rows do not gain from it
/// on an H200.
const fn uses_l2_policy<T: Elem, const IN_REGISTERS: usize, X: RowSource<T>>() -> bool {
    X::USES_L2_POLICY && IN_REGISTERS >= 4
}

/// Waits for earlier launches and loads the tiles of `source` that stay in registers, if `wanted`. This is
/// the kernel's first access to global memory.
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

/// Normalizes the team's row of `source` into `y`, with any kind of weight. If `IN_REGISTERS` is at most
/// `LOAD_FIRST`, `in_registers` contains the loaded tiles.
///
/// # Safety
/// `weight` has `p.cols` elements of the type that its kind states. If `VECTOR`, the weight is aligned to 16
/// bytes.
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
    // SAFETY: the caller passes a weight of `p.cols` elements. Only the row of the type that `weight.kind`
    // states is read.
    let (same, single) = unsafe {
        (
            Row::<T, VECTOR>::of(&rows, team, RowIndex::FIRST, p.cols),
            Row::<f32, VECTOR>::of(&rows, team, RowIndex::FIRST, p.cols),
        )
    };
    let read_late = |kind| AnyKind { kind, same, single };
    match weight.kind {
        // Without rows in registers, one body serves all kinds of weight, because its branches do not limit
        // the speed.
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
        // For f32 rows, both kinds are the same, and the host passes `SAME`.
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

/// Reduces the row and writes the result, for one kind of weight.
#[inline(always)]
fn scale<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool, X: RowSource<T>, S: WeightScale<T>>(
    source: X,
    in_registers: [X::RegisterTile; IN_REGISTERS],
    weight: S,
    y: RowMut<T, VECTOR>,
    team: Team,
    p: RmsParams,
) {
    let mut in_registers =
        if IN_REGISTERS <= X::LOAD_FIRST { in_registers } else { load_registers(source, true, &p) };
    // If there are registers for the weight, load it now, so that it arrives during the reduction.
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
            // SAFETY: when the host sets a policy that demotes, it has checked that rows start and end on an
            // L2 line.
            unsafe { source.demote(tile as u32) };
        }
    }
    for tile in 0..streamed {
        let mut again = source.load_again(tile);
        let lanes = again.lanes();
        put(tile, again, lanes, weight.fetch(tile));
    }
}
