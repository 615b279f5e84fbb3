//! Launches that overlap with those beside them in a stream: which, and how their kernels begin. From sm_90 on.
use std::collections::HashMap;
use std::sync::LazyLock;

use cuda_std::cpu::Overlap as Policy;

/// Whether the launches of a kernel overlap. A block then takes the place of one that is done while others of the launch before
/// it still run, and waits: what is gained is the start of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// Not where the user, the GPU or the driver does not want it.
    Never,
    /// As the kernel's declaration says.
    As(Policy),
}

/// Waits until everything that was launched before is done and written: what a kernel's `thread::wait_for_earlier_launches`
/// compiles to.
const WAIT: &str = "
	griddepcontrol.wait;";

/// `ld.global.nc` promises that nothing writes there while the kernel runs, and so ptxas moves it in front of the wait. It does not
/// move a load in front of an exit, and this one, which no thread takes, needs what a barrier behind the wait says.
const LEAVE: &str = "
	{
	.reg .pred %never, %leave;
	.reg .b32 %bytes;
	mov.u32 %bytes, %dynamic_smem_size;
	setp.gt.u32 %never, %bytes, 0x7fffffff;
	barrier.cta.red.or.pred %leave, 0, %never;
	@%leave exit;
	}";

/// Lets the next launch place its blocks as soon as all of this one's are placed. Behind the wait: a kernel of somebody else may read
/// in front of its own what is older than the launch before it, weights say, and finds it written.
const TRIGGER: &str = "
	griddepcontrol.launch_dependents;";

impl Overlap {
    /// As measured (`docs/ladders.md`), and declared by [`entry!`](cuda_std::entry!) beside the kernel. A kernel that is no
    /// oxiwarp's, or is not compiled for the executor, overlaps with both.
    pub fn of(kernel: &str) -> Self {
        static DECLARED: LazyLock<HashMap<&str, Policy>> =
            LazyLock::new(|| kernels_gpu::kernels().map(|kernel| (kernel.name, kernel.overlap)).collect());
        Self::As(DECLARED.get(kernel).copied().unwrap_or(Policy::Both))
    }

    /// What stands where a kernel waits.
    pub fn begin(self) -> String {
        match self {
            Self::Never => String::new(),
            Self::As(Policy::Plain) => WAIT.into(),
            Self::As(Policy::Before) => [WAIT, LEAVE].concat(),
            Self::As(Policy::Both) => [WAIT, LEAVE, TRIGGER].concat(),
        }
    }

    /// The entry of a kernel as it is loaded: with that where the kernel says so, or at its beginning.
    pub fn place(self, entry: &str) -> Option<String> {
        let begin = self.begin();
        if entry.contains(WAIT) {
            return Some(entry.replace(WAIT, &begin));
        }
        // Before the body there is no brace.
        let (head, body) = entry.split_at(entry.find('{')? + 1);
        Some([head, &begin, body].concat())
    }
}
