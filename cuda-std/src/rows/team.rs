//! A team: the threads that share one row of a tensor.
//!
//! A block is two-dimensional. `threadIdx.x` is the index of a thread in its team, and `threadIdx.y` is the
//! index of the team. A team of up to 32 threads (a power of two) lies inside one warp, and its reductions
//! need only shuffles. A larger team consists of whole warps, which exchange partial results in shared
//! memory.
//!
//! A block always has a multiple of 32 threads, so some teams may have no row. Shuffles and barriers need all
//! threads. The threads of a team without a row therefore execute the same code with neutral values, for
//! example zero in a sum.
use crate::simt::shared::SharedMemory;
use crate::simt::{block, cluster, thread, warp};

/// The team of the calling thread: the index of the thread in the team, the team's size and the team's row.
#[derive(Clone, Copy)]
pub struct Team {
    /// Index of the thread in its team.
    pub rank: u32,
    /// Number of threads in the team.
    pub size: u32,
    /// Row that the team processes.
    pub row: u64,
    /// Whether the team consists of all threads of a cluster of [`Team::CLUSTER`] blocks. If not, the team
    /// lies inside one block.
    pub cluster: bool,
}

impl Team {
    /// Returns the team (the threads that share a row) of the calling thread, for kernels whose teams lie
    /// inside a block. Teams are numbered over the whole grid, and the number of a team is the index of its
    /// row.
    #[inline(always)]
    pub fn of_block() -> Self {
        let ([rank, team, _], [size, teams, _]) = (thread::index(), thread::block_dim());
        let row = u64::from(thread::block_index()[0]) * u64::from(teams) + u64::from(team);
        Self { rank, size, row, cluster: false }
    }

    /// Number of blocks in a cluster, for kernels in which the threads of a whole cluster share one row.
    pub const CLUSTER: u32 = 8;

    /// Returns the team (the threads that share a row) of the calling thread, for kernels in which each
    /// cluster processes one row. The call also declares the kernel's cluster size. `blockDim.y` must be 1,
    /// so that all threads of a block belong to the same team.
    #[inline(always)]
    pub fn of_cluster() -> Self {
        cluster::bounds::<{ Self::CLUSTER }>();
        // Derive all fields, even the row, from the values of the block. With a simpler formula, ptxas would
        // detect that all threads have the same row. It would then keep the addresses of all tiles in
        // registers, which would spill to local memory.
        let (block, blocks) = (Self::of_block(), cluster::size::<{ Self::CLUSTER }>());
        Self {
            rank: cluster::rank() * block.size + block.rank,
            size: block.size * blocks,
            row: block.row / u64::from(blocks),
            cluster: true,
        }
    }

    /// Returns the same team (the threads that share a row). The function [`thread::opaque`], an optimization
    /// barrier, hides the values of `rank` and `size` from the compiler. In a loop over many rows, the
    /// compiler then keeps fewer derived values in registers.
    #[inline(always)]
    pub fn opaque(self) -> Self {
        let [rank, size] = thread::opaque([self.rank, self.size]);
        Self { rank, size, ..self }
    }

    /// Returns the bytes of shared memory that a reduction of 8-byte values over a team needs. A team is the
    /// threads that share a row, and each team lies inside one block. The argument is the block size. Several
    /// reductions can use the same bytes.
    pub const fn shared_bytes([size, teams, _]: [u32; 3]) -> u32 {
        if size > warp::SIZE { (size * teams / warp::SIZE + 1) * 8 } else { 0 }
    }

    /// Returns the bytes of shared memory that a reduction of 8-byte values over a team needs. A team is the
    /// threads that share a row, and each team is a whole cluster. The argument is the block size.
    pub const fn cluster_shared_bytes([size, teams, _]: [u32; 3]) -> u32 {
        (size * teams / warp::SIZE + Self::CLUSTER + 1) * 8
    }

    /// Reduces `value` over the team (the threads that share a row). All threads of the team get the same
    /// bits. Every thread of the block must call this function.
    ///
    /// If the team is larger than a warp, the function takes `size_of::<T>()` bytes of `memory` for each warp
    /// of the block. If the team is a whole cluster, the function also takes 8 bytes for each block of the
    /// cluster and 8 bytes for an mbarrier. A team that is a whole cluster may reduce only once per launch.
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

    /// Returns the sum of `value` over the team (the threads that share a row). [`Team::reduce`] lists the
    /// conditions.
    #[inline(always)]
    pub fn sum(&self, value: f32, memory: &mut SharedMemory) -> f32 {
        self.reduce(value, 0.0, memory, |a, b| a + b)
    }

    /// Returns the maximum of `value` over the team (the threads that share a row). [`Team::reduce`] lists
    /// the conditions.
    #[inline(always)]
    pub fn max(&self, value: f32, memory: &mut SharedMemory) -> f32 {
        self.reduce(value, f32::NEG_INFINITY, memory, f32::max)
    }
}
