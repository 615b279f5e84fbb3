//! Asynchronous instructions of Hopper: mbarriers with a transaction count, TMA tensor copies, `setmaxnreg`.
//!
//! All functions need sm_90, except that `setmaxnreg` needs sm_90a. Shared-memory addresses are 32-bit
//! numbers in the `.shared` address space of PTX.
use core::arch::asm;

macro_rules! effects {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $class:ident $ty:ty),*): $text:literal;)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub unsafe fn $name($($arg: $ty),*) {
            // SAFETY: the caller passes addresses that are valid for the instruction. The caller also ensures
            // that all threads that must execute the instruction together do so.
            unsafe { asm!($text, $($arg = in($class) $arg,)* options(nostack)) }
        }
    )* };
}
effects! {
    barrier_init(barrier: reg32 u32, arrivals: reg32 u32): "mbarrier.init.shared::cta.b64 [{barrier}], {arrivals};";
    barrier_init_fence(): "fence.mbarrier_init.release.cluster;";
    barrier_arrive(barrier: reg32 u32): "mbarrier.arrive.shared::cta.b64 _, [{barrier}];";
    barrier_expect(barrier: reg32 u32, bytes: reg32 u32):
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {bytes};";
    shared_store(address: reg32 u32, value: reg32 f32): "st.shared.f32 [{address}], {value};";
    tensor_map_prefetch(map: reg64 u64): "prefetch.tensormap [{map}];";
    fence_async_shared(): "fence.proxy.async.shared::cta;";
    bulk_commit(): "cp.async.bulk.commit_group;";
    bulk_wait_read(): "cp.async.bulk.wait_group.read 0;";
    bulk_wait_write(): "cp.async.bulk.wait_group 0;";
    barrier_arrive_remote(barrier: reg32 u32): "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{barrier}];";
    barrier_arrive_remote_after_wgmma(barrier: reg32 u32): "mbarrier.arrive.release.cta.shared::cluster.b64 _, [{barrier}];";
}

/// Waits until the mbarrier has completed the phase with parity `parity`.
#[inline(always)]
#[allow(named_asm_labels)] // Braces make the label local, so repeated copies do not conflict.
pub unsafe fn barrier_wait(barrier: u32, parity: u32) {
    // SAFETY: the caller passes the address of an initialized mbarrier.
    unsafe {
        asm!(
            "{{ .reg .pred done;",
            "again: mbarrier.try_wait.parity.shared::cta.b64 done, [{barrier}], {parity};",
            "@!done bra again; }}",
            barrier = in(reg32) barrier, parity = in(reg32) parity,
            options(nostack)
        )
    }
}

/// Loads two consecutive f32 values from shared memory. `address` is a multiple of 8.
#[inline(always)]
pub unsafe fn shared_load_pair(address: u32) -> [f32; 2] {
    let (a, b): (f32, f32);
    // SAFETY: the instruction reads 8 bytes at `address`. The caller guarantees that they are in shared
    // memory, and that `address` is a multiple of 8.
    unsafe {
        asm!("ld.shared.v2.f32 {{{}, {}}}, [{}];", out(reg32) a, out(reg32) b, in(reg32) address, options(nostack))
    };
    [a, b]
}

/// Emits an instruction that takes the coordinates of a box, a rectangular part of a tensor. The tensor has
/// `D` dimensions.
macro_rules! of_dimensions {
    ($at:ident: [$before:literal, $after:literal, $end:literal], $($operands:tt)*) => {
        match D {
            1 => asm!(concat!($before, ".1d.", $after, "{{{a}}}", $end), a = in(reg32) $at[0], $($operands)*),
            2 => asm!(concat!($before, ".2d.", $after, "{{{a}, {b}}}", $end),
                a = in(reg32) $at[0], b = in(reg32) $at[1], $($operands)*),
            3 => asm!(concat!($before, ".3d.", $after, "{{{a}, {b}, {c}}}", $end),
                a = in(reg32) $at[0], b = in(reg32) $at[1], c = in(reg32) $at[2], $($operands)*),
            4 => asm!(concat!($before, ".4d.", $after, "{{{a}, {b}, {c}, {d}}}", $end),
                a = in(reg32) $at[0], b = in(reg32) $at[1], c = in(reg32) $at[2], d = in(reg32) $at[3], $($operands)*),
            _ => asm!(concat!($before, ".5d.", $after, "{{{a}, {b}, {c}, {d}, {e}}}", $end),
                a = in(reg32) $at[0], b = in(reg32) $at[1], c = in(reg32) $at[2], d = in(reg32) $at[3],
                e = in(reg32) $at[4], $($operands)*),
        }
    };
}

