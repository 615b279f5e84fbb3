//! Programmatic dependent launch on sm_90 and newer. This module inserts the PTX instructions for it into a
//! kernel. The kernel itself declares which instructions it needs.
use cuda_std::launch::Overlap;

/// The instructions that are inserted into a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructions {
    /// None, because launches do not overlap: the GPU or the driver does not support it, or the user turned
    /// it off.
    None,
    /// Those for the overlap that the kernel declares.
    Of(Overlap),
}

/// Waits until all earlier launches are done and their writes are visible. A kernel can call
/// `thread::wait_for_earlier_launches`, which compiles to this instruction, to choose where it waits.
const WAIT: &str = "
	griddepcontrol.wait;";

/// Keeps ptxas from moving loads from after the wait to before it.
///
/// `ld.global.nc` promises that its memory is constant during the kernel, so ptxas may move it across the
/// wait. ptxas does not move a load across an `exit`, therefore this code has one. The `exit` depends on a
/// barrier after the wait, and no thread ever takes it.
const LEAVE: &str = "
	{
	.reg .pred %never, %leave;
	.reg .b32 %bytes;
	mov.u32 %bytes, %dynamic_smem_size;
	setp.gt.u32 %never, %bytes, 0x7fffffff;
	barrier.cta.red.or.pred %leave, 0, %never;
	@%leave exit;
	}";

/// Allows the next launch in the stream to start its blocks when all blocks of this launch have executed this
/// instruction.
///
/// A kernel executes the instruction after its own wait, so all earlier launches are done. The next kernel
/// may therefore read their results before it waits itself. For example, kernels of other libraries read
/// weights before they wait.
const TRIGGER: &str = "
	griddepcontrol.launch_dependents;";

impl Instructions {
    /// Returns the instructions at the place where the kernel waits.
    pub fn begin(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Of(Overlap::Plain) => WAIT.into(),
            Self::Of(Overlap::Before) => [WAIT, LEAVE].concat(),
            Self::Of(Overlap::Both) => [WAIT, LEAVE, TRIGGER].concat(),
        }
    }

    /// Returns the PTX of the entry `entry` with the instructions that [`Instructions::begin`] returns. They
    /// replace the kernel's own wait instruction, if the kernel has one. Otherwise they are inserted at the
    /// start of the body. Returns `None` if the entry has no body.
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
