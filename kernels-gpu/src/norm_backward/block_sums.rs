//! Determines which input rows a block processes, and adds the block's contributions to sums over many rows,
//! such as the gradient of a weight. Each block writes these partial sums to one row of a workspace.
//!
//! A second launch, [`column_sums`](super::column_sums), adds the rows of the workspace. No kernel uses
//! atomic additions, so the order of the additions depends only on the launch configuration.
use cuda_std::prelude::*;

/// The rows that the calling block processes.
///
/// A team is the set of threads that share a row. A group is the set of rows that share a weight. The rows of
/// a group are divided into batches, and a batch has one row for each team of a block. `splits` blocks
/// process each group, so each block processes every `splits`-th batch.
pub(crate) struct BlockRows {
    /// The team (the threads that share a row) of the calling thread. `team.row` is the index of the team in
    /// the block.
    pub team: Team,
    /// The index of the block in the grid, which is also the index of the workspace row of the block.
    pub block: u32,
    /// The index of the block's group, the set of rows that share a weight.
    pub group: u32,
    /// The index of the last row of the group, plus one.
    pub end: u64,
    /// The first row of the block's first batch. A batch has one row for each team (threads that share a row)
    /// of the block.
    pub first: u64,
    /// The distance in rows from the start of one batch of the block to the start of its next batch.
    pub step: u64,
}

impl BlockRows {
    /// Returns the rows of the calling block, in a grid of `[splits, groups]` blocks. Each group (the rows
    /// that share a weight) has `rows` rows.
    #[inline(always)]
    pub fn of_block(rows: u64) -> Self {
        let ([split, group, _], [splits, ..]) = (thread::block_index(), thread::grid_dim());
        let ([rank, number, _], [size, teams, _]) = (thread::index(), thread::block_dim());
        let start = u64::from(group) * rows;
        Self {
            team: Team { rank, size, row: u64::from(number), cluster: false },
            block: group * splits + split,
            group,
            end: start + rows,
            first: start + u64::from(split) * u64::from(teams),
            step: u64::from(splits) * u64::from(teams),
        }
    }

    /// Returns the index of the row that this thread's team (the threads that share a row) processes. `first`
    /// is the first row of the batch.
    #[inline(always)]
    pub fn at(&self, first: u64, inner: u32) -> RowIndex {
        RowIndex::of(Team { row: first + self.team.row, ..self.team }, self.end, inner)
    }
}

/// A block's row of f32 partial sums in the workspace. Each thread accesses only the columns for which it
/// computes sums.
#[derive(Clone, Copy)]
pub(crate) struct SumsRow<const VECTOR: bool> {
    read: Row<f32, VECTOR>,
    write: RowMut<f32, VECTOR>,
    wanted: bool,
}

impl<const VECTOR: bool> SumsRow<VECTOR> {
    /// Returns the row of the calling block in the workspace at `base`.
    ///
    /// # Safety
    /// `base` is null, or has a row of `cols` f32 for each block of the grid.
    #[inline(always)]
    pub unsafe fn of(base: *mut u8, block_rows: &BlockRows, cols: u32) -> Self {
        let rows = Rows { base, inner_stride: i64::from(cols), outer_stride: 0 };
        let team = block_rows.team.opaque();
        let at = RowIndex::of(Team { row: u64::from(block_rows.block), ..team }, u64::MAX, 0);
        // Without the optimization barrier `opaque`, the compiler would test whether `base` is null before
        // the loop over rows. The result of this test would then occupy a register throughout the loop.
        let [low, high] = thread::opaque([base.addr() as u32, (base.addr() as u64 >> 32) as u32]);
        // SAFETY: the methods of the result access this block's row of the workspace. The caller guarantees a
        // workspace with a row for each block. If `base` is null, `wanted` is false, and the methods access
        // no memory.
        unsafe {
            Self {
                read: Row::of(&rows, team, at, cols),
                write: RowMut::of(&rows, team, at, cols),
                wanted: low | high != 0,
            }
        }
    }

    /// Adds `lanes` to the thread's sums for tile number `tile` in the workspace. If `first` is true, the
    /// workspace contains no sums yet, and the function stores `lanes` instead.
    #[inline(always)]
    pub fn add<L: F32Vec>(&self, tile: u32, lanes: L, first: bool) {
        if self.wanted {
            let before = if first { L::splat(0.0) } else { self.read.lanes(tile, Load::Default) };
            self.write.store_lanes(tile, before.zip(lanes, |a, b| a + b));
        }
    }

    /// Writes `lanes`, the thread's sums for tile number `tile`, to the workspace. All threads of the block
    /// must share one row, and their number must be a multiple of 32.
    #[inline(always)]
    pub fn put<L: F32Vec>(&self, tile: u32, lanes: L) {
        if self.wanted {
            self.write.store_lanes_of_warps(tile, lanes);
        }
    }

