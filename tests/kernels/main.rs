//! Every kernel on every device: `cargo test --test kernels`. A device that this machine lacks is counted as ignored.
mod add_rms_norm;
mod bad_input;
mod gpu;
mod heads;
mod heads_bad_input;
mod properties;
mod qk_norm_rope;
mod rms_norm;
mod rope;
mod rungs;

use libtest_mimic::{Arguments, Trial};
use oxiwarp::Device;
use oxiwarp_tests::devices::candidates;

/// A test of one kernel on one device.
type Test = (&'static str, fn(&Device));

fn main() -> std::process::ExitCode {
    let all = [
        rms_norm::TESTS,
        rungs::TESTS,
        add_rms_norm::TESTS,
        rope::TESTS,
        qk_norm_rope::TESTS,
        bad_input::TESTS,
        heads_bad_input::TESTS,
    ]
    .concat();
    let mut trials: Vec<Trial> = properties::trials();
    for candidate in candidates() {
        let all = if candidate.name == "cpu" { all.clone() } else { [&all[..], gpu::TESTS].concat() };
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
