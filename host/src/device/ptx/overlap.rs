//! Programmatic dependent launch, on sm_90 and newer: which kernels overlap with their neighbours in a
//! stream, and the PTX instructions that they begin with.
use std::collections::HashMap;
use std::sync::LazyLock;

use cuda_std::cpu::Overlap as Policy;

/// Whether the launches of a kernel overlap with others in the stream.
///
/// With overlap, a block can start while blocks of the previous launch still run. The block then waits
/// until the previous launch is done. The overlap hides the start of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// No overlap, because the user, the GPU or the driver does not allow it.
    Never,
    /// Overlap as the kernel declares.
    As(Policy),
}

/// Waits until all earlier launches are done and their writes are visible. A kernel's
/// `thread::wait_for_earlier_launches` compiles to this instruction.
const WAIT: &str = "
	griddepcontrol.wait;";

/// Keeps ptxas from moving loads before the wait.
///
/// `ld.global.nc` declares its memory constant during the kernel, so ptxas may move it before the wait.
/// ptxas does not move a load before an exit. This exit depends on a barrier after the wait, and no thread
/// takes it.
const LEAVE: &str = "
	{
	.reg .pred %never, %leave;
	.reg .b32 %bytes;
	mov.u32 %bytes, %dynamic_smem_size;
	setp.gt.u32 %never, %bytes, 0x7fffffff;
	barrier.cta.red.or.pred %leave, 0, %never;
	@%leave exit;
	}";

/// Lets the next launch start its blocks as soon as all blocks of this launch have started.
///
/// The instruction comes after the wait. A kernel of another library may read data before its own wait, for
/// example weights. Such data was written before the previous launch, and is then complete.
const TRIGGER: &str = "
	griddepcontrol.launch_dependents;";

impl Overlap {
    /// Returns the overlap that the kernel declares in [`entry!`](cuda_std::entry!).
    /// docs/internals/launch-configuration.md has the measurements. Kernels of other crates, and kernels
    /// that are not compiled for the CPU executor, use [`Policy::Both`].
    pub fn of(kernel: &str) -> Self {
        static DECLARED: LazyLock<HashMap<&str, Policy>> =
            LazyLock::new(|| kernels_gpu::kernels().map(|kernel| (kernel.name, kernel.overlap)).collect());
        Self::As(DECLARED.get(kernel).copied().unwrap_or(Policy::Both))
    }

    /// Returns the instructions at the place where the kernel waits.
    pub fn begin(self) -> String {
        match self {
            Self::Never => String::new(),
            Self::As(Policy::Plain) => WAIT.into(),
            Self::As(Policy::Before) => [WAIT, LEAVE].concat(),
            Self::As(Policy::Both) => [WAIT, LEAVE, TRIGGER].concat(),
        }
    }

    /// Returns the PTX of an entry with these instructions inserted. They replace the kernel's own wait, or
    /// come at the start of the body. Returns `None` if the entry has no body.
    pub fn place(self, entry: &str) -> Option<String> {
        let begin = self.begin();
        if entry.contains(WAIT) {
            return Some(entry.replace(WAIT, &begin));
        }
        // The first brace opens the body.
        let (head, body) = entry.split_at(entry.find('{')? + 1);
        Some([head, &begin, body].concat())
    }
}
