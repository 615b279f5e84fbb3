//! Operations of thread-block clusters, which exist from sm_90 on. On older GPUs, the functions behave as if
//! each cluster had one block.
use core::arch::asm;

unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned"]
    fn arrive();
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.aligned"]
    fn arrive_release();
    #[link_name = "llvm.nvvm.barrier.cluster.wait.aligned"]
    fn wait();
}

const CLUSTERS: bool = cfg!(target_feature = "sm_90");

#[inline(always)]
pub fn cluster_bounds<const BLOCKS: u32>() {
    if CLUSTERS {
        // SAFETY: the assembly is only a comment and executes nothing. The crate `cuda_builder` converts the
        // comment into directives of the kernel's PTX entry.
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
    // SAFETY: `mov` only reads a special register, which does not change while the kernel runs.
    unsafe { asm!("mov.u32 {}, %cluster_ctarank;", out(reg32) rank, options(pure, nomem, nostack)) };
    rank
}

#[inline(always)]
pub fn cluster_arrive() {
    if CLUSTERS {
        // SAFETY: the instruction accesses no memory. Every thread of the cluster calls `cluster_arrive` and
        // then the matching `cluster_wait`.
        unsafe { arrive() };
    }
}

/// Arrives at the barrier of the cluster. The arrival orders the earlier memory accesses of the thread.
#[inline(always)]
pub fn cluster_arrive_release() {
    if CLUSTERS {
        // SAFETY: the instruction accesses no memory. Every thread of the cluster calls this function and
        // then the matching `cluster_wait`.
        unsafe { arrive_release() };
    }
}

/// Returns the address in the cluster of `address` in block `rank`.
#[inline(always)]
pub fn map_address(address: u32, rank: u32) -> u32 {
    if !CLUSTERS {
        return address;
    }
    let mapped: u32;
    // SAFETY: the instruction only computes an address.
    unsafe {
        asm!("mapa.shared::cluster.u32 {}, {}, {};", out(reg32) mapped, in(reg32) address, in(reg32) rank,
            options(pure, nomem, nostack))
    };
    mapped
}

/// Loads a word from the shared memory of a block of the cluster.
#[inline(always)]
pub unsafe fn remote_load(address: u32) -> u32 {
    let value: u32;
    // SAFETY: the instruction reads 4 bytes at `address`. The caller guarantees that they are in the shared
    // memory of a block of the cluster.
    unsafe {
        if CLUSTERS {
            asm!("ld.shared::cluster.u32 {}, [{}];", out(reg32) value, in(reg32) address, options(nostack));
        } else {
            asm!("ld.shared.u32 {}, [{}];", out(reg32) value, in(reg32) address, options(nostack));
        }
    }
    value
}

/// Stores a word to the shared memory of a block of the cluster.
#[inline(always)]
pub unsafe fn remote_store(address: u32, value: u32) {
    // SAFETY: the instruction writes 4 bytes at `address`. The caller guarantees that they are in the shared
    // memory of a block of the cluster.
    unsafe {
        if CLUSTERS {
            asm!("st.shared::cluster.u32 [{}], {};", in(reg32) address, in(reg32) value, options(nostack));
        } else {
            asm!("st.shared.u32 [{}], {};", in(reg32) address, in(reg32) value, options(nostack));
        }
    }
}

#[inline(always)]
pub fn cluster_wait() {
    if CLUSTERS {
        // SAFETY: every thread has executed the matching `cluster_arrive`.
        unsafe { wait() };
    }
}

/// Initializes the mbarrier at `barrier`, which then expects `bytes` bytes from asynchronous stores.
///
/// # Safety
/// `barrier` points to a 64-bit word of this block's shared memory, which is not yet an mbarrier. Blocks of
/// the cluster send data to this block only after a cluster barrier that follows this call.
#[inline(always)]
pub unsafe fn cluster_expect(barrier: *mut u64, bytes: u32) {
    if CLUSTERS {
        // SAFETY: the instruction writes the 64-bit word at `barrier`. The caller guarantees that this word
        // is in this block's shared memory, and that it is not yet an mbarrier.
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

/// Writes `value` to the shared memory of block `rank` of the cluster, at the offset that `to` has in this
/// block. The mbarrier at the offset of `barrier` in block `rank` then counts 8 more bytes.
///
/// # Safety
/// `to` and `barrier` point to 64-bit words of this block's shared memory. Block `rank` of the cluster has
/// the same shared-memory layout as this block. Block `rank` has called [`cluster_expect`], and does not exit
/// before the value arrives.
#[inline(always)]
pub unsafe fn cluster_send(to: *mut u64, barrier: *mut u64, rank: u32, value: u64) {
    if !CLUSTERS {
        // SAFETY: the caller passes a word of this block's shared memory.
        return unsafe { to.write(value) };
    }
    // SAFETY: the instruction writes to the shared memory of block `rank`. The caller guarantees that block
    // `rank` has these words at the same offsets, and that it still runs.
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

/// Waits until the mbarrier at `barrier` has counted all expected bytes.
///
/// # Safety
/// One thread called [`cluster_expect`] for `barrier`, and a block barrier followed.
#[inline(always)]
pub unsafe fn cluster_receive(barrier: *mut u64) {
    if !CLUSTERS {
        return super::sync::sync_threads();
    }
    let mut came: u32 = 0;
    while came == 0 {
        // SAFETY: the caller passes an initialized mbarrier of this block.
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
