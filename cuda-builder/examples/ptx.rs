//! Compiles selected units (parts) of a device crate for one architecture, and writes their PTX to a folder
//! that you name.
//!
//! A few units compile in seconds, while the whole crate takes minutes. To build oxiwarp with the new PTX,
//! name a copy of `target/ptx` as the folder. The new PTX then replaces the old PTX of these units. Set the
//! environment variable `OXIWARP_PTX_DIR` to this copy before you build oxiwarp.
//!
//! Example: `cargo run -p oxiwarp-cuda-builder --example ptx -- kernels-gpu sm_90 /tmp/ptx rope qk_norm_rope`
use std::path::Path;
use std::{env, error, fs};

use cuda_builder::{Arch, CudaBuilder};

fn main() -> Result<(), Box<dyn error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [device_crate, arch, folder, units @ ..] = &arguments[..] else {
        return Err("expected <device crate> <architecture> <folder> <unit>...".into());
    };
    let arch = Arch::from_name(arch).ok_or_else(|| format!("{arch} is no architecture"))?;
    let target = env::current_dir()?.join("target");
    let work = target.join("cuda-builder/units");
    let builder = CudaBuilder::new(env::current_dir()?.join(device_crate)).arch(arch).units(units);
    let built = builder.target_dir(&target).out_dir(work.join("out")).copy_to(&work).build()?;
    for copy in built.copies() {
        let to = Path::new(folder).join(copy.path.strip_prefix(&work)?);
        fs::create_dir_all(to.parent().ok_or("a file without a folder")?)?;
        fs::copy(&copy.path, &to)?;
        println!("{}", to.display());
    }
    Ok(())
}
