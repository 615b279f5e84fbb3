//! Definitions of the CUDA driver functions. Each function is one indirect jump to the driver's own function.
//! The jump reads its target address from a static variable, the function's slot.
//!
//! The list at the end of the file has every symbol that the crate `cust` 0.3.2 references, plus the symbols
//! that `host/src/device/cuda/sys.rs` declares. A jump leaves arguments and return value in place. One macro
//! can therefore define functions of every signature.

use std::ffi::{CStr, c_void};
use std::sync::atomic::AtomicPtr;

use crate::unloaded;

/// A function's name and the slot from which its jump reads the address.
pub(crate) type Slot = (&'static CStr, &'static AtomicPtr<c_void>);

/// Assembler directive that makes a symbol invisible to the other libraries of the process. For example,
/// torch still calls the `cuInit` of `libcuda.so.1`, not the `cuInit` of this crate.
macro_rules! hidden {
    ($name:ident) => {
        concat!(".hidden ", stringify!($name))
    };
}
pub(crate) use hidden;

macro_rules! entry_points {
    ($($name:ident)*) => {
        mod slot {
            #![allow(non_upper_case_globals)]
            use super::*;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(unloaded as *mut c_void);)*
        }

        /// The slots of all functions below.
        pub(crate) static SLOTS: &[Slot] = &[$((as_c(concat!(stringify!($name), "\0")), &slot::$name)),*];

        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(hidden!($name), "jmp qword ptr [rip + {}]", sym slot::$name);
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    hidden!($name), "adrp x16, {0}", "ldr x16, [x16, :lo12:{0}]", "br x16", sym slot::$name
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
    cuLaunchKernel
    cuLaunchKernelEx
    cuLinkAddData_v2
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
    cuTensorMapEncodeTiled
    cuTexObjectCreate
    cuTexObjectDestroy
    cuTexObjectGetResourceDesc
    cuTexObjectGetResourceViewDesc
    cuThreadExchangeStreamCaptureMode
}