/// Starts a TMA copy of a box of a tensor to shared memory. The mbarrier at `barrier` counts the bytes that
/// have arrived.
#[inline(always)]
pub unsafe fn tensor_copy<const D: usize>(to: u32, map: u64, at: [u32; D], barrier: u32) {
    // SAFETY: the instruction reads the tensor and writes shared memory. The caller passes valid
    // shared-memory addresses and the address of a valid tensor map.
    unsafe {
        of_dimensions!(
            at: ["cp.async.bulk.tensor", "shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{map}, ", "], [{barrier}];"],
            to = in(reg32) to, map = in(reg64) map, barrier = in(reg32) barrier, options(nostack)
        );
    }
}

/// Starts the same copy as [`tensor_copy`], but to all blocks of the cluster whose bit is set in `blocks`.
/// The box (the copied part of the tensor) arrives at the same offset of each of these blocks. In each block,
/// the mbarrier at the same offset counts the bytes.
#[inline(always)]
pub unsafe fn tensor_multicast<const D: usize>(to: u32, map: u64, at: [u32; D], barrier: u32, blocks: u16) {
    // SAFETY: the instruction writes to the address `to` of each block whose bit is set in `blocks`. The
    // caller guarantees that the addresses are valid in these blocks.
    unsafe {
        of_dimensions!(
            at: [
                "cp.async.bulk.tensor",
                "shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [{to}], [{map}, ",
                "], [{barrier}], {blocks};"
            ],
            to = in(reg32) to, map = in(reg64) map, barrier = in(reg32) barrier, blocks = in(reg16) blocks,
            options(nostack)
        );
    }
}

/// Starts a TMA copy of a box of a tensor from shared memory to global memory.
#[inline(always)]
pub unsafe fn tensor_store<const D: usize>(from: u32, map: u64, at: [u32; D]) {
    // SAFETY: the instruction reads shared memory and writes the tensor. The caller passes valid
    // shared-memory addresses and the address of a valid tensor map.
    unsafe {
        of_dimensions!(
            at: ["cp.async.bulk.tensor", "global.shared::cta.bulk_group [{map}, ", "], [{from}];"],
            from = in(reg32) from, map = in(reg64) map, options(nostack)
        );
    }
}

/// Starts a TMA copy that adds a box in shared memory to a tensor in global memory.
#[inline(always)]
pub unsafe fn tensor_add<const D: usize>(from: u32, map: u64, at: [u32; D]) {
    // SAFETY: the instruction reads shared memory and adds to the tensor. The caller passes valid
    // shared-memory addresses and the address of a valid tensor map.
    unsafe {
        of_dimensions!(
            at: ["cp.reduce.async.bulk.tensor", "global.shared::cta.add.tile.bulk_group [{map}, ", "], [{from}];"],
            from = in(reg32) from, map = in(reg64) map, options(nostack)
        );
    }
}

/// Starts a copy of `bytes` bytes of global memory to shared memory.
#[inline(always)]
pub unsafe fn bulk_copy(to: u32, from: *const u8, bytes: u32, barrier: u32) {
    // SAFETY: the caller passes valid addresses that are multiples of 16.
    unsafe {
        asm!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {bytes}, [{barrier}];",
            to = in(reg32) to, from = in(reg64) from, bytes = in(reg32) bytes, barrier = in(reg32) barrier,
            options(nostack)
        );
    }
}

/// Starts a copy of `bytes` bytes of shared memory to global memory.
#[inline(always)]
pub unsafe fn bulk_store(to: *mut u8, from: u32, bytes: u32) {
    // SAFETY: the caller passes valid addresses that are multiples of 16.
    unsafe {
        asm!(
            "cp.async.bulk.global.shared::cta.bulk_group [{to}], [{from}], {bytes};",
            to = in(reg64) to, from = in(reg32) from, bytes = in(reg32) bytes, options(nostack)
        );
    }
}

/// Starts a copy of `bytes` bytes of shared memory to another block of the cluster.
#[inline(always)]
pub unsafe fn bulk_send(to: u32, from: u32, bytes: u32, barrier: u32) {
    // SAFETY: the caller passes valid addresses that are multiples of 16.
    unsafe {
        asm!(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [{to}], [{from}], {bytes}, [{barrier}];",
            to = in(reg32) to, from = in(reg32) from, bytes = in(reg32) bytes, barrier = in(reg32) barrier,
            options(nostack)
        );
    }
}

/// Returns whether the mbarrier has completed the phase with parity `parity`. The instruction may suspend the
/// thread for a short time before it returns false.
#[inline(always)]
pub unsafe fn barrier_test(barrier: u32, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller passes the address of an initialized mbarrier.
    unsafe {
        asm!(
            "{{ .reg .pred done;",
            "mbarrier.try_wait.parity.shared::cta.b64 done, [{barrier}], {parity};",
            "selp.u32 {done}, 1, 0, done; }}",
            barrier = in(reg32) barrier, parity = in(reg32) parity, done = out(reg32) done,
            options(nostack)
        );
    }
    done != 0
}

