//! Attention for Hopper (sm_90a only): `out = softmax(scale * q kᵀ + mask) v`.
//!
//! A block has one producer warpgroup, which loads tiles, and two or three consumer warpgroups, which compute
//! 64 queries each. Scores, softmax and accumulators are f32. The probabilities P are rounded to the element
//! type before the PV multiplication. The result is rounded once. `docs/internals/attention.md` describes the
//! design and the measurements.
//!
//! For each head dimension, there are kernels with these suffixes:
//!
//! - No suffix: each query attends to all keys.
//! - `_causal`: query `i` attends to the keys up to `i + diagonal`.
//! - `_padded`: a mask excludes keys, for example padding. There is no such kernel for head dimensions above
//!   128.
//! - `_even`: tiles of 128 keys instead of 144. The host uses this kernel if tiles of 128 keys leave fewer
//!   rows of the last tile empty.
#![cfg(target_feature = "sm_90a")]

use cuda_std::hopper::tensor_map::{Map, TensorMap};
use cuda_std::hopper::{give_registers, take_registers, warp_group};
use cuda_std::prelude::*;

use crate::attention::hopper::consumer::consume;
use crate::attention::hopper::layout::Layout;
use crate::attention::hopper::params::HopperParams;
use crate::attention::hopper::producer::{Maps, produce_keys, produce_masks, produce_values};
use crate::attention::hopper::shape::{Kernel64, Kernel96, Kernel128, Kernel128Even, Kernel256, Shape};

/// # Safety
/// The host created the tensor maps and `p` for this launch. The host launches the block size and the shared
/// memory that the layout of `K` needs.
#[inline(always)]
unsafe fn attention<K: Shape>(p: &HopperParams) {
    if K::GROUPS == 2 {
        thread::launch_bounds::<384, 1>()
    } else {
        thread::launch_bounds::<512, 1>()
    }
    let layout = Layout::<K>::of_launch();
    // SAFETY: the first four kernel arguments are the tensor maps that the host created, and the shared
    // memory fits `layout`.
    unsafe {
        let maps = Maps { q: Map::argument::<0>(), k: Map::argument::<1>(), v: Map::argument::<2>() };
        let out = Map::argument::<3>();
        layout.make_barriers();
        let group = warp_group();
        if group == 0 {
            if K::GROUPS == 2 {
                give_registers::<24>()
            } else {
                give_registers::<32>()
            }
            match thread::index()[0] {
                0 => produce_keys::<K>(layout, maps, p),
                32 => produce_values::<K>(layout, maps, p),
                96 if K::STAGED => out.prefetch(),
                64..96 if K::PADDED => produce_masks::<K>(layout, p),
                _ => {}
            }
        } else {
            if K::GROUPS == 2 {
                take_registers::<240>()
            } else {
                take_registers::<160>()
            }
            consume::<K>(layout, group - 1, out, p);
        }
    }
}

entry! {
    attention_hopper_d64_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel64<T, false, false>>(&p);
    attention_hopper_d64_causal_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel64<T, true, false>>(&p);
    attention_hopper_d64_padded_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel64<T, false, true>>(&p);
    attention_hopper_d96_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel96<T, false, false>>(&p);
    attention_hopper_d96_causal_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel96<T, true, false>>(&p);
    attention_hopper_d96_padded_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel96<T, false, true>>(&p);
    attention_hopper_d128_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128<T, false, false>>(&p);
    attention_hopper_d128_causal_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128<T, true, false>>(&p);
    attention_hopper_d128_padded_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128<T, false, true>>(&p);
    attention_hopper_d128_even_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128Even<T, false, false>>(&p);
    attention_hopper_d128_even_causal_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128Even<T, true, false>>(&p);
    attention_hopper_d128_even_padded_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel128Even<T, false, true>>(&p);
    attention_hopper_d256_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel256<T, false, false>>(&p);
    attention_hopper_d256_causal_smem<T: [f16, bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, _out: TensorMap, p: HopperParams) =>
        attention::<Kernel256<T, true, false>>(&p)
}
