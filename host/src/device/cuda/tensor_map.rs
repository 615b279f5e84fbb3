//! Tensor maps: what the copy engine of Hopper and newer GPUs is told of a tensor.
use std::ffi::{c_int, c_void};

use super::{Cuda, sys};
use crate::{Dtype, Result};

/// `CU_TENSOR_MAP_DATA_TYPE_FLOAT16` and `…_BFLOAT16`
const F16: c_int = 6;
const BF16: c_int = 9;
/// `CU_TENSOR_MAP_SWIZZLE_128B` and `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`
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

impl Cuda {
    /// The map as the driver writes it. It asks nothing of the GPU, so it may stand beside a launch that is captured.
    pub fn tensor_map(&self, heads: &HeadsMap) -> Result<TensorMap> {
        let _current = self.current()?;
        let mut map = TensorMap([0; 16]);
        let dtype = if heads.dtype == Dtype::Bf16 { BF16 } else { F16 };
        let [columns, tokens] = heads.part;
        let (part, steps) = ([columns, tokens, 1, 1], [1; 4]);
        let (sizes, strides) = (heads.sizes.as_ptr(), heads.strides.as_ptr());
        // SAFETY: writes the map; the arrays have as many numbers as the rank says, the strides one less.
        let code = unsafe {
            let map = (&raw mut map).cast();
            let (interleave, fill) = (0, 0);
            sys::cuTensorMapEncodeTiled(
                map,
                dtype,
                4,
                heads.base,
                sizes,
                strides,
                part.as_ptr(),
                steps.as_ptr(),
                interleave,
                SWIZZLE_128,
                PROMOTION_256,
                fill,
            )
        };
        sys::check("cuTensorMapEncodeTiled", code).map(|()| map)
    }
}
