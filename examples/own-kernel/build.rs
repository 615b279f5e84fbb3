//! Compiles the device crate (GPU kernels) in the folder `kernels` to PTX.
use cuda_builder::{Arch, CudaBuilder, Error};

fn main() -> Result<(), Error> {
    CudaBuilder::new("kernels").archs([Arch::Sm75, Arch::Sm80, Arch::Sm90]).build()?;
    Ok(())
}
