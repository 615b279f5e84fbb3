//! Compiles the kernels to PTX, or takes them from `OXIWARP_PTX_DIR`.
use cuda_builder::{Arch, CudaBuilder};

fn main() {
    let archs = [Arch::Sm75, Arch::Sm80, Arch::Sm90];
    if let Err(error) = CudaBuilder::new("../kernels-gpu").archs(archs).build() {
        println!("cargo::error={error}");
        std::process::exit(1);
    }
}