    /// Adds the sums `lanes` over all teams of the block, and writes the totals for tile number `tile` to the
    /// workspace. A team is the set of threads that share a row. The function [`over_teams`] uses `memory`
    /// for the reduction.
    #[inline(always)]
    pub fn write_over_teams<L: F32Vec>(&self, tile: u32, lanes: L, team: Team, memory: Shared<f32>) {
        if !self.wanted {
            return;
        }
        let sum = over_teams(lanes, team, memory);
        if team.row == 0 && team.size.is_multiple_of(warp::SIZE) {
            self.write.store_lanes_of_warps(tile, sum);
        } else if team.row == 0 {
            self.write.store_lanes(tile, sum);
        }
    }
}

/// Returns the sums of `lanes` over all teams of the block. A team is the set of threads that share a row.
/// Only the result of the first team is valid, but every thread of the block must call this function.
///
/// The function uses shuffles to add the values of teams in the same warp. If the teams are in different
/// warps, it then adds their values through `memory`. This shared memory must have `L::LEN` f32 for each
/// thread.
#[inline(always)]
fn over_teams<L: F32Vec>(lanes: L, team: Team, memory: Shared<f32>) -> L {
    let mut sum = lanes;
    let mut distance = team.size;
    while distance < warp::SIZE {
        sum = sum.map(|value| value + warp::shuffle_xor(warp::ALL, value, distance));
        distance *= 2;
    }
    let ([x, y, _], thread) = (thread::block_dim(), block::linear_index());
    let (threads, width) = (x * y, team.size.max(warp::SIZE));
    if threads == width {
        return sum;
    }
    // Wait until all threads have read the previous contents of `memory`, which the next loop overwrites.
    block::sync();
    for i in 0..L::LEN {
        // SAFETY: each thread writes only its own slots, between two barriers.
        unsafe { memory.set(i * threads + thread, sum.get(i as usize)) };
    }
    block::sync();
    if thread < width {
        let mut other = thread + width;
        while other < threads {
            // SAFETY: the load reads slots of the thread with index `other`, which is less than `threads`.
            // That thread wrote its slots before the barrier.
            sum = L::from_fn(|i| sum.get(i) + unsafe { memory.get(i as u32 * threads + other) });
            other += width;
        }
    }
    sum
}

/// Four f32 values, which a thread reads or writes with one 16-byte access to shared memory.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Four([f32; 4]);

/// Partial sums of the calling thread in shared memory, for kernels that have too few registers for these
/// sums.
#[derive(Clone, Copy)]
pub(crate) struct SharedSums {
    slots: Shared<Four>,
    /// Two numbers: the index of the thread in the block, and the number of threads of the block.
    threads: [u32; 2],
}

impl SharedSums {
    /// Allocates shared memory for the sums of `tiles` tiles, each with `len` elements per thread, and sets
    /// the sums to zero. A slot has 16 bytes. The slots of consecutive threads are adjacent.
    #[inline(always)]
    pub fn take(memory: &mut SharedMemory, tiles: u32, len: u32) -> Self {
        let [x, y, _] = thread::block_dim();
        let slots = tiles * len / 4;
        let sums = Self { slots: memory.take(slots * x * y), threads: [block::linear_index(), x * y] };
        let zeros = sums.opaque();
        for slot in 0..slots {
            // SAFETY: the store writes one slot. `at` returns a different index for each thread and slot, and
            // all these indices are inside the memory that `memory.take` returned.
            unsafe { zeros.slots.set(zeros.at(slot), Four([0.0; 4])) };
        }
        sums
    }

    /// Returns this object, passed through an optimization barrier. The compiler then computes the addresses
    /// of the slots again at each use. Otherwise, the addresses would occupy registers. See
    /// [`thread::opaque`].
    #[inline(always)]
    pub fn opaque(self) -> Self {
        Self { threads: thread::opaque(self.threads), ..self }
    }

    /// Returns the index in `slots` of this thread's slot number `slot`.
    #[inline(always)]
    fn at(&self, slot: u32) -> u32 {
        slot * self.threads[1] + self.threads[0]
    }

    /// Adds `lanes` to the thread's sums for tile number `tile`.
    #[inline(always)]
    pub fn add<L: F32Vec>(&self, tile: u32, lanes: L) {
        for i in 0..L::LEN / 4 {
            let at = self.at(tile * L::LEN / 4 + i);
            let add = |j: usize, sum: f32| sum + lanes.get(i as usize * 4 + j);
            // SAFETY: the access is inside the slots that `take` allocated for this tile, and no other thread
            // accesses this thread's slots.
            unsafe {
                let Four([a, b, c, d]) = self.slots.get(at);
                self.slots.set(at, Four([add(0, a), add(1, b), add(2, c), add(3, d)]));
            }
        }
    }

    /// Returns the thread's sums for tile number `tile`.
    #[inline(always)]
    pub fn get<L: F32Vec>(&self, tile: u32) -> L {
        // SAFETY: the access is inside the slots that `take` allocated for this tile, and no other thread
        // accesses this thread's slots.
        let four = |i: u32| unsafe { self.slots.get(self.at(tile * L::LEN / 4 + i)) };
        let mut in_registers = Four([0.0; 4]);
        L::from_fn(|i| {
            if i % 4 == 0 {
                in_registers = four(i as u32 / 4);
            }
            in_registers.0[i % 4]
        })
    }
}
