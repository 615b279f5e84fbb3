//! The PTX of some units of a device crate for one architecture, copied into a folder: seconds, where all of it takes
//! minutes. To read what an edit does, or, into a copy of `target/ptx` and with `OXIWARP_PTX_DIR`, to run it.
//!
//! `cargo run -p oxiwarp-cuda-builder --example ptx -- kernels-gpu sm_90 /tmp/ptx rope qk_norm_rope`
use std::path::Path;
use std::{env, error, fs};

use cuda_builder::{Arch, CudaBuilder};

fn main() -> Result<(), Box<dyn error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [device_crate, arch, folder, units @ ..] = &arguments[..] else {
        return Err("expected <device crate> <architecture> <folder> <unit>...".into());
    };
    let arch = Arch::from_name(arch).ok_or_else(|| format!("{arch} is no architecture"))?;
    let (target, folder) = (env::current_dir()?.join("target"), Path::new(folder).join(arch.name()));
    let builder = CudaBuilder::new(env::current_dir()?.join(device_crate)).arch(arch).units(units);
    let built = builder.target_dir(&target).out_dir(target.join("cuda-builder/units")).no_copy().build()?;
    fs::create_dir_all(&folder)?;
    for file in built.files() {
        let copy = folder.join(file.path.file_name().ok_or("a file without a name")?);
        fs::copy(&file.path, &copy)?;
        println!("{}", copy.display());
    }
    Ok(())
}
