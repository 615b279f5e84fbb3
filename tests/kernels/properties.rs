//! Random shapes, strides, bases, dtypes and parameters, on the executor.
use half::{bf16, f16};
use libtest_mimic::Trial;
use oxiwarp::{Device, Element, RmsNorm};
use oxiwarp_tests::compare::within_ulps;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::rms_norm::{AnyWeight, bound, reference, run};

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    shape: [i64; 2],
    layouts: [Layout; 2],
    /// Offset of the weight in its buffer, and is it f32?
    weight: Option<(usize, bool)>,
    params: RmsNorm,
}

fn case() -> impl Strategy<Value = Case> {
    let cols = prop_oneof![1..40_i64, 1..1200_i64, (1..300_i64).prop_map(|packs| packs * 8)];
    let gaps = prop_oneof![Just(0_i64), Just(8), 1..20_i64];
    let layout = (prop_oneof![Just(0_usize), Just(8), 0..9_usize], gaps);
    let weight = proptest::option::of((prop_oneof![Just(0_usize), 0..9_usize], any::<bool>()));
    let params = (prop_oneof![Just(0.0_f32), Just(1.0)], prop_oneof![Just(1e-6_f32), Just(1e-2)]);
    (any::<u64>(), 0..12_i64, cols, layout.clone(), layout, weight, params).prop_map(
        |(seed, rows, cols, x, y, weight, (weight_offset, eps))| {
            let layout = |(offset, gap): (usize, i64)| Layout { offset, stride: cols + gap };
            let params = RmsNorm { eps, weight_offset, ..RmsNorm::default() };
            Case { seed, shape: [rows, cols], layouts: [layout(x), layout(y)], weight, params }
        },
    )
}

fn holds<T: Element>(case: &Case) {
    let (device, random, cols) = (Device::cpu(), &mut random(case.seed), case.shape[1] as usize);
    let x: Vec<T> = values(random, case.shape[0] as usize * cols);
    let (mut wide_weight, mut weight) = (None, None);
    if let Some((offset, single)) = case.weight {
        let layout = Layout { offset, ..Layout::dense(cols as i64) };
        if single {
            let values: Vec<f32> = values(random, cols);
            wide_weight = Some(wide(&values));
            weight = Some(AnyWeight::F32(Matrix::upload(&device, &values, [1, cols as i64], layout)));
        } else {
            let values: Vec<T> = values(random, cols);
            wide_weight = Some(wide(&values));
            weight = Some(AnyWeight::Same(Matrix::upload(&device, &values, [1, cols as i64], layout)));
        }
    }
    let got = run(&device, &x, weight.as_ref(), case.shape, case.layouts, case.params);
    within_ulps(&got, &reference(&wide(&x), wide_weight.as_deref(), cols, case.params), cols, bound::<T>());
}

fn trial<T: Element>(name: &str) -> Trial {
    Trial::test(format!("cpu::rms_norm::{name}_property"), || {
        let config = Config { cases: 150, failure_persistence: None, ..Config::default() };
        let property = |case: Case| {
            holds::<T>(&case);
            Ok(())
        };
        TestRunner::new(config).run(&case(), property).map_err(|failure| failure.to_string().into())
    })
}

pub fn trials() -> Vec<Trial> {
    vec![trial::<f32>("f32"), trial::<f16>("f16"), trial::<bf16>("bf16")]
}
