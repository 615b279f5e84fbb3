//! A team: the threads that share one row of a tensor.
//!
//! Blocks are two-dimensional. `threadIdx.x` is the index of a thread in its team, and `threadIdx.y` is the
//! index of the team in the block. A team of up to 32 threads (a power of two) lies inside one warp, and
//! reduces values only with shuffles. A larger team consists of whole warps, which exchange partial results
//! through shared memory.
//!
//! A block always has a multiple of 32 threads, so some teams may have no row. Shuffles and barriers need all
//! threads. The threads of a team without a row therefore execute the same code as the others, with neutral
//! values such as zero in a sum.
use crate::simt::shared::SharedMemory;
use crate::simt::{block, cluster, thread, warp};

/// The calling thread's position in its team (the threads that share one row), and the team's size and row.
#[derive(Clone, Copy)]
pub struct Team {
    /// Index of the thread in its team.
    pub rank: u32,
    /// Number of threads in the team.
    pub size: u32,
    /// Row that the team processes.
    pub row: u64,
    /// Whether the team (the threads that share a row) consists of all threads of a thread-block cluster. If
    /// not, the team lies inside one block.
    pub cluster: bool,
}

impl Team {
    /// Returns the team (the threads that share a row) of the calling thread, for kernels in which each team
    /// lies inside one block. Teams are numbered over the whole grid, and team `n` processes row `n`.
    #[inline(always)]
    #[track_caller]
    pub fn of_block() -> Self {
        let ([rank, team, _], [size, teams, _]) = (thread::index(), thread::block_dim());
        let row = u64::from(thread::block_index()[0]) * u64::from(teams) + u64::from(team);
        Self { rank, size, row, cluster: false }
    }

    /// Number of blocks in a cluster, for kernels in which all threads of a cluster share one row.
    pub const CLUSTER: u32 = 8;

    /// Returns the team (the threads that share a row) of the calling thread, for kernels in which each
    /// cluster processes one row. The call also declares the kernel's cluster size. `blockDim.y` must be 1,
    /// so that all threads of a block belong to the same team.
    #[inline(always)]
    #[track_caller]
    pub fn of_cluster() -> Self {
        cluster::bounds::<{ Self::CLUSTER }>();
        // Derive all fields, even the row, from the result of `of_block`. If the row were computed from the
        // block index only, ptxas would detect that all threads of the block have the same row. ptxas would
        // then keep the addresses of all tiles in registers, and registers would spill to local memory.
        let (block, blocks) = (Self::of_block(), cluster::size::<{ Self::CLUSTER }>());
        Self {
            rank: cluster::rank() * block.size + block.rank,
            size: block.size * blocks,
            row: block.row / u64::from(blocks),
            cluster: true,
        }
    }

    /// Returns the same team (the threads that share a row), with `rank` and `size` passed through
    /// [`thread::opaque`], an optimization barrier. Call this function in a loop over many rows. The compiler
    /// then recomputes values that depend on `rank` and `size`, instead of keeping them in registers.
    #[inline(always)]
    #[track_caller]
    pub fn opaque(self) -> Self {
        let [rank, size] = thread::opaque([self.rank, self.size]);
        Self { rank, size, ..self }
    }

    /// Returns how many bytes of shared memory a reduction of 8-byte values needs. Each team (the threads
    /// that share a row) must lie inside one block. The argument is the block size. Consecutive reductions
    /// can use the same bytes.
    pub const fn shared_bytes([size, teams, _]: [u32; 3]) -> u32 {
        if size > warp::SIZE { (size * teams / warp::SIZE + 1) * 8 } else { 0 }
    }

    /// Returns how many bytes of shared memory a reduction of 8-byte values needs. Each team (the threads
    /// that share a row) must be a whole cluster. The argument is the block size.
    pub const fn cluster_shared_bytes([size, teams, _]: [u32; 3]) -> u32 {
        (size * teams / warp::SIZE + Self::CLUSTER + 1) * 8
    }

    /// Reduces `value` over the team (the threads that share a row). All threads of the team get a result
    /// with the same bits. Every thread of the block must call this function.
    ///
    /// If the team is larger than a warp, the function takes `size_of::<T>()` bytes of `memory` for each warp
    /// of the block. If the team is a whole cluster, it also takes 8 bytes for each block of the cluster and
    /// 8 bytes for an mbarrier. Such a team may call the function only once per launch.
    #[inline(always)]
    #[track_caller]
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

    /// Returns the sum of `value` over the team (the threads that share a row). The conditions of
    /// [`Team::reduce`] apply.
    #[inline(always)]
    #[track_caller]
    pub fn sum(&self, value: f32, memory: &mut SharedMemory) -> f32 {
        self.reduce(value, 0.0, memory, |a, b| a + b)
    }

    /// Returns the maximum of `value` over the team (the threads that share a row). The conditions of
    /// [`Team::reduce`] apply.
    #[inline(always)]
    #[track_caller]
    pub fn max(&self, value: f32, memory: &mut SharedMemory) -> f32 {
        self.reduce(value, f32::NEG_INFINITY, memory, f32::max)
    }
}
