//! Tests the bits of the results of `modulate`. The host computes the expected values with the same roundings
//! as the op.
use half::{bf16, f16};
use oxiwarp::{Device, Element, Stream, View, ViewMut, modulate};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::operand::{Form, Side};
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values};

use crate::support::modulations::{ModulationCase, forms, in_batches};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("modulate::f32_table", table::<f32>),
    ("modulate::f16_table", table::<f16>),
    ("modulate::bf16_table", table::<bf16>),
    ("modulate::f32_layouts", layouts::<f32>),
    ("modulate::bf16_layouts", layouts::<bf16>),
    ("modulate::bf16_shift_of_another_dtype", mixed::<bf16>),
    ("modulate::bad_input", refuses),
];

/// Returns all combinations of shape and dtype of a scale, each with a shift and without one.
fn plain() -> Vec<ModulationCase> {
    let plain = |case: &ModulationCase| case.table.is_none() && case.parameters == [None; 2];
    forms().into_iter().filter(plain).collect()
}

fn check<T: Element>(
    device: &Device,
    [batch, tokens, cols]: [i64; 3],
    [read, write]: [Layout; 2],
    (scale, shift): (&Side<T>, Option<&Side<T>>),
) {
    let rows = [batch * tokens, cols];
    let x: Vec<T> = values(&mut random(seed()), (rows[0] * cols) as usize);
    let single = scale.is_f32() || shift.is_some_and(Side::is_f32);
    for exact in [true, false] {
        let input = Matrix::upload(device, &x, rows, read);
        let mut y = Matrix::<T>::poisoned(device, rows, write);
        let by = (scale.view().value, shift.map(|shift| shift.view().value));
        let out = y.view_batches_mut(batch);
        modulate(device, input.view_batches(batch), by.0, by.1, None, out, exact, Stream::default())
            .expect("valid");
        let round = |value: f32| if exact && !single { T::from_f32(value).to_f32() } else { value };
        let one = |at: usize| {
            let product = round(x[at].to_f32() * round(1.0 + scale.at(at)));
            T::from_f32(shift.map_or(product, |shift| product + shift.at(at)))
        };
        same_bits(&y.download(), &(0..x.len()).map(one).collect::<Vec<_>>());
    }
}

fn make<T: Element>(device: &Device, operands: &ModulationCase, shape: [i64; 3], layouts: [Layout; 2]) {
    let random = &mut random(seed());
    let side = |random: &mut _| operands.side::<T>(device, random, shape, layouts[0].offset);
    let (scale, shift) = (side(random), operands.shift.then(|| side(random)));
    check(device, shape, layouts, (&scale, shift.as_ref()));
}

fn table<T: Element>(device: &Device) {
    let all = plain();
    for (i, shape) in shapes().into_iter().enumerate() {
        for operands in all.iter().cycle().skip(i * 7).take(if shape.cols > 300 { 2 } else { all.len() }) {
            case!("{} x {} ({}), {operands:?}", shape.rows, shape.cols, shape.why);
            let dense = [Layout::dense(shape.cols); 2];
            make::<T>(device, operands, in_batches(shape.rows, shape.cols), dense);
        }
    }
}

fn layouts<T: Element>(device: &Device) {
    for cols in [1, 64, 129, 640] {
        let dense = Layout::dense(cols);
        let (gaps, odd) = (Layout { offset: 16, stride: cols + 64 }, Layout { offset: 1, stride: cols + 3 });
        for operands in plain() {
            for layouts in [[gaps; 2], [odd; 2], [odd, dense], [dense, odd]] {
                case!("{cols} columns, {layouts:?}, {operands:?}");
                make::<T>(device, &operands, [2, 3, cols], layouts);
            }
        }
    }
}

/// Tests a scale and a shift of different dtypes and shapes.
fn mixed<T: Element>(device: &Device) {
    let (random, shape) = (&mut random(seed()), [2, 3, 136]);
    for single in [false, true] {
        let of = |form, single| ModulationCase { form, single, ..ModulationCase::USUAL };
        let scale = of(Form::Batch, single).side::<T>(device, random, shape, 0);
        let shift = of(Form::Token, !single).side::<T>(device, random, shape, 1);
        check(device, shape, [Layout::dense(136); 2], (&scale, Some(&shift)));
    }
}

fn refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 24]).unwrap();
    let integers = device.upload(&[1_i32; 24]).unwrap();
    let mut y = device.alloc::<f32>(24).unwrap();
    let of = |shape: &[i64]| x.view(shape).unwrap();
    {
        let mut says = |scale: View, shift: Option<View>, shape: &[i64], text: &str| {
            let out = y.view_mut(shape).unwrap();
            let result = modulate(device, of(&[3, 8]), scale, shift, None, out, true, Stream::default());
            let error = result.expect_err(text).to_string();
            assert!(error.contains(text), "the error is: {error}\nexpected in it: {text}");
        };
        says(of(&[2, 8]), None, &[3, 8], "modulate: scale has shape [2, 8], expected one that broadcasts");
        says(of(&[3, 2]), None, &[3, 8], "modulate: scale has shape [3, 2], expected one that broadcasts");
        says(of(&[8]), Some(of(&[4])), &[3, 8], "modulate: shift has shape [4], expected");
        says(
            integers.view(&[8]).unwrap(),
            None,
            &[3, 8],
            "modulate: scale is i32, expected f32, f16 or bf16",
        );
        says(of(&[8]), None, &[8, 3], "modulate: out has shape [8, 3], expected [3, 8]");
    }
    let same = of(&[3, 8]);
    // SAFETY: this writable view covers the memory of `x`, which is alive. The op rejects the overlap before
    // it accesses the memory.
    let on_x = unsafe { ViewMut::from_raw(same.ptr().cast_mut(), same.dtype(), &[3, 8], &[8, 1]) }.unwrap();
    let error =
        modulate(device, same, of(&[8]), None, None, on_x, true, Stream::default()).expect_err("overlap");
    assert!(error.to_string().contains("modulate: out overlaps x"), "{error}");
    assert!(y.download().unwrap().iter().all(|y| y.is_nan()), "something was written");
}
