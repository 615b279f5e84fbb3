//! Sums over rows, as blocks make them: which rows a block takes, and the row of f32 that it leaves. The rows
//! of all blocks are added up by [`column_sums`](super::column_sums), so that the order of a sum is that of
//! the launch.
use cuda_std::prelude::*;

/// A block's share: of the rows of its group, every `splits`-th batch of one row a team.
pub(crate) struct BlockRows {
    /// The thread's team; its row is its number in the block.
    pub team: Team,
    /// The block's number, which is that of its sums.
    pub block: u32,
    /// The group's number.
    pub group: u32,
    /// The row behind the group's last.
    pub end: u64,
    /// The row of the block's first team in its first batch.
    pub first: u64,
    /// Rows from a batch to the next.
    pub step: u64,
}

impl BlockRows {
    /// In a grid of `[splits, groups]` blocks.
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

    /// Where the team's row of the batch that starts at row `first` is.
    #[inline(always)]
    pub fn at(&self, first: u64, inner: u32) -> RowIndex {
        RowIndex::of(Team { row: first + self.team.row, ..self.team }, self.end, inner)
    }
}

/// A row of sums in f32, in the columns of the threads that make it.
#[derive(Clone, Copy)]
pub(crate) struct SumsRow<const VECTOR: bool> {
    read: Row<f32, VECTOR>,
    write: RowMut<f32, VECTOR>,
    wanted: bool,
}

impl<const VECTOR: bool> SumsRow<VECTOR> {
    /// That of the block.
    ///
    /// # Safety
    /// `base` is null, or has a row of `cols` f32 for each block of the grid.
    #[inline(always)]
    pub unsafe fn of(base: *mut u8, block_rows: &BlockRows, cols: u32) -> Self {
        let rows = Rows { base, inner_stride: i64::from(cols), outer_stride: 0 };
        let team = block_rows.team.opaque();
        let at = RowIndex::of(Team { row: u64::from(block_rows.block), ..team }, u64::MAX, 0);
        // Asked here and not before the loop over rows, through which the answer would be kept.
        let [low, high] = thread::opaque([base.addr() as u32, (base.addr() as u64 >> 32) as u32]);
        // SAFETY: as the caller promises; a block's row is its own, and one that is not wanted is never
        // touched.
        unsafe {
            Self {
                read: Row::of(&rows, team, at, cols),
                write: RowMut::of(&rows, team, at, cols),
                wanted: low | high != 0,
            }
        }
    }

    /// Adds to what the thread wrote before, or writes for the first time.
    #[inline(always)]
    pub fn add<L: F32Vec>(&self, tile: u32, lanes: L, first: bool) {
        if self.wanted {
            let before = if first { L::splat(0.0) } else { self.read.lanes(tile, Load::Default) };
            self.write.store_lanes(tile, before.zip(lanes, |a, b| a + b));
        }
    }

    /// Writes the lanes of a block that is one team of whole warps.
    #[inline(always)]
    pub fn put<L: F32Vec>(&self, tile: u32, lanes: L) {
        if self.wanted {
            self.write.store_lanes_of_warps(tile, lanes);
        }
    }

    /// Writes the sum over the block's teams, each of which has its own lanes; `memory` is that of
    /// [`over_teams`].
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

/// The sum of the lanes of the block's teams, in the first of them; every thread of the block must call it.
///
/// Teams inside a warp first add up by shuffles; then warps, or larger teams, by `memory`, which has a number
/// for each thread and lane where a block has more of them than one.
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
    // What was there before has been read.
    block::sync();
    for i in 0..L::LEN {
        // SAFETY: a slot for each thread and lane, written by it between two barriers.
        unsafe { memory.set(i * threads + thread, sum.get(i as usize)) };
    }
    block::sync();
    if thread < width {
        let mut other = thread + width;
        while other < threads {
            // SAFETY: the slot of a thread of the block, after the barrier.
            sum = L::from_fn(|i| sum.get(i) + unsafe { memory.get(i as u32 * threads + other) });
            other += width;
        }
    }
    sum
}

/// 16 bytes of lanes: one access to shared memory.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Four([f32; 4]);

/// Lanes that a thread adds up in shared memory, where there are no registers for them.
#[derive(Clone, Copy)]
pub(crate) struct SharedSums {
    slots: Shared<Four>,
    /// The thread, and how many there are.
    threads: [u32; 2],
}

impl SharedSums {
    /// Zeros for `tiles` tiles of `len` lanes: for each thread its own, a warp's side by side.
    #[inline(always)]
    pub fn take(memory: &mut SharedMemory, tiles: u32, len: u32) -> Self {
        let [x, y, _] = thread::block_dim();
        let slots = tiles * len / 4;
        let sums = Self { slots: memory.take(slots * x * y), threads: [block::linear_index(), x * y] };
        let zeros = sums.opaque();
        for slot in 0..slots {
            // SAFETY: this thread's own slot.
            unsafe { zeros.slots.set(zeros.at(slot), Four([0.0; 4])) };
        }
        sums
    }

    /// See [`thread::opaque`].
    #[inline(always)]
    pub fn opaque(self) -> Self {
        Self { threads: thread::opaque(self.threads), ..self }
    }

    #[inline(always)]
    fn at(&self, slot: u32) -> u32 {
        slot * self.threads[1] + self.threads[0]
    }

    /// Adds `lanes` to those of `tile`.
    #[inline(always)]
    pub fn add<L: F32Vec>(&self, tile: u32, lanes: L) {
        for i in 0..L::LEN / 4 {
            let at = self.at(tile * L::LEN / 4 + i);
            let add = |j: usize, sum: f32| sum + lanes.get(i as usize * 4 + j);
            // SAFETY: as in `take`.
            unsafe {
                let Four([a, b, c, d]) = self.slots.get(at);
                self.slots.set(at, Four([add(0, a), add(1, b), add(2, c), add(3, d)]));
            }
        }
    }

    /// Those of `tile`.
    #[inline(always)]
    pub fn get<L: F32Vec>(&self, tile: u32) -> L {
        // SAFETY: as in `take`.
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
