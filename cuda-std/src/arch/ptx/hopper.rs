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
    named_sync(id: reg32 u32, threads: reg32 u32): "barrier.cta.sync.aligned {id}, {threads};";
    named_arrive(id: reg32 u32, threads: reg32 u32): "barrier.cta.arrive.aligned {id}, {threads};";
    shared_store(address: reg32 u32, value: reg32 f32): "st.shared.f32 [{address}], {value};";
    tensor_map_prefetch(map: reg64 u64): "prefetch.tensormap [{map}];";
    fence_async_shared(): "fence.proxy.async.shared::cta;";
    bulk_commit(): "cp.async.bulk.commit_group;";
    bulk_wait_read(): "cp.async.bulk.wait_group.read 0;";
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
    // SAFETY: the caller passes the address of 8 bytes in shared memory, and the address is a multiple of 8.
    unsafe {
        asm!("ld.shared.v2.f32 {{{}, {}}}, [{}];", out(reg32) a, out(reg32) b, in(reg32) address, options(nostack))
    };
    [a, b]
}

/// Starts a TMA copy of a box of a 4-dimensional tensor to shared memory. The mbarrier at `barrier` counts
/// the bytes that have arrived.
#[inline(always)]
pub unsafe fn tensor_copy(to: u32, map: u64, [a, b, c, d]: [u32; 4], barrier: u32) {
    // SAFETY: the caller passes valid shared-memory addresses and the address of a valid tensor map.
    unsafe {
        asm!(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{map}, {{{a}, {b}, {c}, {d}}}], [{barrier}];",
            to = in(reg32) to, map = in(reg64) map,
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            barrier = in(reg32) barrier,
            options(nostack)
        )
    }
}

/// Starts a TMA copy of a box of a 4-dimensional tensor from shared memory to global memory.
#[inline(always)]
pub unsafe fn tensor_store(from: u32, map: u64, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the caller passes valid shared-memory addresses and the address of a valid tensor map.
    unsafe {
        asm!(
            "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [{map}, {{{a}, {b}, {c}, {d}}}], [{from}];",
            from = in(reg32) from, map = in(reg64) map,
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(nostack)
        )
    }
}

/// Stores four 8 x 8 matrices of 16-bit elements to shared memory (`stmatrix`).
///
/// Lane `i` passes the shared-memory address of row `i % 8` of matrix `i / 8`. A row has 16 bytes.
#[inline(always)]
pub unsafe fn store_matrices(address: u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: every lane passes the address of 16 bytes in shared memory. The caller ensures that the whole
    // warp executes the instruction.
    unsafe {
        asm!(
            "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [{address}], {{{a}, {b}, {c}, {d}}};",
            address = in(reg32) address,
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(nostack)
        )
    }
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

/// Raises the register limit of each thread of the warpgroup to `COUNT` (`setmaxnreg.inc`).
#[inline(always)]
pub unsafe fn registers_up<const COUNT: u32>() {
    // SAFETY: the caller ensures that enough registers are free and that the whole warpgroup executes the
    // instruction.
    unsafe { asm!("setmaxnreg.inc.sync.aligned.u32 {};", const COUNT, options(nostack)) }
}

/// Lowers the register limit of each thread of the warpgroup to `COUNT` (`setmaxnreg.dec`).
#[inline(always)]
pub unsafe fn registers_down<const COUNT: u32>() {
    // SAFETY: the caller ensures that `COUNT` registers suffice and that the whole warpgroup executes the
    // instruction.
    unsafe { asm!("setmaxnreg.dec.sync.aligned.u32 {};", const COUNT, options(nostack)) }
}
