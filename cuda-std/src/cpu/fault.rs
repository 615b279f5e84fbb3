//! What can go wrong in a launch, in words that point at the kernel's line of thought: who waits, for whom, why.
use core::fmt;

/// A launch that did not end well: which thread of which kernel, and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Index of the block in the grid.
    pub block: [u32; 3],
    /// Index of the thread in its block.
    pub thread: [u32; 3],
    /// What happened.
    pub kind: FaultKind,
}

/// What a thread did wrong, or waits for in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// The thread waits at a barrier that another one never reaches, since it has returned.
    Barrier {
        /// How many threads wait there.
        waiting: u32,
        /// How many threads the block has.
        threads: u32,
        /// The first thread that never reaches it.
        absent: [u32; 3],
    },
    /// The thread is at a shuffle, vote or warp barrier that not all lanes of its mask reach.
    MissingLanes {
        /// Which call: `shfl_xor`, `ballot`, …
        operation: &'static str,
        /// The mask the thread named.
        mask: u32,
        /// The lanes that are missing, one bit each.
        missing: u32,
        /// What the first of them does instead.
        first: Absence,
    },
    /// An access past the launch-sized shared memory.
    SharedOutOfBounds {
        /// Where the access starts.
        offset: usize,
        /// How many bytes it takes.
        bytes: usize,
        /// How many the launch asked for.
        size: u32,
    },
    /// An access to shared memory that another thread accessed, one of them to write, with no barrier between.
    Race {
        /// Where the access starts.
        offset: usize,
        /// How many bytes it takes.
        bytes: usize,
        /// Is it a write?
        writes: bool,
        /// The thread that was there before.
        other: [u32; 3],
        /// Did that one write?
        wrote: bool,
    },
    /// An access at an address that is no multiple of its size.
    Misaligned {
        /// The address.
        address: usize,
        /// How many bytes it takes.
        bytes: usize,
    },
    /// The block is larger than the kernel's launch bounds.
    LaunchBounds {
        /// How many threads the block has.
        threads: u32,
        /// How many the kernel declares.
        declared: u32,
    },
    /// The kernel panicked, with this message.
    Panic(String),
    /// The host has no memory for the stack of a thread.
    Stack(String),
    /// A shape that a driver would refuse; `block` and `thread` of the fault mean nothing.
    BadLaunch(String),
}

/// Why a lane of a mask is not at the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Absence {
    /// Its thread has returned.
    Returned,
    /// It waits at the barrier of the block.
    AtBarrier,
    /// It waits at another call of its warp.
    AtCall {
        /// Which call.
        operation: &'static str,
        /// The mask it named.
        mask: u32,
    },
    /// The block has no such thread.
    NotInBlock {
        /// How many threads the block has.
        threads: u32,
    },
    /// It is the calling lane itself, which its mask leaves out.
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

/// An index as CUDA's tools print it: `(17,0,0)`.
struct Index([u32; 3]);

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [x, y, z] = self.0;
        write!(f, "({x},{y},{z})")
    }
}

/// The lanes of a mask as ranges: `lane 5`, `lanes 0, 3-7`.
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
