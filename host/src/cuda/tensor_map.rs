//! Tensor maps: what the copy engine of Hopper and newer GPUs is told of a tensor.
use std::ffi::{c_int, c_void};

use super::sys;
use crate::{Dtype, Result};

/// `CU_TENSOR_MAP_SWIZZLE_128B`, `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`
const SWIZZLE_128: c_int = 3;
const PROMOTION_256: c_int = 3;

/// A `CUtensorMap`: a kernel's argument.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct TensorMap([u64; 16]);

/// A tensor of heads of 16-bit elements as the engine walks it.
#[derive(Clone, Copy)]
pub(crate) struct HeadsMap {
    pub base: *const c_void,
    /// `F16` or `Bf16`.
    pub dtype: Dtype,
    /// Columns, tokens, heads, batches; none is 0.
    pub sizes: [u64; 4],
    /// Bytes from a token, a head and a batch to the next: multiples of 16, less than 2^40.
    pub strides: [u64; 3],
    /// Columns and tokens that come at a time, 64 columns at most: swizzled in shared memory, with zeros for what lies
    /// outside.
    pub part: [u32; 2],
}

impl HeadsMap {
    /// As the driver writes it. Costs a few hundred nanoseconds and asks nothing of the GPU, so that it may stand
    /// in a launch that is captured into a graph.
    pub fn encode(&self) -> Result<TensorMap> {
        let mut map = TensorMap([0; 16]);
        let dtype = if self.dtype == Dtype::Bf16 { 9 } else { 6 };
        let [columns, tokens] = self.part;
        let (part, steps) = ([columns, tokens, 1, 1], [1; 4]);
        // SAFETY: writes the map; the arrays have as many numbers as the rank says.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                (&raw mut map).cast(),
                dtype,
                4,
                self.base,
                self.sizes.as_ptr(),
                self.strides.as_ptr(),
                part.as_ptr(),
                steps.as_ptr(),
                0,
                SWIZZLE_128,
                PROMOTION_256,
                0,
            )
        };
        sys::check("cuTensorMapEncodeTiled", code).map(|()| map)
    }
}
