//! Launches that overlap with those beside them in a stream: which, and how their kernels begin. From sm_90 on.

/// Whether the launches of a kernel overlap. A block then takes the place of one that is done while others of the launch before
/// it still run, and waits: what is gained is the start of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// Not where the user, the GPU or the driver does not want it.
    Never,
    /// With the launch before it. The one behind it starts when it ends: an H200 places 0.83 blocks in a nanosecond of a kernel
    /// that lets the next one start, of others about 1.
    Before,
    /// The same for a kernel without `ld.global.nc`, whose blocks are so short that more than the wait alone would show.
    Plain,
    /// With both.
    Both,
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
    /// As measured: `docs/ladders.md`.
    pub fn of(kernel: &str) -> Self {
        let is_any = |ops: &[&str]| ops.iter().any(|op| kernel.starts_with(op));
        if is_any(&["activation"]) {
            Self::Plain
        } else if is_any(&[
            "add_rms_norm_hold2",
            "layer_norm_held10",
            "layer_norm_backward",
            "rms_norm_backward",
        ]) {
            Self::Before
        } else {
            Self::Both
        }
    }

    /// What stands where a kernel waits.
    pub fn begin(self) -> String {
        match self {
            Self::Never => String::new(),
            Self::Plain => WAIT.into(),
            Self::Before => [WAIT, LEAVE].concat(),
            Self::Both => [WAIT, LEAVE, TRIGGER].concat(),
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
