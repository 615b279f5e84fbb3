//! Every op of `oxiwarp` has a case.
use std::path::Path;

use oxiwarp_benches::cases::{OPS, Op};

/// Suffixes of file names in `host/src/ops` for files that do not define an op. For example, a file
/// `<op>_hopper` contains the Hopper kernels of `<op>`.
const SERVES_ANOTHER: &[&str] = &["_hopper", "_positions"];
/// Ops that only `benches/python/products.py` measures. This crate has operands of 16 bits, and some of their
/// bytes would be NaN as 8-bit floats.
const IN_PYTHON: &[&str] = &["linear_fp8"];

/// The ops by the files of `host/src/ops`.
fn ops_of_the_host() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/src/ops");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let stem = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned()
    };
    let is_op = |name: &String| name != "mod" && !SERVES_ANOTHER.iter().any(|end| name.ends_with(end));
    entries.map(stem).filter(is_op).collect()
}

#[test]
fn every_op_has_a_case() {
    let ops = ops_of_the_host();
    assert!(ops.len() > 20, "{ops:?}");
    let has_case = |name: &str| OPS.iter().any(|op| op.function() == name && !op.cases().is_empty());
    let missing: Vec<_> =
        ops.iter().filter(|name| !has_case(name) && !IN_PYTHON.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "no case in benches/src/cases/ops.rs for {missing:?}");
}

/// Checks that the name of each benchmarked op starts with the name of a file in `host/src/ops`. For example,
/// `ada_norm_pair` is in `ada_norm.rs`.
#[test]
fn every_case_is_of_an_op() {
    let ops = ops_of_the_host();
    for name in OPS.iter().map(Op::function) {
        assert!(ops.iter().any(|op| name.starts_with(op.as_str())), "{name} is no op of host/src/ops");
    }
}
