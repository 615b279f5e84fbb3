//! Clusters of blocks, from sm_90 on. Before, a cluster is one block.
use core::arch::asm;

unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.aligned"]
    fn arrive();
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned"]
    fn arrive_relaxed();
    #[link_name = "llvm.nvvm.barrier.cluster.wait.aligned"]
    fn wait();
}

const CLUSTERS: bool = cfg!(target_feature = "sm_90");

#[inline(always)]
pub fn cluster_bounds<const BLOCKS: u32>() {
    if CLUSTERS {
        // SAFETY: a comment; `cuda_builder` writes it into the entry.
        unsafe {
            asm!("//@entry .explicitcluster .reqnctapercluster {}, 1, 1", const BLOCKS, options(nomem, nostack))
        };
    }
}

#[inline(always)]
pub fn cluster_size<const BLOCKS: u32>() -> u32 {
    if CLUSTERS { BLOCKS } else { 1 }
}

#[inline(always)]
pub fn cluster_rank() -> u32 {
    if !CLUSTERS {
        return 0;
    }
    let rank: u32;
    // SAFETY: reads a special register that does not change while the kernel runs.
    unsafe { asm!("mov.u32 {}, %cluster_ctarank;", out(reg32) rank, options(pure, nomem, nostack)) };
    rank
}

#[inline(always)]
pub fn cluster_arrive() {
    if CLUSTERS {
        // SAFETY: the first half of a barrier; its threads take both or none, as the kernel's author says.
        unsafe { arrive() };
    }
}

#[inline(always)]
pub fn cluster_start() {
    if CLUSTERS {
        // SAFETY: as above; orders no memory accesses, so that it costs nothing.
        unsafe { arrive_relaxed() };
    }
}

#[inline(always)]
pub fn cluster_wait() {
    if CLUSTERS {
        // SAFETY: the second half.
        unsafe { wait() };
    } else {
        super::sync_threads();
    }
}

/// # Safety
/// `to` is a word of this block's shared memory; block `rank` of the cluster runs and has the same.
#[inline(always)]
pub unsafe fn cluster_store(to: *mut u32, rank: u32, value: u32) {
    if !CLUSTERS {
        // SAFETY: as the caller promises.
        return unsafe { to.write(value) };
    }
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "{{ .reg .b64 own; .reg .b32 at; cvta.to.shared.u64 own, {to}; cvt.u32.u64 at, own;",
            "mapa.shared::cluster.u32 at, at, {rank}; st.shared::cluster.u32 [at], {value}; }}",
            to = in(reg64) to,
            rank = in(reg32) rank,
            value = in(reg32) value,
            options(nostack),
        )
    }
}
