//! Compiles the kernels to PTX, or takes them from `OXIWARP_PTX_DIR`, and lists them for `src/ptx.rs`.
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;
use std::{env, error, fs, process};

use cuda_builder::{Arch, CudaBuilder};

const ARCHS: [Arch; 3] = [Arch::Sm75, Arch::Sm80, Arch::Sm90];
const OPS: &str = "../kernels-gpu/src/ops";

fn main() {
    if let Err(error) = build() {
        println!("cargo::error={error}");
        process::exit(1);
    }
}

fn build() -> Result<(), Box<dyn error::Error>> {
    let ops = ops()?;
    let built = CudaBuilder::new("../kernels-gpu").archs(ARCHS).units(&ops).build()?;
    let mut table = String::new();
    for arch in ARCHS {
        writeln!(table, "(Arch::{arch:?}, &[")?;
        for op in &ops {
            let path = built.unit(arch, op).expect("it was asked for");
            writeln!(table, "    ({op:?}, include_str!({path:?})),")?;
        }
        writeln!(table, "]),")?;
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("ptx.rs"), format!("&[\n{table}]\n"))?;
    Ok(())
}

/// Every op, by its file: each is a unit of its own.
fn ops() -> std::io::Result<Vec<String>> {
    println!("cargo:rerun-if-changed={OPS}");
    let files = fs::read_dir(OPS)?.collect::<Result<Vec<_>, _>>()?;
    let paths =
        files.iter().map(fs::DirEntry::path).filter(|path| path.extension() == Some(OsStr::new("rs")));
    let mut ops: Vec<_> = paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_string())).collect();
    ops.retain(|op| op != "mod");
    ops.sort();
    Ok(ops)
}
