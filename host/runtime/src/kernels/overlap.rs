//! Programmatic dependent launch (PDL) on sm_90 and newer. This module inserts the PTX instructions for PDL
//! into a kernel. The kernel declares which of these instructions it needs.
use cuda_std::launch::Overlap;

/// The instructions that are inserted into a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructions {
    /// No instructions, because launches do not overlap. The GPU or the driver does not support programmatic
    /// dependent launch, or the user switched it off.
    None,
    /// Those for the overlap that the kernel declares.
    Of(Overlap),
}

/// Waits until all earlier launches are done and their writes are visible. A kernel can call
/// `thread::wait_for_earlier_launches`, which compiles to this instruction. The kernel thereby chooses where
/// it waits.
const WAIT: &str = "
	griddepcontrol.wait;";

/// Prevents ptxas from moving loads from after the wait instruction to before the wait instruction.
///
/// `ld.global.nc` promises that its memory is constant during the kernel, so ptxas may move it across the
/// wait. ptxas does not move a load across an `exit`, so this code contains an `exit` that no thread ever
/// executes. The `exit` depends on a barrier after the wait.
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
/// A kernel executes this instruction after its own wait, so all earlier launches are done. The next kernel
/// may therefore read results of the earlier launches before it waits itself. Kernels of other libraries do
/// so: for example, they read weights before they wait.
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

    /// Returns the PTX of the entry `entry` with the instructions that [`Instructions::begin`] returns. If
    /// the kernel has a wait instruction, these instructions replace it. Otherwise they are inserted at the
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
