//! The exit codes of `bench` on a machine without a GPU.
use std::process::{Command, Output};

/// Runs `bench` with no GPU visible.
fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(arguments).env("CUDA_VISIBLE_DEVICES", "").output().expect("the program runs")
}

#[test]
fn without_a_gpu_one_line_says_what_is_missing() {
    let output = bench(&["--op", "rope"]);
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    assert!(text.starts_with("bench: ") && output.stdout.is_empty(), "{text}");
}

#[test]
fn wrong_arguments_and_files_have_another_code() {
    for arguments in [&["--op", "rms"][..], &["--compare", "no-such-file.csv"], &["--filter", "no such part"]]
    {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn cases_are_listed_without_a_gpu() {
    let output = bench(&["--list", "--op", "layer_norm", "--filter", "4608x640"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!((output.status.code(), text.as_str()), (Some(0), "layer_norm/4608x640\t11799040 bytes\n"));
}
