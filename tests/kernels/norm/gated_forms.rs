//! Tests `gated_residual_ada_norm` with operands for which specialised kernels exist: gate, scale and shift
//! have the same shape and strides. A row consists of whole tiles of 128 columns.
use half::{bf16, f16};
use oxiwarp::{Device, Element, GatedResidual};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::tensor::{Layout, random, values};

use super::gated_residual::{Both, expect_the_two};
use crate::support::ada_norm_case::PARAMS;
use crate::support::modulations::ModulationCase;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("gated_residual_ada_norm::f32_forms", forms::<f32>),
    ("gated_residual_ada_norm::f16_forms", forms::<f16>),
    ("gated_residual_ada_norm::bf16_forms", forms::<bf16>),
];

const FORMS: [ModulationCase; 7] = [
    ModulationCase::USUAL,
    ModulationCase { shift: false, ..ModulationCase::USUAL },
    ModulationCase { table: Some(false), ..ModulationCase::USUAL },
    ModulationCase { single: true, ..ModulationCase::USUAL },
    ModulationCase { parameters: [Some(false); 2], ..ModulationCase::USUAL },
    ModulationCase { parameters: [None, Some(false)], ..ModulationCase::USUAL },
    ModulationCase { single: true, parameters: [Some(true); 2], ..ModulationCase::USUAL },
];

/// Checks that the op gives the same bits as `gated_residual` followed by `ada_norm`. The kernels process a
/// short row with one warp, and a longer row with a thread block. A longer row stays in registers or in
/// shared memory between the passes.
fn forms<T: Element>(device: &Device) {
    let seed = seed();
    for (i, cols) in [640, 1536, 2048, 2176, 3072, 5120].into_iter().enumerate() {
        for (j, operands) in FORMS.into_iter().enumerate() {
            for params in PARAMS {
                let (random, shape) = (&mut random(seed), [2, 2, cols]);
                let xy = [(); 2].map(|()| values(random, 4 * cols as usize));
                let gate = ((i + j) % 5 != 4).then(|| operands.side::<T>(device, random, shape, 0));
                let by = operands.make::<T>(device, random, shape, 0);
                let residual = GatedResidual { exact: params.exact, clip: false };
                case!("{cols} columns, {operands:?}, {params:?}");
                let layouts = [Layout::dense(cols); 2];
                expect_the_two(device, &Both { xy, gate, by }, shape, layouts, (params, residual));
            }
        }
    }
}
