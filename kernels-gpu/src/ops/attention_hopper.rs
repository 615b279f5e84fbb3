//! Attention for Hopper.
use cuda_std::hopper::tensor_map::{Map, TensorMap};
use cuda_std::hopper::{give_registers, take_registers, warp_group};
use cuda_std::prelude::*;

use crate::hopper::Params;
use crate::hopper::consumer::consume;
use crate::hopper::layout::Layout;
use crate::hopper::producer::{Maps, produce_keys, produce_values};
use crate::hopper::shape::{Kernel, Shape};

/// # Safety
/// The host made the maps and `p`, and launches the block and the shared memory that the layout needs.
#[inline(always)]
unsafe fn attention<K: Shape>(p: &Params) {
    if K::GROUPS == 2 { thread::launch_bounds::<384, 1>() } else { thread::launch_bounds::<512, 1>() }
    let layout = Layout::<K>::of_launch();
    // SAFETY: as the caller promises.
    unsafe {
        let maps = Maps { q: Map::argument::<0>(), k: Map::argument::<1>(), v: Map::argument::<2>() };
        layout.make_barriers();
        let group = warp_group();
        if group == 0 {
            if K::GROUPS == 2 { give_registers::<24>() } else { give_registers::<32>() }
            match thread::index()[0] {
                0 => produce_keys::<K>(layout, maps, p),
                32 => produce_values::<K>(layout, maps, p),
                _ => {}
            }
        } else {
            if K::GROUPS == 2 { take_registers::<240>() } else { take_registers::<160>() }
            consume::<K>(layout, group - 1, p);
        }
    }
}

entry! {
    attention_hopper_d128_k128_g2_s2_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 64, 64, 8, 2, 2, false>>(&p);
    attention_hopper_d128_k144_g2_s2_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 72, 64, 9, 2, 2, false>>(&p);
    attention_hopper_d128_k160_g2_s2_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 80, 64, 10, 2, 2, false>>(&p);
    attention_hopper_d128_k176_g2_s2_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 88, 64, 11, 2, 2, false>>(&p);
    attention_hopper_d128_k192_g2_s2_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 96, 64, 12, 2, 2, false>>(&p);
    attention_hopper_d128_k96_g3_s2_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 48, 64, 6, 3, 2, false>>(&p);
    attention_hopper_d128_k96_g3_s3_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 48, 64, 6, 3, 3, false>>(&p);
    attention_hopper_d128_k112_g3_s2_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 56, 64, 7, 3, 2, false>>(&p);
    attention_hopper_d128_k128_g2_s2_c1<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 64, 64, 8, 2, 2, true>>(&p);
    attention_hopper_d128_k144_g2_s2_c1<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 72, 64, 9, 2, 2, true>>(&p);
    attention_hopper_d128_k160_g2_s2_c1<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 80, 64, 10, 2, 2, true>>(&p);
    attention_hopper_d128_k96_g3_s2_c1<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 48, 64, 6, 3, 2, true>>(&p);
    attention_hopper_d64_k128_g3_s2_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 64, 32, 8, 3, 2, false>>(&p);
    attention_hopper_d64_k128_g3_s3_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 64, 32, 8, 3, 3, false>>(&p);
    attention_hopper_d64_k128_g3_s4_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 64, 32, 8, 3, 4, false>>(&p);
    attention_hopper_d64_k112_g3_s4_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 56, 32, 7, 3, 4, false>>(&p);
    attention_hopper_d64_k112_g3_s2_c0<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 56, 32, 7, 3, 2, false>>(&p);
    attention_hopper_d64_k128_g3_s2_c1<T: [bf16]>(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) => attention::<Kernel<T, 64, 32, 8, 3, 2, true>>(&p)
}
