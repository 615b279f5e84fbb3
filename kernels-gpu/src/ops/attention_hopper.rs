//! Attention for Hopper.
use core::arch::asm;
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
unsafe fn attention<K: Shape>(maps: Maps, p: &Params) {
    let layout = Layout::<K>::of_launch();
    // SAFETY: as the caller promises.
    unsafe {
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

macro_rules! argument {
    ($entry:expr, $n:literal) => {{
        let a: u64;
        asm!(concat!("{{ .reg .b64 p; mov.b64 p, ", $entry, "_param_", $n, "; cvta.param.u64 {}, p; }}"), out(reg64) a, options(pure, nomem, nostack));
        Map::at(a)
    }};
}

macro_rules! export {
    ($($name:ident: $T:ident $dim:literal $keys:literal $groups:literal $stages:literal $causal:literal;)*) => { $(
        const _: () = {
            #[unsafe(export_name = concat!(stringify!($name), "_", stringify!($T)))]
            unsafe extern "ptx-kernel" fn entry(_q: TensorMap, _k: TensorMap, _v: TensorMap, p: Params) {
                thread::launch_bounds::<{ 128 * ($groups + 1) }, 1>();
                unsafe {
                    let maps = Maps {
                        q: argument!(concat!(stringify!($name), "_", stringify!($T)), 0),
                        k: argument!(concat!(stringify!($name), "_", stringify!($T)), 1),
                        v: argument!(concat!(stringify!($name), "_", stringify!($T)), 2),
                    };
                    attention::<Kernel<$T, { $keys / 2 }, { $dim / 2 }, { $keys / 16 }, $groups, $stages, $causal>>(maps, &p);
                }
            }
        };
    )* };
}
export! {
    attention_hopper_d128_k128_g2_s2_c0: bf16 128 128 2 2 false;
    attention_hopper_d128_k144_g2_s2_c0: bf16 128 144 2 2 false;
    attention_hopper_d128_k160_g2_s2_c0: bf16 128 160 2 2 false;
    attention_hopper_d128_k176_g2_s2_c0: bf16 128 176 2 2 false;
    attention_hopper_d128_k192_g2_s2_c0: bf16 128 192 2 2 false;
    attention_hopper_d128_k128_g2_s2_c1: bf16 128 128 2 2 true;
    attention_hopper_d128_k144_g2_s2_c1: bf16 128 144 2 2 true;
    attention_hopper_d128_k160_g2_s2_c1: bf16 128 160 2 2 true;
    attention_hopper_d128_k176_g2_s2_c1: bf16 128 176 2 2 true;
    attention_hopper_d64_k128_g3_s2_c0: bf16 64 128 3 2 false;
    attention_hopper_d64_k128_g3_s4_c0: bf16 64 128 3 4 false;
    attention_hopper_d64_k112_g3_s4_c0: bf16 64 112 3 4 false;
    attention_hopper_d64_k128_g2_s4_c0: bf16 64 128 2 4 false;
    attention_hopper_d64_k160_g2_s3_c0: bf16 64 160 2 3 false;
    attention_hopper_d64_k192_g2_s3_c0: bf16 64 192 2 3 false;
    attention_hopper_d64_k224_g2_s2_c0: bf16 64 224 2 2 false;
    attention_hopper_d64_k128_g3_s4_c1: bf16 64 128 3 4 true;
}
