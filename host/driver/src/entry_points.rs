//! Defines functions with the names of the CUDA driver functions. Each defined function has a slot, which is
//! a static variable with the address of the driver's own function. The defined function calls the address in
//! its slot. If the result is an error, the defined function passes the error code through [`known_code`].
//!
//! The list at the end of the file has every symbol that the crate `cust` 0.3.2 references, plus the symbols
//! that `host/runtime/src/cuda/raw.rs` declares. The defined functions are written in assembler. They leave
//! the argument registers unchanged, and copy only the arguments on the stack. One macro can therefore define
//! functions of every signature.

use std::ffi::{CStr, c_void};
use std::sync::atomic::AtomicPtr;

use crate::codes::{CuResult, NOT_INITIALIZED, NOT_SUPPORTED, known_code};

/// Name of a driver function, and its slot (a static variable with the address to call).
pub(crate) type Slot = (&'static CStr, &'static AtomicPtr<c_void>);

/// This function is called instead of a driver function as long as the driver library is not open. Every slot
/// (a variable with the address to call) initially contains the address of this function.
extern "C" fn unloaded() -> CuResult {
    NOT_INITIALIZED
}

/// This function is called instead of a driver function that the open driver library lacks.
pub(crate) extern "C" fn unsupported() -> CuResult {
    NOT_SUPPORTED
}

/// Assembler directive that makes a symbol invisible to the other libraries of the process. Without this
/// directive, torch could call the `cuInit` of this crate instead of the `cuInit` of `libcuda.so.1`.
macro_rules! hidden {
    ($name:ident) => {
        concat!(".hidden ", stringify!($name))
    };
}
pub(crate) use hidden;

