//! Tensor maps (`CUtensorMap`). A tensor map is a descriptor of a tensor in global memory. The TMA unit of
//! Hopper and newer GPUs reads this descriptor.
use std::ffi::{c_int, c_void};

use cuda_std::cpu::{Swizzle, TensorMapElement, TensorMapShape};
use cuda_std::tensor_map::TensorMap;

use super::gpu::Gpu;
use super::raw;
use crate::{Dtype, Error, Result};

/// `CU_TENSOR_MAP_DATA_TYPE_FLOAT16` and `…_BFLOAT16`
const F16: c_int = 6;
const BF16: c_int = 9;
/// `CU_TENSOR_MAP_SWIZZLE_128B` and `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`
const SWIZZLE_128: c_int = 3;
const PROMOTION_256: c_int = 3;

/// A buffer for a tensor map, with the alignment that the driver requires.
#[repr(C, align(64))]
struct Aligned([u64; 16]);

/// The properties of an attention tensor (queries, keys, values or output) from which a tensor map is made.
/// The elements have 16 bits.
#[derive(Clone, Copy)]
pub struct HeadsMap {
    /// Address of the first element.
    pub base: *const c_void,
    /// `F16` or `Bf16`.
    pub dtype: Dtype,
    /// Number of columns, tokens, heads and batches. No number is 0.
    pub sizes: [u64; 4],
    /// Strides in bytes between tokens, heads and batches. Each stride must be a multiple of 16 and less than
    /// 2^40.
    pub strides: [u64; 3],
    /// Size of the tile that one TMA copy moves: number of columns (at most 64), and number of tokens. In
    /// shared memory, the tile has the 128-byte swizzle. Tile elements outside of the tensor are filled with
    /// zeros.
    pub part: [u32; 2],
}

/// Makes the tensor map for the CPU executor.
pub(crate) fn for_executor(heads: &HeadsMap) -> Result<TensorMap> {
    let element = if heads.dtype == Dtype::Bf16 { TensorMapElement::Bf16 } else { TensorMapElement::F16 };
    let [columns, tokens] = heads.part;
    let shape = TensorMapShape {
        base: heads.base.cast(),
        element,
        sizes: heads.sizes.to_vec(),
        strides: heads.strides.to_vec(),
        tile: vec![columns, tokens, 1, 1],
        swizzle: Swizzle::B128,
        nan_outside: false,
    };
    shape.encode().map_err(|why| Error::Unsupported { op: "Device::tensor_map", why })
}

/// Encodes the tensor map with `cuTensorMapEncodeTiled`.
pub(crate) fn encode(gpu: &Gpu, heads: &HeadsMap) -> Result<TensorMap> {
    let _current = gpu.current()?;
    let mut map = Aligned([0; 16]);
    let dtype = if heads.dtype == Dtype::Bf16 { BF16 } else { F16 };
    let [columns, tokens] = heads.part;
    let (part, steps) = ([columns, tokens, 1, 1], [1; 4]);
    let (sizes, strides) = (heads.sizes.as_ptr(), heads.strides.as_ptr());
    let (interleave, fill) = (0, 0);
    // SAFETY: the driver writes only to `map`. For a tensor of rank 4, the driver reads 3 values of
    // `strides`, and 4 values of each other array. The arrays have these lengths.
    let code = unsafe {
        raw::cuTensorMapEncodeTiled(
            (&raw mut map).cast(),
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
    raw::check("cuTensorMapEncodeTiled", code).map(|()| TensorMap(map.0))
}
