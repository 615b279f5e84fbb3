//! A launch configuration of a row op. Which one an op takes is decided in `plan/ladder.rs`.
use cuda_std::team::Team;

/// One launch configuration of a row op.
#[derive(Clone, Copy, Debug)]
pub struct Rung {
    /// The length of the longest row that it takes, in packs of 16 bytes.
    pub max_packs: u32,
    /// Packs that a thread keeps in registers; 0: the kernel for any layout.
    pub packs_per_thread: u32,
    /// Threads of a block that share a row: a power of two up to 32, or a multiple of 32.
    pub threads_per_row: u32,
    /// Rows of a block, each with its own team of threads.
    pub rows_per_block: u32,
    /// Blocks that share a row in the kernels for clusters: 8 on sm_90, 1 on other architectures. 0 in all
    /// other kernels.
    pub cluster: u32,
}

impl Rung {
    /// Its kernel among those of an op.
    pub(crate) fn kernel(&self, kernels: &RowKernels) -> &'static str {
        kernels.find(self).expect("an op has the kernels that its ladder names")
    }

    /// Whether a block can have its teams: what [`rung`] asserts, for rungs that are not made by it.
    pub(crate) fn is_block(&self) -> bool {
        let team = self.threads_per_row;
        let is_team = team.is_multiple_of(32) || team.is_power_of_two() && team < 32;
        let threads = team.saturating_mul(self.rows_per_block);
        is_team && threads.is_multiple_of(32) && (32..=1_024).contains(&threads)
    }
}

/// The kernels of a row op, one of which a launch configuration selects.
pub(crate) struct RowKernels {
    /// The kernel for any layout and length.
    pub any: &'static str,
    /// The kernels that keep a row in registers.
    pub in_registers: &'static [RegisterKernel],
}

/// A kernel that keeps a row in the registers of its threads.
pub(crate) struct RegisterKernel {
    name: &'static str,
    packs_per_thread: u32,
    cluster: bool,
}

/// A kernel in which one block has a row, `packs_per_thread` packs of it in the registers of each thread.
pub(crate) const fn in_registers(packs_per_thread: u32, name: &'static str) -> RegisterKernel {
    RegisterKernel { name, packs_per_thread, cluster: false }
}

/// As [`in_registers`], with a row shared by a cluster of blocks.
pub(crate) const fn cluster_block(packs_per_thread: u32, name: &'static str) -> RegisterKernel {
    RegisterKernel { name, packs_per_thread, cluster: true }
}

impl RowKernels {
    /// The kernel that `rung` needs, if the op has it.
    pub(crate) fn find(&self, rung: &Rung) -> Option<&'static str> {
        let cluster = rung.cluster > 0;
        if rung.packs_per_thread == 0 {
            return (!cluster).then_some(self.any);
        }
        let fits = |in_registers: &&RegisterKernel| {
            in_registers.packs_per_thread == rung.packs_per_thread && in_registers.cluster == cluster
        };
        self.in_registers.iter().find(fits).map(|in_registers| in_registers.name)
    }
}

/// A rung of blocks of `threads` threads, `threads_per_row` of them for each row.
pub const fn rung(max_packs: u32, packs_per_thread: u32, threads_per_row: u32, threads: u32) -> Rung {
    assert!(threads.is_multiple_of(32) && threads.is_multiple_of(threads_per_row));
    assert!(threads_per_row.is_multiple_of(32) || threads_per_row.is_power_of_two() && threads_per_row < 32);
    assert!(packs_per_thread == 0 || packs_per_thread * threads_per_row >= max_packs);
    Rung {
        max_packs,
        packs_per_thread,
        threads_per_row,
        rows_per_block: threads / threads_per_row,
        cluster: 0,
    }
}

/// A rung of clusters of 8 blocks of `threads`, whose threads hold 8 packs.
pub const fn cluster(max_packs: u32, threads: u32) -> Rung {
    cluster_of(max_packs, 8, threads)
}

/// A rung of clusters of 8 blocks of `threads`, whose threads hold 7 or 8 packs.
pub const fn cluster_of(max_packs: u32, packs_per_thread: u32, threads: u32) -> Rung {
    assert!(
        8 * packs_per_thread * threads >= max_packs && threads <= 1_024 && matches!(packs_per_thread, 7 | 8)
    );
    Rung { max_packs, cluster: Team::CLUSTER, ..rung(0, packs_per_thread, threads, threads) }
}
