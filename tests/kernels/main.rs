//! Every kernel on every device: `cargo test --test kernels`. A device that this machine lacks is counted as ignored.
mod attention;
mod device;
mod elementwise;
mod heads;
mod loss;
mod norm;
mod support;

use libtest_mimic::{Arguments, Trial};
use oxiwarp::Device;
use oxiwarp_tests::devices::candidates;

/// A test of one kernel on one device.
type Test = (&'static str, fn(&Device));

fn main() -> std::process::ExitCode {
    let all = [
        norm::rms_norm::TESTS,
        norm::rms_norm_gated::TESTS,
        device::rungs::TESTS,
        norm::add_rms_norm::TESTS,
        elementwise::activation::TESTS,
        elementwise::gated_activation::TESTS,
        elementwise::activation_input::TESTS,
        norm::bad_input::TESTS,
        heads::bad_input::TESTS,
        heads::empty::TESTS,
        norm::norm_backward::TESTS,
        norm::norm_backward_multi_row::TESTS,
        norm::norm_backward_input::TESTS,
        loss::softmax::TESTS,
        loss::softmax_backward::TESTS,
        loss::cross_entropy::TESTS,
        loss::cross_entropy_backward::TESTS,
        norm::layer_norm::TESTS,
        norm::ada_norm::TESTS,
        norm::ada_norm_bits::TESTS,
        norm::gated_forms::TESTS,
        norm::gated_residual::TESTS,
        norm::mochi::TESTS,
        norm::modulation_input::TESTS,
        norm::modulation_overlap::TESTS,
        heads::rope::TESTS,
        heads::qk_norm_rope::TESTS,
        heads::kernels::TESTS,
    ]
    .concat();
    // Products of matrices need sm_80.
    let on_tensor_cores = [
        attention::forward::TESTS,
        attention::alignment::TESTS,
        attention::input::TESTS,
        attention::decode::TESTS,
        attention::packed::TESTS,
        attention::backward::TESTS,
        attention::tiles::TESTS,
    ]
    .concat();
    let mut trials: Vec<Trial> = device::properties::trials();
    for candidate in candidates() {
        let of_device: &[&[Test]] = match candidate.name {
            "cpu" => &[&all, &on_tensor_cores],
            "sm_75" => &[&all, device::gpu::TESTS],
            _ => &[&all, &on_tensor_cores, device::gpu::TESTS, attention::tiles::GPU_TESTS],
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
