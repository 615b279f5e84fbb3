//! This build script compiles the GPU kernels to PTX, and embeds the compressed PTX in this library. If the
//! environment variable `OXIWARP_PTX_DIR` names a folder, the script takes prebuilt PTX from this folder
//! instead. The script writes a table of all PTX texts to `OUT_DIR/ptx.rs`. `src/library/embedded.rs`
//! includes this table.
//!
//! The environment variable `OXIWARP_PTX` limits a development build to some architectures or ops. Its value
//! is `none` (compile nothing), or a comma-separated list of architectures and ops. For example,
//! `sm_90,sm_90a` compiles all ops for Hopper, and `softmax` compiles one op for all architectures.
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, error, fs, process, thread};

use cuda_builder::{Arch, Built, CudaBuilder, Error};
use lzma_rust2::{LzmaOptions, LzmaWriter};

const ARCHS: [Arch; 4] = [Arch::Sm75, Arch::Sm80, Arch::Sm90, Arch::Sm90a];
/// Suffix in the names of ops whose kernels run only on Hopper.
const HOPPER: &str = "_hopper";
const OPS: &str = "../kernels-gpu/src/ops";
/// The folder with compiled PTX in a package of this crate.
const PACKAGED: &str = "ptx";
const SELECTION: &str = "OXIWARP_PTX";
/// Name of the environment variable for a folder of prebuilt PTX. The folder has the same structure as
/// `target/ptx`, in which a normal build stores its PTX.
const PREBUILT: &str = "OXIWARP_PTX_DIR";
/// Name of an environment variable. If its value is 1, the build accepts prebuilt PTX even if this PTX was
/// compiled from a different version of the source files.
const STALE: &str = "OXIWARP_PTX_STALE";
/// LZMA compression levels of development builds and release builds. LZMA has the levels 0 to 9. Level 6
/// takes 15 times as long as level 0, and its output is 30 % smaller.
const DEVELOPMENT_LEVEL: u32 = 0;
const RELEASE_LEVEL: u32 = 6;

fn main() {
    if let Err(error) = build() {
        println!("cargo::error={error}");
        process::exit(1);
    }
}

fn build() -> Result<(), Box<dyn error::Error>> {
    // A published package of this crate lacks the sources of the kernels. Instead, the package contains the
    // files that a normal build writes to `OUT_DIR`. If the sources are missing, copy these files to
    // `OUT_DIR`, and compile nothing. `scripts/crates.sh` makes the package.
    if !Path::new(OPS).exists() {
        return Ok(copy(Path::new(PACKAGED), Path::new(&env::var("OUT_DIR")?))?);
    }
    let (archs, ops) = selection(ops()?)?;
    let (hopper, common): (Vec<_>, Vec<_>) = ops.into_iter().partition(|op| op.ends_with(HOPPER));
    let (native, portable): (Vec<_>, Vec<_>) = archs.into_iter().partition(|&arch| arch == Arch::Sm90a);
    let out_dir = env::var("OUT_DIR")?;
    // The PTX texts of one op for several architectures often differ only in their first lines. If the
    // remaining lines of two texts are equal, store these lines only once.
    let (mut codes, mut table) = (Vec::new(), String::new());
    let mut parts = vec![(portable, common), (native, hopper)];
    parts.retain(|(archs, ops)| !archs.is_empty() && !ops.is_empty());
    for ((archs, ops), built) in parts.iter().zip(compile(&parts)) {
        let built = built?;
        for &arch in archs {
            writeln!(table, "(Arch::{arch:?}, &[")?;
            for op in ops {
                let text = fs::read_to_string(built.unit(arch, op).expect("the builder made it"))?;
                let head = text.find(".address_size");
                let head = head.ok_or_else(|| format!("{arch}/{op}.ptx has no .address_size"))?;
                let (head, code) = text.split_at(head);
                let at = codes.iter().position(|known| known == code).unwrap_or(codes.len());
                if at == codes.len() {
                    codes.push(code.to_string());
                }
                writeln!(table, "    ({op:?}, {head:?}, {at}),")?;
            }
            writeln!(table, "]),")?;
        }
    }
    let mut files = String::new();
    for (at, packed) in packed(&codes)?.iter().enumerate() {
        fs::write(Path::new(&out_dir).join(format!("{at}.lzma")), packed)?;
        writeln!(files, "include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{at}.lzma\")),")?;
    }
    fs::write(Path::new(&out_dir).join("ptx.rs"), format!("(&[\n{table}], &[\n{files}])\n"))?;
    Ok(())
}

