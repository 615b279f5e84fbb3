//! Runs every kernel test on every device of this machine (CPU executor and GPU): `cargo test --test
//! kernels`.
mod attention;
mod device;
mod elementwise;
mod gemm;
mod heads;
mod loss;
mod norm;
mod support;

use libtest_mimic::{Arguments, Trial};
use oxiwarp_tests::case;
use oxiwarp_tests::devices::candidates;
use support::test::Test;

fn main() -> std::process::ExitCode {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("OXIWARP_EXECUTOR_HOPPER", "1") };
    let families = [norm::TESTS, elementwise::TESTS, heads::TESTS, loss::TESTS, &[device::rungs::TESTS]];
    let all = families.concat().concat();
    // The matrix multiplications need sm_80.
    let on_tensor_cores = [attention::TESTS, gemm::TESTS].concat().concat();
    let mut trials: Vec<Trial> = device::properties::trials();
    for candidate in candidates() {
        let of_device: &[&[Test]] = match candidate.name {
            "cpu" => &[&all, &on_tensor_cores],
            "sm_75" => &[&all, device::gpu::TESTS],
            _ => &[&all, &on_tensor_cores, device::gpu::TESTS, attention::tiles::GPU_TESTS],
        };
        let all = of_device.concat();
        let device = match candidate.device {
            Ok(device) => device,
            Err(reason) => {
                eprintln!("{}: {} tests not run: {reason}", candidate.name, all.len());
                continue;
            }
        };
        trials.extend(all.iter().map(|&(name, test)| {
            let (name, device) = (format!("{}::{name}", candidate.name), device.clone());
            Trial::test(name.clone(), move || {
                case::run(&name, || test(&device));
                Ok(())
            })
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
