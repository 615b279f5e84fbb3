//! The kernels of this library. The submodules embed their PTX, load the kernels and launch them.
mod embedded;
mod info;
mod launch_site;
mod load;

pub use self::info::{KernelInfo, kernel_info};
pub(crate) use self::launch_site::LaunchSite;
pub(crate) use self::load::library;
pub use self::load::{cuda_with_ptx, kernel_names, prepare_kernel};
