//! Compiles the kernels to PTX, or takes them from `OXIWARP_PTX_DIR`, packs them and lists them for
//! `src/device/ptx`.
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;
use std::{env, error, fs, process};

use cuda_builder::{Arch, CudaBuilder};

const ARCHS: [Arch; 3] = [Arch::Sm75, Arch::Sm80, Arch::Sm90];
/// What the name of an op ends with that is for Hopper alone.
const HOPPER: &str = "_hopper";
const OPS: &str = "../kernels-gpu/src/ops";
/// How hard to pack, of 10: the next takes three times as long, and a fiftieth less room.
const LEVEL: u8 = 5;

fn main() {
    if let Err(error) = build() {
        println!("cargo::error={error}");
        process::exit(1);
    }
}

fn build() -> Result<(), Box<dyn error::Error>> {
    let (hopper, ops): (Vec<_>, Vec<_>) = ops()?.into_iter().partition(|op| op.ends_with(HOPPER));
    let out_dir = env::var("OUT_DIR")?;
    let build = |archs: &[Arch], ops: &[String]| {
        CudaBuilder::new("../kernels-gpu").archs(archs.iter().copied()).units(ops).locked().build()
    };
    let (common, native) = (build(&ARCHS, &ops)?, build(&[Arch::Sm90a], &hopper)?);
    let all = ARCHS.map(|arch| (arch, &ops, &common)).into_iter().chain([(Arch::Sm90a, &hopper, &native)]);
    // Where an architecture has nothing of its own in an op, the code is that of another, and is there once.
    let (mut codes, mut table) = (Vec::new(), String::new());
    for (arch, ops, built) in all {
        writeln!(table, "(Arch::{arch:?}, &[")?;
        for op in ops {
            let text = fs::read_to_string(built.unit(arch, op).expect("it was asked for"))?;
            let head =
                text.find(".address_size").ok_or_else(|| format!("{arch}/{op}.ptx has no .address_size"))?;
            let (head, code) = text.split_at(head);
            let at = codes.iter().position(|known| known == code).unwrap_or(codes.len());
            if at == codes.len() {
                codes.push(code.to_string());
            }
            writeln!(table, "    ({op:?}, {head:?}, {at}),")?;
        }
        writeln!(table, "]),")?;
    }
    let mut files = String::new();
    for (at, code) in codes.iter().enumerate() {
        let file = Path::new(&out_dir).join(format!("{at}.deflate"));
        fs::write(&file, miniz_oxide::deflate::compress_to_vec(code.as_bytes(), LEVEL))?;
        writeln!(files, "include_bytes!({file:?}),")?;
    }
    fs::write(Path::new(&out_dir).join("ptx.rs"), format!("(&[\n{table}], &[\n{files}])\n"))?;
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