/// Compresses each text with LZMA, with one thread per CPU core.
fn packed(texts: &[String]) -> std::io::Result<Vec<Vec<u8>>> {
    let level = if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        RELEASE_LEVEL
    } else {
        DEVELOPMENT_LEVEL
    };
    let options = LzmaOptions::with_preset(level);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(text) = texts.get(at)
        {
            let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(text.len() as u64))?;
            writer.write_all(text.as_bytes())?;
            done.push((at, writer.finish()?));
        }
        Ok(done)
    };
    let threads = thread::available_parallelism()?.get();
    let done = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("the encoder does not panic")).collect()
    });
    let done: std::io::Result<Vec<Vec<_>>> = done;
    let mut packed = vec![Vec::new(); texts.len()];
    for (at, bytes) in done?.into_iter().flatten() {
        packed[at] = bytes;
    }
    Ok(packed)
}

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    println!("cargo:rerun-if-changed={}", from.display());
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

/// Compiles kernels in parallel. Each element of `parts` is a list of architectures and a list of ops. The
/// ops of an element are compiled for all architectures of the same element.
fn compile(parts: &[(Vec<Arch>, Vec<String>)]) -> Vec<Result<Built, Error>> {
    let build = |(archs, ops): &(Vec<Arch>, Vec<String>)| {
        let builder = CudaBuilder::new("../kernels-gpu").archs(archs.iter().copied()).units(ops).locked();
        let stale = env::var(STALE).is_ok_and(|value| value == "1");
        match env::var_os(PREBUILT).filter(|folder| !folder.is_empty()) {
            Some(folder) => builder.prebuilt(folder).accept_stale(stale).build(),
            None => builder.build(),
        }
    };
    for variable in [PREBUILT, STALE] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    thread::scope(|scope| {
        let threads: Vec<_> = parts.iter().map(|part| scope.spawn(move || build(part))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the builder does not panic")).collect()
    })
}

/// Returns the architectures and the ops that the environment variable [`SELECTION`] names. If the variable
/// names no architecture, returns all architectures. If the variable names no op, returns all ops. If the
/// value of the variable is `none`, both lists are empty.
fn selection(ops: Vec<String>) -> Result<(Vec<Arch>, Vec<String>), String> {
    println!("cargo:rerun-if-env-changed={SELECTION}");
    let selection = env::var(SELECTION).unwrap_or_default();
    if selection == "none" {
        return Ok((Vec::new(), Vec::new()));
    }
    let names: Vec<&str> = selection.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let is_arch = |name: &&str| ARCHS.iter().any(|arch| arch.name() == *name);
    if let Some(name) = names.iter().find(|name| !is_arch(name) && !ops.iter().any(|op| op == *name)) {
        let archs = ARCHS.map(Arch::name).join(", ");
        return Err(format!("{SELECTION}: {name} is not `none`, an op or one of {archs}"));
    }
    let (named_archs, named_ops): (Vec<&str>, Vec<&str>) = names.into_iter().partition(is_arch);
    let selects = |named: &[&str], name: &str| named.is_empty() || named.contains(&name);
    let archs = ARCHS.into_iter().filter(|arch| selects(&named_archs, arch.name())).collect();
    Ok((archs, ops.into_iter().filter(|op| selects(&named_ops, op)).collect()))
}

/// Returns the names of all ops. Each op has one source file, which is compiled to a separate PTX file.
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
