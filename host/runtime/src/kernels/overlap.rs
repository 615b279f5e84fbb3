//! Programmatic dependent launch (PDL) on sm_90 and newer. This module inserts the PTX instructions for PDL
//! into a kernel. The kernel declares which of these instructions it needs.
use cuda_std::launch::Overlap;

/// The instructions that are inserted into a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructions {
    /// No instructions, because launches do not use programmatic dependent launch (PDL). Either the GPU or
    /// the driver does not support PDL, or the user switched PDL off.
    None,
    /// The instructions for the kind of overlap that the kernel declares.
    Of(Overlap),
}

/// PTX instruction that waits until all earlier launches of the stream are done and their writes are visible.
/// The function `thread::wait_for_earlier_launches` compiles to this instruction. A kernel that calls this
/// function thereby chooses the point at which it waits.
const WAIT: &str = "
	griddepcontrol.wait;";

/// PTX code that prevents ptxas from moving loads ahead of the wait instruction (`griddepcontrol.wait`).
///
/// The instruction `ld.global.nc` promises that no thread writes the loaded memory while the kernel runs.
/// ptxas may therefore move such a load to a position before the wait instruction. ptxas does not move a load
/// across an `exit`. This code therefore contains an `exit` that no thread ever executes. The `exit` depends
/// on the result of a barrier after the wait instruction.
const LEAVE: &str = "
	{
	.reg .pred %never, %leave;
	.reg .b32 %bytes;
	mov.u32 %bytes, %dynamic_smem_size;
	setp.gt.u32 %never, %bytes, 0x7fffffff;
	barrier.cta.red.or.pred %leave, 0, %never;
	@%leave exit;
	}";

/// PTX instruction that lets the next launch in the stream start early. The blocks of the next launch may
/// start when all blocks of the current launch have executed the instruction.
///
/// A kernel executes this instruction after its own wait instruction, so all earlier launches are done. The
/// next kernel may therefore read results of these earlier launches before it executes its own wait
/// instruction. Kernels of other libraries rely on this order. For example, they read weights before they
/// wait.
const TRIGGER: &str = "
	griddepcontrol.launch_dependents;";

impl Instructions {
    /// Returns the PTX instructions to insert at the point where the kernel must wait for earlier launches.
    pub fn begin(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Of(Overlap::Plain) => WAIT.into(),
            Self::Of(Overlap::Before) => [WAIT, LEAVE].concat(),
            Self::Of(Overlap::Both) => [WAIT, LEAVE, TRIGGER].concat(),
        }
    }

    /// Inserts the instructions from [`Instructions::begin`] into the PTX text `entry` of a kernel, and
    /// returns the new text. If `entry` has a wait instruction, they replace this instruction. Otherwise they
    /// are inserted at the start of the kernel's body. Returns `None` if `entry` has no body.
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
