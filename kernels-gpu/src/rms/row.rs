//! What kernels that normalise rows by their root mean square share: where a row comes from, what of it is
//! held, the reduction, the scaled result.
use cuda_std::l2::L2Policy;
use cuda_std::prelude::*;

use super::weight::{AnyKind, Applied, SameTypeWeight, Weight, WeightScale};
use crate::layout::operand_kind::OperandKind;

/// What the kernel needs to know beside its operands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RmsParams {
    /// Rows of the operands.
    pub rows: u64,
    /// Rows in a group of the outer stride; 0: the inner stride is the only one.
    pub inner: u32,
    /// Columns of a row.
    pub cols: u32,
    /// `1 / cols`: a division at the end of the reduction would be waited for.
    pub inv_cols: f32,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How the weight multiplies.
    pub weight: Applied,
    /// Are all operands, the weight included, `Rows::is_vector`? 0 or 1.
    pub vector: u32,
    /// How rows of which a thread holds 4 packs and more pass through L2, where the op has them kept.
    pub l2_policy: L2Policy,
}

/// Where the rows to be normalised come from.
pub(crate) trait RowSource<T: Elem>: Copy {
    /// Up to so many tiles, a row's loads are issued before anything else is worked out. In short rows time
    /// is latency, and it starts there; longer ones measure faster when the loads come after the rest.
    const LOAD_FIRST: usize;
    /// Up to so many tiles, the weight is read before the reduction: there are registers for it.
    const FETCH_EARLY: usize;
    /// The thread's part of a tile.
    type RegisterTile: RegisterTile<T>;
    /// What the thread reads first.
    fn first(&self) -> *const T;
    /// That of `tile`, for the first time.
    fn load(&self, tile: u32, how: Load) -> Self::RegisterTile;
    /// The same again.
    fn load_again(&self, tile: u32) -> Self::RegisterTile;
    /// Do its rows pass through L2 as the launch says, if they are long enough? Then `demote` gives back
    /// the lines that begin in `tile`.
    const USES_L2_POLICY: bool = false;
    /// See [`RowSource::USES_L2_POLICY`].
    ///
    /// # Safety
    /// As [`Row::demote`].
    #[inline(always)]
    unsafe fn demote(&self, _tile: u32) {}
    /// What is written for the normalised and scaled `lanes` of `in_registers`.
    #[inline(always)]
    fn finish(&self, _tile: Self::RegisterTile, lanes: T::F32Vec) -> T::F32Vec {
        lanes
    }
}

/// A thread's part of a tile, as it waits in registers.
pub(crate) trait RegisterTile<T: Elem>: Copy {
    /// Nothing yet.
    fn empty() -> Self;
    /// What is normalised. What costs more than a conversion is kept for the second time.
    fn lanes(&mut self) -> T::F32Vec;
    /// The same again.
    fn lanes_again(&self) -> T::F32Vec;
}

/// A pack as it is: half the registers of its lanes.
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
        // Allocating in L1 although read once: `L1::no_allocate` measures slower on an H200.
        Row::load(self, tile, how)
    }
    #[inline(always)]
    fn load_again(&self, tile: u32) -> Pack<T> {
        Row::load(self, tile, Load::ReadOnly)
    }
    #[inline(always)]
    unsafe fn demote(&self, tile: u32) {
        // SAFETY: as the caller promises.
        unsafe { Row::demote(self, tile) }
    }
}

/// Do rows of which a thread holds so much pass through L2 as the launch says? Shorter ones were no faster on
/// an H200.
const fn uses_l2_policy<T: Elem, const IN_REGISTERS: usize, X: RowSource<T>>() -> bool {
    X::USES_L2_POLICY && IN_REGISTERS >= 4
}

/// The tiles of `source` that stay in registers, loaded if `wanted`: the kernel's first access to global
/// memory.
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

/// Normalises the team's row of `source` into `y`, for whichever weight there is; `in_registers` is what `LOAD_FIRST`
/// loaded.
///
/// # Safety
/// `weight` has the elements that its kind says, aligned to 16 bytes if `VECTOR`.
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
    // SAFETY: one row of `cols` elements, of the type that the kind says: only that one is read.
    let (same, single) = unsafe {
        (
            Row::<T, VECTOR>::of(&rows, team, RowIndex::FIRST, p.cols),
            Row::<f32, VECTOR>::of(&rows, team, RowIndex::FIRST, p.cols),
        )
    };
    let read_late = |kind| AnyKind { kind, same, single };
    match weight.kind {
        // One body for all kinds, where speed is not decided by it.
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
        // For f32 the two kinds are one, and the host says `SAME`.
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

/// Reduces the row and writes it, for one kind of weight.
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
    // Where there are registers for it, the weight is there when the sum is.
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
            // SAFETY: a host that has lines kept checked where rows begin and end.
            unsafe { source.demote(tile as u32) };
        }
    }
    for tile in 0..streamed {
        let mut again = source.load_again(tile);
        let lanes = again.lanes();
        put(tile, again, lanes, weight.fetch(tile));
    }
}
