//! Programmatic dependent launch (PDL) on sm_90 and newer. This module inserts the PTX instructions for PDL
//! into a kernel. The kernel declares which of these instructions it needs.
use cuda_std::launch::Overlap;

/// The instructions that are inserted into a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructions {
    /// No instructions, because launches do not use programmatic dependent launch (PDL). The GPU or the
    /// driver does not support PDL, or the user switched it off.
    None,
    /// The instructions for the kind of overlap that the kernel declares.
    Of(Overlap),
}

/// PTX instruction that waits until all earlier launches are done and their writes are visible. The function
/// `thread::wait_for_earlier_launches` compiles to this instruction. A kernel can call this function to
/// choose the point at which it waits.
const WAIT: &str = "
	griddepcontrol.wait;";

/// PTX code that prevents ptxas from moving loads ahead of the wait instruction (`griddepcontrol.wait`).
///
/// The instruction `ld.global.nc` promises that its memory is constant during the kernel. ptxas may therefore
/// move such a load from after the wait instruction to before the wait instruction. ptxas does not move a
/// load across an `exit`. This code therefore contains an `exit` that no thread ever executes. The `exit`
/// depends on the result of a barrier after the wait instruction.
const LEAVE: &str = "
	{
	.reg .pred %never, %leave;
	.reg .b32 %bytes;
	mov.u32 %bytes, %dynamic_smem_size;
	setp.gt.u32 %never, %bytes, 0x7fffffff;
	barrier.cta.red.or.pred %leave, 0, %never;
	@%leave exit;
	}";

/// PTX instruction that lets the next launch in the stream start early. The next launch may start its blocks
/// when all blocks of this launch have executed the instruction.
///
/// A kernel executes this instruction after its own wait instruction, so all earlier launches are done. The
/// next kernel may therefore read results of these earlier launches before it executes its own wait
/// instruction. Kernels of other libraries do so. For example, they read weights before they wait.
const TRIGGER: &str = "
	griddepcontrol.launch_dependents;";

impl Instructions {
    /// Returns the PTX instructions for the position at which the kernel waits for earlier launches.
    pub fn begin(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Of(Overlap::Plain) => WAIT.into(),
            Self::Of(Overlap::Before) => [WAIT, LEAVE].concat(),
            Self::Of(Overlap::Both) => [WAIT, LEAVE, TRIGGER].concat(),
        }
    }

    /// Returns the PTX of the kernel entry `entry` with the instructions that [`Instructions::begin`]
    /// returns. If the entry has a wait instruction, the returned instructions replace it. Otherwise they are
    /// inserted at the start of the body. Returns `None` if the entry has no body.
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
