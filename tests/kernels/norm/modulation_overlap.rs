//! Tests that the norms of diffusion transformers reject outputs that overlap an operand or another output,
//! or whose own elements overlap.
use oxiwarp::{Device, View, ViewMut};

use super::modulation_input::{Inputs, OPS, SHAPE};
use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[("modulations::overlap", overlap)];

/// Makes a writable view of the memory of `view`. The tests pass it as an output and check that the op
/// rejects it.
fn on<'a>(view: View<'a>, shape: &[i64], strides: &[i64]) -> ViewMut<'a> {
    // SAFETY: the writable view covers memory of the buffer of `view`, which is alive. The op rejects an
    // output that overlaps another tensor before it accesses the memory.
    unsafe { ViewMut::from_raw(view.ptr().cast_mut(), view.dtype(), shape, strides) }.expect("a shape")
}

/// Tests each output of each op in three ways. The output overlaps an operand, or it overlaps the op's other
/// output, or its own elements overlap (stride 0).
fn overlap(device: &Device) {
    let memory = device.upload(&[2.0_f32; 256]).unwrap();
    let inputs = Inputs::of(&memory);
    for (op, args, outs) in OPS {
        for (which, out) in outs.into_iter().enumerate().filter(|(_, out)| !out.is_empty()) {
            let run = |inputs: Inputs, view: ViewMut, text: &str| {
                let mut fresh = device.alloc::<f32>(96).unwrap();
                let fresh = fresh.view_mut(&SHAPE).unwrap();
                let outs = if which == 0 { [view, fresh] } else { [fresh, view] };
                says(inputs.run(device, op, outs), &format!("{op}: {text}"));
            };
            for &arg in args.iter().chain(&["x"]) {
                let victim = device.upload(&[2.0_f32; 96]).unwrap();
                let vector = ["weight", "bias", "scale_table", "gate_table"].contains(&arg);
                let view = victim.view(if vector { &[16] } else { &SHAPE }).unwrap();
                run(inputs.with(arg, view), on(view, &SHAPE, &[48, 16, 1]), &format!("{out} overlaps {arg}"));
                assert!(
                    victim.download().unwrap().iter().all(|value| *value == 2.0),
                    "something was written"
                );
            }
            let own = device.upload(&[2.0_f32; 96]).unwrap();
            let repeated = on(own.view(&[96]).unwrap(), &SHAPE, &[16, 0, 1]);
            run(
                inputs,
                repeated,
                &format!("{out} of shape [2, 3, 16] has strides [16, 0, 1]: an output must not"),
            );
        }
        if outs[1].is_empty() {
            continue;
        }
        let both = device.upload(&[2.0_f32; 192]).unwrap();
        let at = |start| on(both.view_strided(start, &[96], &[1]).unwrap(), &SHAPE, &[48, 16, 1]);
        let text = format!("{op}: {} overlaps {}", outs[0], outs[1]);
        says(inputs.run(device, op, [at(0), at(90)]), &text);
        assert!(both.download().unwrap().iter().all(|value| *value == 2.0), "something was written");
        inputs.run(device, op, [at(0), at(96)]).expect("side by side is fine");
    }
}
