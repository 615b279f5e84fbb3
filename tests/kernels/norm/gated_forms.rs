//! `gated_residual_ada_norm` in the forms that it has kernels for: gate, scale and shift alike, rows of whole tiles.
use half::{bf16, f16};
use oxiwarp::{Device, Element, GatedResidual};
use oxiwarp_tests::tensor::{Layout, random, seed, values};

use super::ada_norm::PARAMS;
use super::gated_residual::{Both, expect_the_two};
use crate::Test;
use crate::support::modulations::Beside;

pub const TESTS: &[Test] = &[
    ("gated_residual_ada_norm::f32_forms", forms::<f32>),
    ("gated_residual_ada_norm::f16_forms", forms::<f16>),
    ("gated_residual_ada_norm::bf16_forms", forms::<bf16>),
];

const FORMS: [Beside; 7] = [
    Beside::USUAL,
    Beside { shift: false, ..Beside::USUAL },
    Beside { table: Some(false), ..Beside::USUAL },
    Beside { single: true, ..Beside::USUAL },
    Beside { parameters: [Some(false); 2], ..Beside::USUAL },
    Beside { parameters: [None, Some(false)], ..Beside::USUAL },
    Beside { single: true, parameters: [Some(true); 2], ..Beside::USUAL },
];

/// The bits of the two ops, in rows of which each is a warp's, and in those that the warps of a block share, in registers
/// or in shared memory.
fn forms<T: Element>(device: &Device) {
    let seed = seed();
    for (i, cols) in [640, 1536, 2048, 2176, 3072, 5120].into_iter().enumerate() {
        for (j, beside) in FORMS.into_iter().enumerate() {
            for params in PARAMS {
                let (random, shape) = (&mut random(seed), [2, 2, cols]);
                let xy = [(); 2].map(|()| values(random, 4 * cols as usize));
                let gate = ((i + j) % 5 != 4).then(|| beside.side::<T>(device, random, shape, 0));
                let by = beside.make::<T>(device, random, shape, 0);
                let residual = GatedResidual { exact: params.exact, clip: false };
                eprintln!("{cols} columns, {beside:?}, {params:?}, OXIWARP_SEED={seed}");
                let layouts = [Layout::dense(cols); 2];
                expect_the_two(device, &Both { xy, gate, by }, shape, layouts, (params, residual));
            }
        }
    }
}