/// Stores four 8 x 8 matrices of 16-bit elements to shared memory (`stmatrix`).
///
/// Lane `i` passes the shared-memory address of row `i % 8` of matrix `i / 8`. A row has 16 bytes.
#[inline(always)]
pub unsafe fn store_matrices(address: u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: each lane writes 16 bytes at the address that it passes, which is in shared memory. The caller
    // guarantees that the whole warp executes the instruction.
    unsafe {
        asm!(
            "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [{address}], {{{a}, {b}, {c}, {d}}};",
            address = in(reg32) address,
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(nostack)
        )
    }
}

/// As [`store_matrices`], but stores the transpose of each matrix.
#[inline(always)]
pub unsafe fn store_transposed(address: u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: as in `store_matrices`.
    unsafe {
        asm!(
            "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [{address}], {{{a}, {b}, {c}, {d}}};",
            address = in(reg32) address,
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(nostack)
        )
    }
}

/// Waits until all bulk groups of the calling thread, except at most the last `PENDING` ones, have read their
/// data.
#[inline(always)]
pub unsafe fn bulk_wait_pending<const PENDING: u32>() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { asm!("cp.async.bulk.wait_group.read {};", const PENDING, options(nostack)) }
}

/// Waits until all bulk groups of the calling thread, except at most the last `PENDING` ones, have written
/// their data.
#[inline(always)]
pub unsafe fn bulk_wait_write_pending<const PENDING: u32>() {
    // SAFETY: the instruction affects only the bulk groups of the calling thread.
    unsafe { asm!("cp.async.bulk.wait_group {};", const PENDING, options(nostack)) }
}

/// Returns the address of a tensor map. The CPU executor checks its alignment.
#[inline(always)]
pub fn tensor_map_at(map: u64) -> u64 {
    map
}

/// Returns the generic address of kernel argument `NUMBER`, counted from 0.
///
/// The source code cannot contain the name of the PTX parameter, because LLVM chooses this name. The assembly
/// therefore contains the placeholder `@argument_<NUMBER>`. The crate `cuda_builder` replaces the placeholder
/// by the parameter's name.
#[inline(always)]
pub fn argument<const NUMBER: u32>() -> u64 {
    let address: u64;
    // SAFETY: the instructions only compute an address.
    unsafe {
        asm!("{{ .reg .b64 a; mov.b64 a, @argument_{}; cvta.param.u64 {}, a; }}", const NUMBER, out(reg64) address,
            options(pure, nomem, nostack))
    };
    address
}

/// Converts a generic pointer, which points to shared memory, to a 32-bit shared-memory address.
#[inline(always)]
pub fn shared_address(pointer: *mut u8) -> u32 {
    let address: u32;
    // SAFETY: the instructions only compute an address.
    unsafe {
        asm!("{{ .reg .u64 a; cvta.to.shared.u64 a, {}; cvt.u32.u64 {}, a; }}", in(reg64) pointer, out(reg32) address,
            options(pure, nomem, nostack))
    };
    address
}

// LLVM treats these intrinsics as convergent, unlike inline assembly, and therefore does not copy them into
// branches.
unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    fn barrier_sync(id: u32, threads: u32);
    #[link_name = "llvm.nvvm.barrier.cta.arrive.aligned.count"]
    fn barrier_arrive_only(id: u32, threads: u32);
    #[link_name = "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32"]
    fn setmaxnreg_inc(count: u32);
    #[link_name = "llvm.nvvm.setmaxnreg.dec.sync.aligned.u32"]
    fn setmaxnreg_dec(count: u32);
}

/// Arrives at the named barrier `id`, and waits until `threads` threads have arrived at this barrier.
#[inline(always)]
pub unsafe fn named_sync(id: u32, threads: u32) {
    // SAFETY: the caller ensures that whole warps execute the instruction.
    unsafe { barrier_sync(id, threads) }
}

/// Arrives at the named barrier `id` of `threads` threads.
#[inline(always)]
pub unsafe fn named_arrive(id: u32, threads: u32) {
    // SAFETY: the caller ensures that whole warps execute the instruction.
    unsafe { barrier_arrive_only(id, threads) }
}

/// Raises the register limit of each thread of the warpgroup to `COUNT` (`setmaxnreg.inc`).
#[inline(always)]
pub unsafe fn registers_up<const COUNT: u32>() {
    // SAFETY: the caller ensures that enough registers are free and that the whole warpgroup executes the
    // instruction.
    unsafe { setmaxnreg_inc(COUNT) }
}

/// Lowers the register limit of each thread of the warpgroup to `COUNT` (`setmaxnreg.dec`).
#[inline(always)]
pub unsafe fn registers_down<const COUNT: u32>() {
    // SAFETY: the caller ensures that `COUNT` registers suffice and that the whole warpgroup executes the
    // instruction.
    unsafe { setmaxnreg_dec(COUNT) }
}
