//! The faults of a launch on the CPU executor, and their messages. If a barrier never completes, the message
//! names a thread that waits and a thread that does not arrive. It also says why this second thread does not
//! arrive.
use core::fmt;

/// The fault with which a launch failed: its kind, and the kernel, block and thread in which it occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Index of the block in the grid.
    pub block: [u32; 3],
    /// Index of the thread in its block.
    pub thread: [u32; 3],
    /// Kind of the fault.
    pub kind: FaultKind,
}

/// The kind of a fault, such as an invalid access, a wait that can never end, or an invalid launch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// The thread waits at a block barrier that another thread never reaches, because the other thread has
    /// returned.
    Barrier {
        /// Number of threads that wait at the barrier.
        waiting: u32,
        /// Number of threads in the block.
        threads: u32,
        /// Index of the first thread that never reaches the barrier.
        absent: [u32; 3],
    },
    /// The thread waits at a shuffle, vote, warp barrier or `mma`, and some lanes of the call's mask never
    /// make this call.
    MissingLanes {
        /// Name of the call, such as `shfl_xor` or `ballot`.
        operation: &'static str,
        /// Mask that the thread passed.
        mask: u32,
        /// Mask of the missing lanes.
        missing: u32,
        /// Why the first missing lane is not at this call.
        first: Absence,
    },
    /// An access past the end of the dynamic shared memory.
    SharedOutOfBounds {
        /// Offset of the access in bytes.
        offset: usize,
        /// Size of the access in bytes.
        bytes: usize,
        /// Bytes of shared memory that the launch requested.
        size: u32,
    },
    /// A data race: the thread accesses shared memory that another thread accessed earlier, without a barrier
    /// between the two accesses. At least one of the accesses is a write.
    Race {
        /// Offset of the access in bytes.
        offset: usize,
        /// Size of the access in bytes.
        bytes: usize,
        /// Whether the access is a write.
        writes: bool,
        /// Index of the thread that accessed the memory before.
        other: [u32; 3],
        /// Whether the earlier access was a write.
        wrote: bool,
    },
    /// A memory access at an address that is not a multiple of the size of the access.
    Misaligned {
        /// Address of the access.
        address: usize,
        /// Size of the access in bytes.
        bytes: usize,
    },
    /// The block is larger than the kernel's launch bounds.
    LaunchBounds {
        /// Number of threads in the block.
        threads: u32,
        /// Maximum number of threads that the kernel declares.
        declared: u32,
    },
    /// The kernel panicked with this message.
    Panic(String),
    /// The host could not allocate the stack of a thread.
    Stack(String),
    /// A launch that the executor does not start, for example because a CUDA driver would reject its shape.
    /// The fields `block` and `thread` of the fault then have no meaning.
    BadLaunch(String),
}

/// Why a lane that is in the mask of a warp call, such as a shuffle, does not take part in this call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Absence {
    /// The lane's thread has returned.
    Returned,
    /// The lane waits at the barrier of the block.
    AtBarrier,
    /// The lane waits at a different call of its warp.
    AtCall {
        /// Name of the other call.
        operation: &'static str,
        /// Mask of the other call.
        mask: u32,
    },
    /// The block has no thread for this lane.
    NotInBlock {
        /// Number of threads in the block.
        threads: u32,
    },
    /// The missing lane is the calling lane itself, because it passed a mask that does not contain this lane.
    NotInMask,
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { kernel, block, thread, kind } = self;
        match kind {
            FaultKind::BadLaunch(_) => write!(f, "{kernel}: {kind}"),
            _ => write!(f, "{kernel}: block {} thread {}: {kind}", Index(*block), Index(*thread)),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Barrier { waiting, threads, absent } => write!(
                f,
                "waits at a barrier that thread {} never reaches: it has returned ({waiting} of {threads} threads wait)",
                Index(*absent)
            ),
            Self::MissingLanes { operation, mask, missing, first } => write!(
                f,
                "{operation} with mask {mask:#010x} misses {}: lane {} {first}",
                LaneRanges(*missing),
                missing.trailing_zeros()
            ),
            Self::SharedOutOfBounds { offset, bytes, size } => write!(
                f,
                "accesses {bytes} bytes at offset {offset} of shared memory, the launch has {size} bytes"
            ),
            Self::Race { offset, bytes, writes, other, wrote } => {
                let (access, before) =
                    (if *writes { "writes" } else { "reads" }, if *wrote { "wrote" } else { "read" });
                let other = Index(*other);
                write!(
                    f,
                    "{access} {bytes} bytes at offset {offset} of shared memory that thread {other} {before} with no barrier between"
                )
            }
            Self::Misaligned { address, bytes } => {
                write!(f, "accesses {bytes} bytes at address {address:#x}, which is no multiple of {bytes}")
            }
            Self::LaunchBounds { threads, declared } => {
                write!(f, "runs in a block of {threads} threads, its launch bounds allow {declared}")
            }
            Self::Panic(message) => write!(f, "panicked: {message}"),
            Self::Stack(why) => write!(f, "got no stack: {why}"),
            Self::BadLaunch(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Returned => f.write_str("has returned"),
            Self::AtBarrier => f.write_str("waits at the barrier of the block"),
            Self::AtCall { operation, mask } => write!(f, "waits at {operation} with mask {mask:#010x}"),
            Self::NotInBlock { threads } => write!(f, "does not exist, the block has {threads} threads"),
            Self::NotInMask => f.write_str("is the calling lane"),
        }
    }
}

/// An index in the format of CUDA's tools: `(17,0,0)`.
struct Index([u32; 3]);

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [x, y, z] = self.0;
        write!(f, "({x},{y},{z})")
    }
}

/// Prints the lanes of a mask as ranges, for example `lane 5` or `lanes 0, 3-7`.
struct LaneRanges(u32);

impl fmt::Display for LaneRanges {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if self.0.count_ones() == 1 { "lane " } else { "lanes " })?;
        let (mut following, mut between) = (u64::from(self.0), "");
        while following != 0 {
            let first = following.trailing_zeros();
            let last = first + (following >> first).trailing_ones() - 1;
            write!(f, "{between}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            following &= u64::MAX << (last + 1);
            between = ", ";
        }
        Ok(())
    }
}
