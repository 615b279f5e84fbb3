//! Every kernel on every device: `cargo test --test kernels`. A device that this machine lacks is counted as ignored.
mod activation;
mod activation_input;
mod ada_norm;
mod ada_norm_bits;
mod add_rms_norm;
mod attention;
mod attention_alignment;
mod attention_backward;
mod attention_case;
mod attention_decode;
mod attention_input;
mod attention_packed;
mod attention_tiles;
mod bad_input;
mod cross_entropy;
mod cross_entropy_backward;
mod gated_activation;
mod gated_forms;
mod gated_residual;
mod gpu;
mod heads;
mod heads_bad_input;
mod heads_empty;
mod heads_kernels;
mod layer_norm;
mod mochi;
mod modulation_input;
mod modulation_overlap;
mod modulations;
mod norm_backward;
mod norm_backward_beside;
mod norm_backward_case;
mod norm_backward_input;
mod properties;
mod qk_norm_rope;
mod rms_norm;
mod rms_norm_gated;
mod rope;
mod rungs;
mod softmax;
mod softmax_backward;

use libtest_mimic::{Arguments, Trial};
use oxiwarp::Device;
use oxiwarp_tests::devices::candidates;

/// A test of one kernel on one device.
type Test = (&'static str, fn(&Device));

fn main() -> std::process::ExitCode {
    let all = [
        rms_norm::TESTS,
        rms_norm_gated::TESTS,
        rungs::TESTS,
        add_rms_norm::TESTS,
        activation::TESTS,
        gated_activation::TESTS,
        activation_input::TESTS,
        bad_input::TESTS,
        heads_bad_input::TESTS,
        heads_empty::TESTS,
        norm_backward::TESTS,
        norm_backward_beside::TESTS,
        norm_backward_input::TESTS,
        softmax::TESTS,
        softmax_backward::TESTS,
        cross_entropy::TESTS,
        cross_entropy_backward::TESTS,
        layer_norm::TESTS,
        ada_norm::TESTS,
        ada_norm_bits::TESTS,
        gated_forms::TESTS,
        gated_residual::TESTS,
        mochi::TESTS,
        modulation_input::TESTS,
        modulation_overlap::TESTS,
        rope::TESTS,
        qk_norm_rope::TESTS,
        heads_kernels::TESTS,
    ]
    .concat();
    // Products of matrices need sm_80.
    let on_tensor_cores = [
        attention::TESTS,
        attention_alignment::TESTS,
        attention_input::TESTS,
        attention_decode::TESTS,
        attention_packed::TESTS,
        attention_backward::TESTS,
        attention_tiles::TESTS,
    ]
    .concat();
    let mut trials: Vec<Trial> = properties::trials();
    for candidate in candidates() {
        let of_device: &[&[Test]] = match candidate.name {
            "cpu" => &[&all, &on_tensor_cores],
            "sm_75" => &[&all, gpu::TESTS],
            _ => &[&all, &on_tensor_cores, gpu::TESTS, attention_tiles::GPU_TESTS],
        };
        let all = of_device.concat();
        if let Err(reason) = &candidate.device {
            eprintln!("{}: {} tests ignored: {reason}", candidate.name, all.len());
        }
        for &(name, test) in &all {
            let device = candidate.device.clone();
            let ignored = device.is_err();
            let run = move || {
                test(&device.expect("ignored without a device"));
                Ok(())
            };
            trials.push(Trial::test(format!("{}::{name}", candidate.name), run).with_ignored_flag(ignored));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
