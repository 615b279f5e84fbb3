//! Attention for Hopper (sm_90a only): `out = softmax(scale * q kᵀ + mask) v`.
//!
//! A block has one producer warpgroup, which loads tiles, and two or three consumer warpgroups. Each consumer
//! warpgroup computes attention for 64 queries. Scores, softmax and accumulators are f32. The probabilities P
//! are rounded to the element type before the PV multiplication. The result is rounded once.
//! `docs/internals/attention.md` describes the design and the measurements.
//!
//! For each head dimension, there are kernels with these suffixes:
//!
//! - No suffix: each query attends to all keys.
//! - `_causal`: query `i` attends to the keys up to `i + diagonal`.
//! - `_padded`: a mask excludes keys, for example padding. There is no `_padded` kernel for head dimensions
//!   above 128.
//! - `_even`: the key tiles have 128 keys instead of 144 (only for head dimension 128). Tiles of 144 keys
//!   take less time per key. However, the last tile wastes time on keys that do not exist, and with tiles of
//!   128 keys there may be fewer of them. The host uses an `_even` kernel only if this reduces the total
//!   time.
use cuda_std::entry;
use cuda_std::tensor_map::TensorMap;
use half::{bf16, f16};

#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::attention::hopper::kernel::attention;
use crate::attention::hopper::params::HopperParams;
#[cfg(not(target_arch = "nvptx64"))]
use crate::attention::hopper::params::{D64, D96, D128, D128_EVEN, D256};
#[cfg(any(target_feature = "sm_90a", not(target_arch = "nvptx64")))]
use crate::attention::hopper::shape::{Kernel64, Kernel96, Kernel128, Kernel128Even, Kernel256};

entry! {
    @shared(|_block| D64.shared_bytes())
    @only(sm_90a) attention_hopper_d64_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel64<T, false, false>>(&p);
    @shared(|_block| D64.shared_bytes())
    @only(sm_90a) attention_hopper_d64_causal_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel64<T, true, false>>(&p);
    @shared(|_block| D64.shared_bytes())
    @only(sm_90a) attention_hopper_d64_padded_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel64<T, false, true>>(&p);
    @shared(|_block| D96.shared_bytes())
    @only(sm_90a) attention_hopper_d96_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel96<T, false, false>>(&p);
    @shared(|_block| D96.shared_bytes())
    @only(sm_90a) attention_hopper_d96_causal_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel96<T, true, false>>(&p);
    @shared(|_block| D96.shared_bytes())
    @only(sm_90a) attention_hopper_d96_padded_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel96<T, false, true>>(&p);
    @shared(|_block| D128.shared_bytes())
    @only(sm_90a) attention_hopper_d128_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128<T, false, false>>(&p);
    @shared(|_block| D128.shared_bytes())
    @only(sm_90a) attention_hopper_d128_causal_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128<T, true, false>>(&p);
    @shared(|_block| D128.shared_bytes())
    @only(sm_90a) attention_hopper_d128_padded_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128<T, false, true>>(&p);
    @shared(|_block| D128_EVEN.shared_bytes())
    @only(sm_90a) attention_hopper_d128_even_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128Even<T, false, false>>(&p);
    @shared(|_block| D128_EVEN.shared_bytes())
    @only(sm_90a) attention_hopper_d128_even_causal_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128Even<T, true, false>>(&p);
    @shared(|_block| D128_EVEN.shared_bytes())
    @only(sm_90a) attention_hopper_d128_even_padded_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128Even<T, false, true>>(&p);
    @shared(|_block| D256.shared_bytes())
    @only(sm_90a) attention_hopper_d256_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel256<T, false, false>>(&p);
    @shared(|_block| D256.shared_bytes())
    @only(sm_90a) attention_hopper_d256_causal_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel256<T, true, false>>(&p)
}