/// Assembler template of a function whose arguments are all in registers.
#[cfg(target_arch = "x86_64")]
macro_rules! call {
    ($name:ident) => {
        concat!(
            ".hidden ",
            stringify!($name),
            "
            sub rsp, 8
            call qword ptr [rip + {slot}]
            add rsp, 8
            test eax, eax
            jne 2f
            ret
            2:
            mov edi, eax
            jmp {known_code}"
        )
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! call {
    ($name:ident) => {
        concat!(
            ".hidden ",
            stringify!($name),
            "
            stp x29, x30, [sp, #-16]!
            mov x29, sp
            adrp x16, {slot}
            ldr x16, [x16, :lo12:{slot}]
            blr x16
            ldp x29, x30, [sp], #16
            cbnz w0, 2f
            ret
            2:
            b {known_code}"
        )
    };
}

/// Assembler template of a function that passes up to 12 arguments on to the driver's own function. The
/// caller passes the first arguments in registers and the others on the stack. The template leaves the
/// argument registers unchanged, and copies the arguments on the stack to the top of the stack. The driver's
/// function expects these arguments there. At most 6 arguments are on the stack on x86-64, and at most 4 on
/// aarch64.
#[cfg(target_arch = "x86_64")]
macro_rules! call_with_stack {
    ($name:ident) => {
        concat!(
            ".hidden ",
            stringify!($name),
            "
            sub rsp, 56
            mov rax, [rsp + 64]
            mov [rsp], rax
            mov rax, [rsp + 72]
            mov [rsp + 8], rax
            mov rax, [rsp + 80]
            mov [rsp + 16], rax
            mov rax, [rsp + 88]
            mov [rsp + 24], rax
            mov rax, [rsp + 96]
            mov [rsp + 32], rax
            mov rax, [rsp + 104]
            mov [rsp + 40], rax
            call qword ptr [rip + {slot}]
            add rsp, 56
            test eax, eax
            jne 2f
            ret
            2:
            mov edi, eax
            jmp {known_code}"
        )
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! call_with_stack {
    ($name:ident) => {
        concat!(
            ".hidden ",
            stringify!($name),
            "
            sub sp, sp, #48
            stp x29, x30, [sp, #32]
            add x29, sp, #32
            ldp x16, x17, [sp, #48]
            stp x16, x17, [sp]
            ldp x16, x17, [sp, #64]
            stp x16, x17, [sp, #16]
            adrp x16, {slot}
            ldr x16, [x16, :lo12:{slot}]
            blr x16
            ldp x29, x30, [sp, #32]
            add sp, sp, #48
            cbnz w0, 2f
            ret
            2:
            b {known_code}"
        )
    };
}

macro_rules! entry_points {
    ($call:ident: $($name:ident)*; $call_with_stack:ident: $($long:ident)*) => {
        mod slot {
            #![allow(non_upper_case_globals)]
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(unloaded as *mut c_void);)*
            $(pub(super) static $long: AtomicPtr<c_void> = AtomicPtr::new(unloaded as *mut c_void);)*
        }

        /// The slots (variables with the address to call) of all functions that this file defines.
        pub(crate) static SLOTS: &[Slot] = &[
            $((as_c(concat!(stringify!($name), "\0")), &slot::$name),)*
            $((as_c(concat!(stringify!($long), "\0")), &slot::$long),)*
        ];

        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $name() {
                core::arch::naked_asm!($call!($name), slot = sym slot::$name, known_code = sym known_code);
            }
        )*
        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $long() {
                core::arch::naked_asm!(
                    $call_with_stack!($long), slot = sym slot::$long, known_code = sym known_code
                );
            }
        )*
    };
}

const fn as_c(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("the macro adds the one NUL"),
    }
}

entry_points! {
    call:
    cuArray3DCreate_v2
    cuArray3DGetDescriptor_v2
    cuArrayDestroy
    cuCtxCreate_v2
    cuCtxDestroy_v2
    cuCtxGetApiVersion
    cuCtxGetCacheConfig
    cuCtxGetCurrent
    cuCtxGetDevice
    cuCtxGetFlags
    cuCtxGetLimit
    cuCtxGetSharedMemConfig
    cuCtxGetStreamPriorityRange
    cuCtxPopCurrent_v2
    cuCtxPushCurrent_v2
    cuCtxSetCacheConfig
    cuCtxSetCurrent
    cuCtxSetLimit
    cuCtxSetSharedMemConfig
    cuCtxSynchronize
    cuDestroyExternalMemory
    cuDeviceGet
    cuDeviceGetAttribute
    cuDeviceGetCount
    cuDeviceGetName
    cuDeviceGetPCIBusId
    cuDeviceGetUuid
    cuDevicePrimaryCtxGetState
    cuDevicePrimaryCtxRelease_v2
    cuDevicePrimaryCtxReset_v2
    cuDevicePrimaryCtxRetain
    cuDevicePrimaryCtxSetFlags_v2
    cuDeviceTotalMem_v2
    cuDriverGetVersion
    cuEventCreate
    cuEventDestroy_v2
    cuEventElapsedTime
    cuEventQuery
    cuEventRecord
    cuEventSynchronize
    cuExternalMemoryGetMappedBuffer
    cuFuncGetAttribute
    cuFuncSetAttribute
    cuFuncSetCacheConfig
    cuFuncSetSharedMemConfig
    cuGetErrorName
    cuGetProcAddress
    cuGraphAddKernelNode
    cuGraphCreate
    cuGraphDebugDotPrint
    cuGraphDestroy
    cuGraphExecDestroy
    cuGraphGetEdges
    cuGraphGetNodes
    cuGraphInstantiateWithFlags
    cuGraphKernelNodeGetParams
    cuGraphLaunch
    cuGraphNodeGetType
    cuImportExternalMemory
    cuLaunchHostFunc
    cuLaunchKernelEx
    cuLinkComplete
    cuLinkCreate_v2
    cuLinkDestroy
    cuMemAdvise
    cuMemAllocAsync
    cuMemAllocHost_v2
    cuMemAllocManaged
    cuMemAlloc_v2
    cuMemFreeAsync
    cuMemFreeHost
    cuMemFree_v2
    cuMemGetInfo_v2
    cuMemPrefetchAsync
    cuMemcpy2D_v2
    cuMemcpyAtoH_v2
    cuMemcpyDtoDAsync_v2
    cuMemcpyDtoD_v2
    cuMemcpyDtoHAsync_v2
    cuMemcpyDtoH_v2
    cuMemcpyHtoA_v2
    cuMemcpyHtoDAsync_v2
    cuMemcpyHtoD_v2
    cuMemsetD16Async
    cuMemsetD16_v2
    cuMemsetD32Async
    cuMemsetD32_v2
    cuMemsetD8Async
    cuMemsetD8_v2
    cuModuleGetFunction
    cuModuleGetGlobal_v2
    cuModuleLoad
    cuModuleLoadData
    cuModuleLoadDataEx
    cuModuleUnload
    cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxPotentialBlockSize
    cuPointerGetAttribute
    cuStreamBeginCapture_v2
    cuStreamCreateWithPriority
    cuStreamDestroy_v2
    cuStreamEndCapture
    cuStreamGetFlags
    cuStreamGetPriority
    cuStreamIsCapturing
    cuStreamQuery
    cuStreamSynchronize
    cuStreamWaitEvent
    cuSurfObjectCreate
    cuSurfObjectDestroy
    cuSurfObjectGetResourceDesc
    cuTexObjectCreate
    cuTexObjectDestroy
    cuTexObjectGetResourceDesc
    cuTexObjectGetResourceViewDesc
    cuThreadExchangeStreamCaptureMode
    ;
    call_with_stack:
    cuLaunchKernel
    cuLinkAddData_v2
    cuTensorMapEncodeTiled
}
