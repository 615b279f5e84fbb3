//! Tests arguments that the norms of diffusion transformers reject, and the error texts. A rejected call must
//! write nothing, and the device must still work.
use half::bf16;
use oxiwarp::{
    AdaNorm, Affine, Buffer, Device, Error, GatedResidual, Modulation, ScaleShift, Stream, View, ViewMut,
    ada_norm, ada_norm_pair, gated_residual, gated_residual_ada_norm, layer_norm, norm_gated_residual,
    residual_tanh_gated_rms_norm, residual_tanh_gated_rms_norm_modulated,
};

use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("modulations::bad_operands", bad_operands),
    ("modulations::bad_rows", bad_rows),
    ("modulations::bad_eps", bad_eps),
    ("modulations::zero_rows", zero_rows),
];

/// The inputs of the ops in `OPS`. Each op uses only some of these inputs. By default, all inputs are
/// views of the same buffer.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    x: View<'a>,
    y: View<'a>,
    affine: Affine<'a>,
    scale: Modulation<'a>,
    shift: Option<Modulation<'a>>,
    scale2: Modulation<'a>,
    shift2: Option<Modulation<'a>>,
    gate: Modulation<'a>,
    eps: f32,
}

impl<'a> Inputs<'a> {
    /// Makes all inputs as views of `memory`. The shape of rows is `[2, 3, 16]`. Scales, shifts and gates
    /// have the shape `[2, 1, 16]`, and weights, biases and tables `[16]`.
    pub fn of(memory: &'a Buffer<f32>) -> Self {
        let view = |shape: &[i64]| memory.view(shape).expect("inside");
        let (x, by): (_, Modulation) = (view(&[2, 3, 16]), view(&[2, 1, 16]).into());
        let affine = Affine { weight: Some(view(&[16])), bias: Some(view(&[16])) };
        let (shift, table) = (Some(by), Some(view(&[16])));
        let scale = Modulation { table, ..by };
        Self { x, y: x, affine, scale, shift, scale2: by, shift2: shift, gate: scale, eps: 1e-6 }
    }

    /// Runs the op named `op` with the outputs `out` and `sum`. An op with only one output writes it to
    /// `out`.
    pub fn run(&self, device: &Device, op: &str, [out, sum]: [ViewMut; 2]) -> Result<(), Error> {
        let (stream, affine) = (Stream::default(), self.affine);
        let by = ScaleShift { scale: self.scale, shift: self.shift };
        let by2 = ScaleShift { scale: self.scale2, shift: self.shift2 };
        let (params, residual) = (AdaNorm { eps: self.eps, ..AdaNorm::default() }, GatedResidual::default());
        let (x, y, gate, outs) = (self.x, self.y, self.gate, [out, sum]);
        match op {
            "layer_norm" => {
                let [out, _] = outs;
                layer_norm(device, x, affine, out, self.eps, stream)
            }
            "ada_norm" => {
                let [out, _] = outs;
                ada_norm(device, x, by, affine, None, out, params, stream)
            }
            "ada_norm_pair" => ada_norm_pair(device, x, [by, by2], affine, outs, params, stream),
            "gated_residual" => {
                let [out, _] = outs;
                gated_residual(device, x, y, gate, None, out, residual, stream)
            }
            "gated_residual_ada_norm" => {
                let params = (params, residual);
                gated_residual_ada_norm(device, [x, y], Some(gate), by, affine, None, outs, params, stream)
            }
            "norm_gated_residual" => {
                let [out, _] = outs;
                norm_gated_residual(device, [x, y], Some(gate.value), affine, out, params, stream)
            }
            "residual_tanh_gated_rms_norm" => {
                let [out, _] = outs;
                residual_tanh_gated_rms_norm(device, [x, y], gate.value, out, self.eps, stream)
            }
            _ => residual_tanh_gated_rms_norm_modulated(
                device,
                [x, y],
                gate.value,
                self.scale,
                outs,
                self.eps,
                stream,
            ),
        }
    }
}

/// For each op: its name, the names of its inputs except `x`, and the names of its outputs. The second output
/// is `""` for an op with one output.
pub const OPS: [(&str, &[&str], [&str; 2]); 8] = [
    ("layer_norm", &["weight", "bias"], ["out", ""]),
    ("ada_norm", &["scale", "shift", "scale_table", "weight", "bias"], ["out", ""]),
    (
        "ada_norm_pair",
        &["scale", "shift", "scale2", "shift2", "scale_table", "weight", "bias"],
        ["out", "out2"],
    ),
    ("gated_residual", &["y", "gate", "gate_table"], ["out", ""]),
    (
        "gated_residual_ada_norm",
        &["y", "gate", "gate_table", "scale", "shift", "scale_table", "weight", "bias"],
        ["out", "sum"],
    ),
    ("norm_gated_residual", &["y", "gate", "weight", "bias"], ["out", ""]),
    ("residual_tanh_gated_rms_norm", &["x_res", "gate"], ["out", ""]),
    ("residual_tanh_gated_rms_norm_modulated", &["x_res", "gate", "scale", "scale_table"], ["normed", "out"]),
];

