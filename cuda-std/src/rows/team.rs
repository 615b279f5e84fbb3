//! The threads that share one row.
//!
//! A block is two-dimensional: x counts the threads of a team, y the teams. Teams of up to 32 threads (a power of
//! two) lie inside a warp and reduce by shuffles alone; larger teams are whole warps and meet at a barrier. The
//! block is always a multiple of 32 threads, and threads whose row is past the end go through the same steps with
//! neutral values: shuffles and barriers need them.
use crate::simt::shared::SharedMemory;
use crate::simt::{block, cluster, thread, warp};

/// The calling thread's team: who it is in it, and which row is theirs.
#[derive(Clone, Copy)]
pub struct Team {
    /// The thread's number in its team.
    pub rank: u32,
    /// Threads in a team.
    pub size: u32,
    /// The row that the team works on.
    pub row: u64,
    /// Is it a cluster of [`Team::CLUSTER`] blocks, and not a part of one?
    pub cluster: bool,
}

impl Team {
    /// One row a team, teams numbered over the grid.
    #[inline(always)]
    pub fn of_block() -> Self {
        let ([rank, team, _], [size, teams, _]) = (thread::index(), thread::block_dim());
        let row = u64::from(thread::block_index()[0]) * u64::from(teams) + u64::from(team);
        Self { rank, size, row, cluster: false }
    }

    /// Blocks of a team that is a cluster.
    pub const CLUSTER: u32 = 8;

    /// One row a cluster, which the kernel declares hereby: its blocks have a team each.
    #[inline(always)]
    pub fn of_cluster() -> Self {
        cluster::bounds::<{ Self::CLUSTER }>();
        // Made of a block's team, row and all: of a row that ptxas knows to be one for all threads it keeps the addresses of
        // every tile, in registers that are not there.
        let (block, blocks) = (Self::of_block(), cluster::size::<{ Self::CLUSTER }>());
        Self {
            rank: cluster::rank() * block.size + block.rank,
            size: block.size * blocks,
            row: block.row / u64::from(blocks),
            cluster: true,
        }
    }

    /// The same team, after [`thread::opaque`]: for the columns of one row of many.
    #[inline(always)]
    pub fn opaque(self) -> Self {
        let [rank, size] = thread::opaque([self.rank, self.size]);
        Self { rank, size, ..self }
    }

    /// Folds `value` over the team, the same bits in each of its threads. Every thread of the block must call it.
    ///
    /// Teams beyond a warp take the bytes of a `T` for each warp of the block from `memory`; a cluster takes 8 bytes
    /// for each of its blocks too, and 8 more, and folds once.
    #[inline(always)]
    pub fn reduce<T: warp::Exchange>(
        &self,
        value: T,
        neutral: T,
        memory: &mut SharedMemory,
        combine: impl Fn(T, T) -> T + Copy,
    ) -> T {
        if self.size <= warp::SIZE {
            return warp::reduce(value, self.size, combine);
        }
        if self.cluster {
            return block::reduce_cluster::<T, { Self::CLUSTER }>(value, neutral, memory, combine);
        }
        let warps = self.size / warp::SIZE;
        let first = thread::index()[1] * warps;
        let number = first + self.rank / warp::SIZE;
        block::reduce_warps(value, neutral, number, first, warps, memory, combine)
    }

    /// The sum over the team: see [`Team::reduce`].
    #[inline(always)]
    pub fn sum(&self, value: f32, memory: &mut SharedMemory) -> f32 {
        self.reduce(value, 0.0, memory, |a, b| a + b)
    }

    /// The maximum over the team: see [`Team::reduce`].
    #[inline(always)]
    pub fn max(&self, value: f32, memory: &mut SharedMemory) -> f32 {
        self.reduce(value, f32::NEG_INFINITY, memory, f32::max)
    }
}
