//! Runs every kernel test on every device: `cargo test --test kernels`. Tests of devices that this machine
//! lacks count as ignored.
mod attention;
mod device;
mod elementwise;
mod heads;
mod loss;
mod norm;
mod support;

use libtest_mimic::{Arguments, Trial};
use oxiwarp_tests::devices::candidates;
use support::test::Test;

fn main() -> std::process::ExitCode {
    let families = [norm::TESTS, elementwise::TESTS, heads::TESTS, loss::TESTS, &[device::rungs::TESTS]];
    let all = families.concat().concat();
    // The matrix multiplications of attention need sm_80.
    let on_tensor_cores = attention::TESTS.concat();
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
