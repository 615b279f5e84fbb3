//! Loads and stores of global memory, and the base address of dynamic shared memory.
use core::arch::asm;

use crate::base::cache::{Load, Store};

#[inline(always)]
pub fn shared_base() -> *mut u8 {
    // The type argument `u128` makes shared memory start at a multiple of 16 bytes. LLVM infers that this
    // pointer points to shared memory. Plain reads and writes therefore become `ld.shared` and `st.shared`.
    core::intrinsics::gpu::gpu_launch_sized_workgroup_mem::<u128>().cast()
}

/// Does nothing. Only the CPU executor checks accesses to shared memory.
#[inline(always)]
pub fn check_shared(_offset: usize, _bytes: usize) {}

macro_rules! accesses {
    ($($load:ident, $store:ident: $t:ty = $value:ident in $suffix:literal $list:literal, $class:ident
        ($($part:expr => $r:ident: $reg:ty),*) => $join:expr;)*) => { $(
        #[inline(always)]
        pub unsafe fn $load(ptr: *const u8, hint: Load) -> $t {
            $(let $r: $reg;)*
            // SAFETY: the caller passes a valid, aligned address of global memory.
            unsafe {
                match hint {
                    Load::By(policy) if cfg!(target_feature = "sm_90") =>
                        asm!(concat!("ld.global.nc.L2::cache_hint", $suffix, " ", $list, ", [{p}], {policy};"),
                            $($r = out($class) $r,)* p = in(reg64) ptr, policy = in(reg64) policy.0,
                            options(pure, readonly, nostack)),
                    Load::Default => asm!(concat!("ld.global", $suffix, " ", $list, ", [{p}];"),
                        $($r = out($class) $r,)* p = in(reg64) ptr, options(pure, readonly, nostack)),
                    Load::ReadOnly | Load::By(_) => asm!(concat!("ld.global.nc", $suffix, " ", $list, ", [{p}];"),
                        $($r = out($class) $r,)* p = in(reg64) ptr, options(pure, readonly, nostack)),
                    Load::Once => asm!(concat!("ld.global.nc.L1::no_allocate", $suffix, " ", $list, ", [{p}];"),
                        $($r = out($class) $r,)* p = in(reg64) ptr, options(pure, readonly, nostack)),
                }
            }
            $join
        }
        #[inline(always)]
        pub unsafe fn $store(ptr: *mut u8, $value: $t, hint: Store) {
            // SAFETY: the caller passes a valid, aligned address of global memory.
            unsafe {
                match hint {
                    Store::Default => asm!(concat!("st.global", $suffix, " [{p}], ", $list, ";"),
                        $($r = in($class) $part,)* p = in(reg64) ptr, options(nostack)),
                    Store::Streaming => asm!(concat!("st.global.cs", $suffix, " [{p}], ", $list, ";"),
                        $($r = in($class) $part,)* p = in(reg64) ptr, options(nostack)),
                }
            }
        }
    )* };
}
accesses! {
    load_u32x4, store_u32x4: [u32; 4] = v in ".v4.b32" "{{{a}, {b}, {c}, {d}}}", reg32
        (v[0] => a: u32, v[1] => b: u32, v[2] => c: u32, v[3] => d: u32) => [a, b, c, d];
    load_u32x2, store_u32x2: [u32; 2] = v in ".v2.b32" "{{{a}, {b}}}", reg32 (v[0] => a: u32, v[1] => b: u32) => [a, b];
    load_u32, store_u32: u32 = v in ".b32" "{a}", reg32 (v => a: u32) => a;
    load_u8, store_u8: u8 = v in ".b8" "{a}", reg16 (v => a: u8) => a;
    load_u16, store_u16: u16 = v in ".b16" "{a}", reg16 (v => a: u16) => a;
}

/// Resets the eviction priority of the L2 cache line at `ptr` to `evict_normal`. On GPUs before sm_90, the
/// function does nothing.
///
/// # Safety
/// `ptr` is the start of a cache line of readable global memory.
#[inline(always)]
pub unsafe fn l2_demote(ptr: *const u8) {
    if cfg!(target_feature = "sm_90") {
        // SAFETY: the instruction changes no data. The caller passes the start of a readable cache line.
        unsafe { asm!("applypriority.global.L2::evict_normal [{}], 128;", in(reg64) ptr, options(nostack)) };
    }
}