impl<'a> Inputs<'a> {
    /// Replaces the view of `arg`.
    pub fn with(mut self, arg: &str, view: View<'a>) -> Self {
        match arg {
            "x" => self.x = view,
            "y" | "x_res" => self.y = view,
            "weight" => self.affine.weight = Some(view),
            "bias" => self.affine.bias = Some(view),
            "scale" => self.scale.value = view,
            "scale_table" => self.scale.table = Some(view),
            "shift" => self.shift = Some(view.into()),
            "scale2" => self.scale2 = view.into(),
            "shift2" => self.shift2 = Some(view.into()),
            "gate" => self.gate.value = view,
            "gate_table" => self.gate.table = Some(view),
            other => panic!("no argument {other}"),
        }
        self
    }
}

/// Calls the op with new outputs of shape `shape`. Asserts that the call fails with an error that contains
/// `text`, and that it writes nothing.
#[track_caller]
fn refuses(device: &Device, op: &str, inputs: Inputs, shape: &[i64], text: &str) {
    let mut memory = [(); 2].map(|()| device.alloc::<f32>(256).expect("device memory"));
    let outs = memory.each_mut().map(|out| out.view_mut(shape).expect("inside"));
    says(inputs.run(device, op, outs), text);
    for out in memory {
        assert!(out.download().expect("nothing ran").iter().all(|y| y.is_nan()), "something was written");
    }
}

pub const SHAPE: [i64; 3] = [2, 3, 16];

fn bad_operands(device: &Device) {
    let (memory, integers) = (device.upload(&[1.0_f32; 256]).unwrap(), device.upload(&[1_i32; 256]).unwrap());
    let view = |shape: &[i64]| memory.view(shape).unwrap();
    let inputs = Inputs::of(&memory);
    for (op, args, _) in OPS {
        let other = |shape: &[i64]| integers.view(shape).unwrap();
        let dtypes = "is i32, expected f32, f16 or bf16";
        for &arg in args {
            let refuses = |view: View, text: &str| {
                refuses(device, op, inputs.with(arg, view), &SHAPE, &format!("{op}: {arg} {text}"));
            };
            let every_other = memory.view_strided(0, &[16], &[2]).unwrap();
            if ["y", "x_res"].contains(&arg) {
                refuses(view(&[2, 3, 8]), "has shape [2, 3, 8], expected [2, 3, 16]");
                refuses(other(&SHAPE), dtypes);
            } else if ["weight", "bias", "scale_table", "gate_table"].contains(&arg) {
                refuses(view(&[8]), "has shape [8], expected [16]");
                refuses(view(&[1, 16]), "has shape [1, 16], expected [16]");
                refuses(other(&[16]), dtypes);
                refuses(every_other, "of shape [16] has strides [2]: it must be contiguous");
            } else {
                refuses(
                    view(&[3, 1, 16]),
                    "has shape [3, 1, 16], expected one that broadcasts to [2, 3, 16]",
                );
                refuses(view(&[1, 2, 3, 16]), "has shape [1, 2, 3, 16], expected one that broadcasts to");
                refuses(view(&[8]), "has shape [8], expected one that broadcasts to [2, 3, 16]");
                // Without a table, the operand may have one column, or no dimension.
                if args.contains(&format!("{arg}_table").as_str()) {
                    refuses(view(&[2, 1, 1]), "has shape [2, 1, 1], expected a last dimension of 16");
                    refuses(view(&[]), "has shape [], expected a last dimension of 16");
                }
                refuses(other(&[16]), dtypes);
                refuses(every_other, "of shape [2, 3, 16] has strides [0, 0, 2]: its last dimension must be");
            }
        }
        broadcasts_between(device, op, args, &memory);
        let outs = [(); 2].map(|()| device.alloc::<f32>(96).unwrap());
        let [mut out, mut sum] = outs;
        inputs
            .run(device, op, [out.view_mut(&SHAPE).unwrap(), sum.view_mut(&SHAPE).unwrap()])
            .expect("it still works");
    }
}

