//! Property tests of `rms_norm` on the CPU executor: random shapes, ranks, strides, base addresses, dtypes
//! and parameters.
use half::{bf16, f16};
use libtest_mimic::Trial;
use oxiwarp::{Device, Element, RmsNorm, Rounding, Stream, rms_norm};
use oxiwarp_tests::case;
use oxiwarp_tests::compare::within_ulps;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::support::rms_norm_case::{AnyWeight, bound, reference, run};
use crate::support::{
    ada_norm_case, add_rms_norm_case, cross_entropy_case, layer_norm_case, modulations, softmax_case,
};

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    shape: [i64; 2],
    layouts: [Layout; 2],
    /// The element of a buffer at which the weight starts, and whether the weight is in f32. `None` if there
    /// is no weight.
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

/// A tensor `[groups, rows, cols]` with a gap of unused elements after each row and each group. If `swapped`
/// is true, the op gets the tensor with its first two dimensions exchanged.
#[derive(Clone, Debug)]
struct Levels {
    seed: u64,
    shape: [i64; 3],
    gaps: [i64; 2],
    swapped: bool,
}

fn levels() -> impl Strategy<Value = Levels> {
    let cols = prop_oneof![1..80_i64, (1..20_i64).prop_map(|packs| packs * 8)];
    let gap = || prop_oneof![Just(0_i64), Just(8), 0..20_i64];
    (any::<u64>(), 0..5_i64, 0..5_i64, cols, gap(), gap(), any::<bool>()).prop_map(
        |(seed, groups, rows, cols, row_gap, group_gap, swapped)| Levels {
            seed,
            shape: [groups, rows, cols],
            gaps: [row_gap, group_gap],
            swapped,
        },
    )
}

fn levels_hold(case: &Levels) {
    let (device, [groups, rows, cols]) = (Device::cpu(), case.shape);
    let row = cols + case.gaps[0];
    let group = rows * row + case.gaps[1];
    let x: Vec<f32> = values(&mut random(case.seed), (groups * group + cols) as usize);
    let (shape, strides) =
        if case.swapped { ([rows, groups, cols], [row, group, 1]) } else { (case.shape, [group, row, 1]) };
    let at = |i: i64, j: i64| (i * strides[0] + j * strides[1]) as usize;
    let inside: Vec<f32> = (0..shape[0])
        .flat_map(|i| (0..shape[1]).flat_map(move |j| at(i, j)..at(i, j) + cols as usize))
        .map(|at| x[at])
        .collect();
    let (from, mut to) = (device.upload(&x).unwrap(), device.alloc::<f32>(inside.len()).unwrap());
    let (view, out) = (from.view_strided(0, &shape, &strides).unwrap(), to.view_mut(&shape).unwrap());
    rms_norm(&device, view, None, out, RmsNorm::default(), Stream::default()).expect("two levels");
    let expected = reference(&wide(&inside), None, cols as usize, RmsNorm::default());
    within_ulps(&to.download().unwrap(), &expected, cols as usize, bound::<f32>());
}

fn add_holds<T: Element>(case: &Case) {
    let rounding = if case.seed % 2 == 0 { Rounding::Once } else { Rounding::BeforeWeight };
    add_rms_norm_case::check::<T>(
        &Device::cpu(),
        case.seed,
        case.shape,
        case.layouts,
        RmsNorm { rounding, ..case.params },
    );
}

fn softmax_holds<T: Element>(case: &Case) {
    softmax_case::check::<T>(&Device::cpu(), case.seed, case.shape, case.layouts);
}

fn cross_entropy_holds<T: Element>(case: &Case) {
    cross_entropy_case::check::<T>(&Device::cpu(), case.seed, case.shape, case.layouts[0]);
}

fn layer_norm_holds<T: Element>(case: &Case) {
    let parameters = layer_norm_case::PARAMETERS[case.seed as usize % layer_norm_case::PARAMETERS.len()];
    let mean = if case.params.weight_offset == 0.0 { 0.0 } else { 100.0 };
    layer_norm_case::check::<T>(&Device::cpu(), case.seed, case.shape, case.layouts, parameters, mean);
}

fn ada_norm_holds<T: Element>(case: &Case) {
    let (forms, [rows, cols]) = (modulations::forms(), case.shape);
    let (operands, params) =
        (forms[case.seed as usize % forms.len()], ada_norm_case::PARAMS[(case.seed >> 32) as usize % 6]);
    let shape = modulations::in_batches(rows, cols);
    ada_norm_case::check::<T>(&Device::cpu(), case.seed, shape, case.layouts, operands, params);
}

fn trial<C: std::fmt::Debug + 'static>(
    name: &str,
    cases: impl Fn() -> BoxedStrategy<C> + Send + 'static,
    holds: fn(&C),
) -> Trial {
    let name = format!("cpu::properties::{name}");
    Trial::test(name.clone(), move || {
        case::run(&name, || {
            let rng_seed = RngSeed::Fixed(case::seed());
            let config = Config { cases: 150, failure_persistence: None, rng_seed, ..Config::default() };
            let property = |case: C| {
                holds(&case);
                Ok(())
            };
            if let Err(failure) = TestRunner::new(config).run(&cases(), property) {
                panic!("{failure}");
            }
        });
        Ok(())
    })
}

pub fn trials() -> Vec<Trial> {
    vec![
        trial("rms_norm_f32", || case().boxed(), holds::<f32>),
        trial("rms_norm_f16", || case().boxed(), holds::<f16>),
        trial("rms_norm_bf16", || case().boxed(), holds::<bf16>),
        trial("add_rms_norm_f32", || case().boxed(), add_holds::<f32>),
        trial("add_rms_norm_bf16", || case().boxed(), add_holds::<bf16>),
        trial("layer_norm_f32", || case().boxed(), layer_norm_holds::<f32>),
        trial("layer_norm_bf16", || case().boxed(), layer_norm_holds::<bf16>),
        trial("ada_norm_f32", || case().boxed(), ada_norm_holds::<f32>),
        trial("ada_norm_f16", || case().boxed(), ada_norm_holds::<f16>),
        trial("ada_norm_bf16", || case().boxed(), ada_norm_holds::<bf16>),
        trial("softmax_f32", || case().boxed(), softmax_holds::<f32>),
        trial("softmax_f16", || case().boxed(), softmax_holds::<f16>),
        trial("cross_entropy_bf16", || case().boxed(), cross_entropy_holds::<bf16>),
        trial("rows_in_two_levels", || levels().boxed(), levels_hold),
    ]
}
