//! The type of a launch configuration (rung) for row ops such as `softmax`. `plan/ladder.rs` selects a rung
//! for each call.
use cuda_std::team::Team;

/// One launch configuration of a row op.
#[derive(Clone, Copy, Debug)]
pub struct Rung {
    /// Maximum row length in packs (16-byte vectors).
    pub max_packs: u32,
    /// Number of packs (16-byte vectors) that each thread keeps in registers. The number is 0 for a kernel
    /// that supports any layout, because such a kernel keeps no row in registers.
    pub packs_per_thread: u32,
    /// Number of threads of one block that share a row. The number is a power of two up to 32, or a multiple
    /// of 32.
    pub threads_per_row: u32,
    /// Number of rows that a block processes at the same time. Each row has its own threads.
    pub rows_per_block: u32,
    /// For kernels that use thread block clusters, the number of blocks that share a row: 8 on sm_90, and 1
    /// on devices without clusters. For all other kernels, the number is 0.
    pub cluster: u32,
}

impl Rung {
    /// Returns the kernel to launch with this launch configuration. Panics if this kernel is not in
    /// `kernels`.
    pub(crate) fn kernel<K: Copy>(&self, kernels: &RowKernels<K>) -> K {
        kernels.find(self).expect("an op has the kernels that its ladder names")
    }

    /// Returns whether the thread counts of this launch configuration are valid. For example, a block needs
    /// 32 to 1024 threads. This check is for launch overrides: a caller sets their fields directly and can
    /// choose invalid values. The function [`rung`] builds only configurations with valid thread counts.
    pub(crate) fn is_block(&self) -> bool {
        let team = self.threads_per_row;
        let is_team = team.is_multiple_of(32) || team.is_power_of_two() && team < 32;
        let threads = team.saturating_mul(self.rows_per_block);
        is_team && threads.is_multiple_of(32) && (32..=1_024).contains(&threads)
    }
}

/// The kernels of a row op such as `softmax`. The launch configuration of a call determines which of these
/// kernels runs. `K` is the type of the function that launches a kernel.
pub(crate) struct RowKernels<K: 'static> {
    /// The kernel for any layout and length.
    pub any: K,
    /// The kernels that keep a row in registers.
    pub in_registers: &'static [RegisterKernel<K>],
}

/// A kernel that keeps a row in the registers of its threads.
pub(crate) struct RegisterKernel<K> {
    kernel: K,
    packs_per_thread: u32,
    cluster: bool,
}

/// Describes a kernel in which the threads of one block keep a row in registers, with `packs_per_thread`
/// packs (16-byte vectors) per thread.
pub(crate) const fn in_registers<K: Copy>(packs_per_thread: u32, kernel: K) -> RegisterKernel<K> {
    RegisterKernel { kernel, packs_per_thread, cluster: false }
}

/// Describes a kernel in which a thread block cluster keeps a row in registers, with `packs_per_thread` packs
/// (16-byte vectors) per thread.
pub(crate) const fn cluster_block<K: Copy>(packs_per_thread: u32, kernel: K) -> RegisterKernel<K> {
    RegisterKernel { kernel, packs_per_thread, cluster: true }
}

impl<K: Copy> RowKernels<K> {
    /// Returns the kernel for the launch configuration `rung`, or `None` if the op lacks this kernel.
    pub(crate) fn find(&self, rung: &Rung) -> Option<K> {
        let cluster = rung.cluster > 0;
        if rung.packs_per_thread == 0 {
            return (!cluster).then_some(self.any);
        }
        let fits = |in_registers: &&RegisterKernel<K>| {
            in_registers.packs_per_thread == rung.packs_per_thread && in_registers.cluster == cluster
        };
        self.in_registers.iter().find(fits).map(|in_registers| in_registers.kernel)
    }
}

/// Returns a launch configuration with `threads` threads per block. In a block, `threads_per_row` threads
/// share a row.
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

/// Returns a launch configuration in which 8 blocks of `threads` threads share a row, with 8 packs (16-byte
/// vectors) per thread.
pub const fn cluster(max_packs: u32, threads: u32) -> Rung {
    cluster_of(max_packs, 8, threads)
}

/// Returns a launch configuration in which 8 blocks of `threads` threads share a row. `packs_per_thread` is 7
/// or 8.
pub const fn cluster_of(max_packs: u32, packs_per_thread: u32, threads: u32) -> Rung {
    assert!(
        8 * packs_per_thread * threads >= max_packs && threads <= 1_024 && matches!(packs_per_thread, 7 | 8)
    );
    Rung { max_packs, cluster: Team::CLUSTER, ..rung(0, packs_per_thread, threads, threads) }
}