/// Tests scales, shifts and gates that an op rejects for an `x` of shape `[2, 2, 3, 16]`. If such an operand
/// broadcasts in dimensions before the last, these dimensions must be all at the start or all at the end.
/// `[2, 1, 3, 16]` broadcasts in the middle, and `[1, 2, 1, 16]` at both ends, so both shapes are errors.
fn broadcasts_between(device: &Device, op: &str, args: &[&str], memory: &Buffer<f32>) {
    let (shape, inputs) = ([2, 2, 3, 16], Inputs::of(memory));
    let view = |shape: &[i64]| memory.view(shape).unwrap();
    let of_rows = |arg: &&&str| !["weight", "bias", "scale_table", "gate_table"].contains(*arg);
    // All other operands have valid shapes.
    let rows = args.iter().filter(of_rows).fold(inputs, |inputs, arg| match *arg {
        "y" | "x_res" => inputs.with(arg, view(&shape)),
        _ => inputs.with(arg, view(&[16])),
    });
    let inputs = Inputs { x: view(&shape), ..rows };
    for arg in args.iter().filter(of_rows).filter(|arg| !["y", "x_res"].contains(*arg)) {
        for own in [&[2, 1, 3, 16][..], &[1, 2, 1, 16], &[2, 1, 16]] {
            let expected = "expected one that broadcasts to [2, 2, 3, 16] in its first or in its last leading dimensions, \
                            not between or both: use .expand(2, 2, 3, 16).contiguous()";
            let text = format!("{op}: {arg} has shape {own:?}, {expected}");
            refuses(device, op, inputs.with(arg, view(own)), &shape, &text);
        }
    }
}

/// Tests the error messages for an invalid `x` and for an invalid output. The message must name the invalid
/// argument.
fn bad_rows(device: &Device) {
    let (memory, brain) =
        (device.upload(&[1.0_f32; 256]).unwrap(), device.upload(&[bf16::ONE; 256]).unwrap());
    let (inputs, integers) = (Inputs::of(&memory), device.upload(&[1_i32; 256]).unwrap());
    let view = |shape: &[i64], strides: &[i64]| memory.view_strided(0, shape, strides).unwrap();
    for (op, args, outs) in OPS {
        // Give the shape `[16]` to every operand except the rows. The last dimension of `x` has size 16, so
        // this shape is valid for an `x` with any number of dimensions.
        let vectors = args.iter().filter(|arg| !["y", "x_res"].contains(arg));
        let inputs = vectors.fold(inputs, |inputs, arg| inputs.with(arg, view(&[16], &[1])));
        let refuses = |x: View, shape: &[i64], text: &str| {
            let inputs = Inputs { x, y: x, ..inputs };
            refuses(device, op, inputs, shape, &format!("{op}: {text}"));
        };
        refuses(view(&[4, 0], &[0, 1]), &[4, 0], "x has shape [4, 0], expected a last dimension between 1");
        refuses(integers.view(&SHAPE).unwrap(), &SHAPE, "x is i32, expected f32, f16 or bf16");
        refuses(view(&[], &[]), &[], "x has shape [], expected at least one dimension");
        let text = "x of shape [16, 16] has strides [1, 16]: its last dimension must be contiguous";
        refuses(view(&[16, 16], &[1, 16]), &[16, 16], text);
        let text = "x of shape [2, 2, 2, 16] has strides [3, 25, 17, 1]: two strides must reach all its rows";
        refuses(view(&[2, 2, 2, 16], &[3, 25, 17, 1]), &[2, 2, 2, 16], text);
        let out = outs[0];
        refuses(
            view(&SHAPE, &[48, 16, 1]),
            &[6, 16],
            &format!("{out} has shape [6, 16], expected [2, 3, 16]"),
        );
        refuses(brain.view(&SHAPE).unwrap(), &SHAPE, &format!("{out} is f32, expected bf16"));
    }
}

fn bad_eps(device: &Device) {
    let memory = device.upload(&[1.0_f32; 256]).unwrap();
    for (op, ..) in OPS.iter().filter(|(op, ..)| *op != "gated_residual") {
        for eps in [-1e-6, f32::NAN, f32::NEG_INFINITY, f32::INFINITY] {
            let inputs = Inputs { eps, ..Inputs::of(&memory) };
            refuses(device, op, inputs, &SHAPE, &format!("{op}: eps is"));
        }
        refuses(
            device,
            op,
            Inputs { eps: -1.0, ..Inputs::of(&memory) },
            &SHAPE,
            "eps is -1, expected a finite number of 0 or more",
        );
    }
}

fn zero_rows(device: &Device) {
    let memory = device.upload(&[1.0_f32; 256]).unwrap();
    let view = |shape: &[i64]| memory.view(shape).unwrap();
    for (op, args, _) in OPS {
        for shape in [[0, 3, 16], [2, 0, 16]] {
            let mut inputs = Inputs { x: view(&shape), y: view(&shape), ..Inputs::of(&memory) };
            for arg in args.iter().filter(|arg| ["scale", "shift", "scale2", "shift2", "gate"].contains(arg))
            {
                inputs = inputs.with(arg, view(&[shape[0], 1, 16]));
            }
            let mut memory = [(); 2].map(|()| device.alloc::<f32>(16).unwrap());
            let outs = memory.each_mut().map(|out| out.view_mut(&shape).unwrap());
            inputs.run(device, op, outs).expect("nothing to do");
            assert!(memory.iter().all(|out| out.download().unwrap().iter().all(|y| y.is_nan())));
        }
    }
}
