//! Clusters of blocks, from sm_90 on. Before, a cluster is one block.
use core::arch::asm;

unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned"]
    fn arrive();
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
pub fn cluster_wait() {
    if CLUSTERS {
        // SAFETY: the second half.
        unsafe { wait() };
    }
}

/// # Safety
/// `barrier` is a word of this block's shared memory and no barrier yet; the thread comes to a barrier of the
/// cluster before anybody sends.
#[inline(always)]
pub unsafe fn cluster_expect(barrier: *mut u64, bytes: u32) {
    if CLUSTERS {
        // SAFETY: as the caller promises.
        unsafe {
            asm!(
                "{{ .reg .b64 own; .reg .b32 at; cvta.to.shared.u64 own, {barrier}; cvt.u32.u64 at, own;",
                "mbarrier.init.shared::cta.b64 [at], 1; fence.mbarrier_init.release.cluster;",
                "mbarrier.arrive.expect_tx.shared::cta.b64 _, [at], {bytes}; }}",
                barrier = in(reg64) barrier,
                bytes = in(reg32) bytes,
                options(nostack),
            )
        }
    }
}

/// # Safety
/// `to` and `barrier` are words of this block's shared memory; block `rank` of the cluster has the same,
/// expects this one, and runs until it has come.
#[inline(always)]
pub unsafe fn cluster_send(to: *mut u64, barrier: *mut u64, rank: u32, value: u64) {
    if !CLUSTERS {
        // SAFETY: as the caller promises.
        return unsafe { to.write(value) };
    }
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "{{ .reg .b64 own; .reg .b32 at, done; cvta.to.shared.u64 own, {to}; cvt.u32.u64 at, own;",
            "cvta.to.shared.u64 own, {barrier}; cvt.u32.u64 done, own;",
            "mapa.shared::cluster.u32 at, at, {rank}; mapa.shared::cluster.u32 done, done, {rank};",
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [at], {value}, [done]; }}",
            to = in(reg64) to,
            barrier = in(reg64) barrier,
            rank = in(reg32) rank,
            value = in(reg64) value,
            options(nostack),
        )
    }
}

/// # Safety
/// [`cluster_expect`] was called for `barrier`, and a barrier of the block has passed.
#[inline(always)]
pub unsafe fn cluster_receive(barrier: *mut u64) {
    if !CLUSTERS {
        return super::sync::sync_threads();
    }
    let mut came: u32 = 0;
    while came == 0 {
        // SAFETY: as the caller promises.
        unsafe {
            asm!(
                "{{ .reg .b64 own; .reg .b32 at; .reg .pred came; cvta.to.shared.u64 own, {barrier};",
                "cvt.u32.u64 at, own; mbarrier.try_wait.parity.shared::cta.b64 came, [at], 0;",
                "selp.u32 {came}, 1, 0, came; }}",
                barrier = in(reg64) barrier,
                came = out(reg32) came,
                options(nostack),
            )
        }
    }
}
