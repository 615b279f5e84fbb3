//! The kinds of faults, and their messages.
use core::fmt;

use super::tensor_map::{Reduction, TensorMapElement};

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
    /// An address is not a multiple of the required alignment, or the size of a bulk copy is not a multiple
    /// of 16.
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
    /// The kernel declares a cluster size that does not divide the grid.
    ClusterSize {
        /// Blocks per cluster that the kernel declares.
        declared: u32,
        /// Blocks per cluster of the launch.
        blocks: u32,
    },
    /// The rank of a block that the cluster does not have.
    ClusterRank {
        /// The rank.
        rank: u32,
        /// Blocks of the cluster.
        blocks: u32,
    },
    /// The thread waits at the barrier of its cluster, and other threads never arrive.
    ClusterBarrier {
        /// Threads that have arrived.
        arrived: u32,
        /// Threads of the cluster.
        threads: u32,
    },
    /// The thread arrives twice at the barrier of its cluster without a wait, or waits without an arrival.
    ClusterBarrierOrder {
        /// Whether the second call is an arrival.
        arrives: bool,
    },
    /// A thread accesses the shared memory of another block of its cluster, but that block has exited.
    ExitedBlock {
        /// Rank of the block.
        rank: u32,
        /// Offset of the access in bytes.
        offset: usize,
        /// Size of the access in bytes.
        bytes: usize,
    },
    /// The block exits although another block of its cluster, or a copy, may still access its shared memory.
    EarlyExit {
        /// Rank of the block.
        rank: u32,
    },
    /// The thread waits for a phase of an mbarrier that never ends, because arrivals or bytes are missing.
    Mbarrier {
        /// Offset of the mbarrier in shared memory.
        offset: usize,
        /// Number of the phase, counted from 0. The parity of the phase is the parity of this number.
        phase: u32,
        /// Arrivals that are missing in this phase.
        missing: u32,
        /// Arrivals that the mbarrier expects in each phase.
        arrivals: u32,
        /// Bytes that are missing. A negative number means that copies delivered more bytes than expected.
        bytes: i64,
    },
    /// The thread waits for the wrong phase of an mbarrier.
    WrongPhase {
        /// Offset of the mbarrier in shared memory.
        offset: usize,
        /// Number of the phase that the thread waits for. If the thread accessed bytes too early, this is the
        /// number of the phase for which it should have waited.
        phase: u32,
        /// Offset of the bytes that the thread accesses too early, because it waited for an earlier phase
        /// than necessary. `None` if the thread waits for a later phase, which never ends.
        bytes_at: Option<usize>,
    },
    /// The thread waits for the end of a phase, but the mbarrier ended a later phase before the thread saw
    /// this end.
    MissedPhase {
        /// Offset of the mbarrier in shared memory.
        offset: usize,
        /// Number of the phase that the thread waits for.
        phase: u32,
    },
    /// There is no initialized mbarrier at this place.
    NoMbarrier {
        /// Offset in shared memory.
        offset: usize,
    },
    /// The initialization of the mbarrier is not visible to the thread, or to the asynchronous copy that it
    /// starts.
    MbarrierNotVisible {
        /// Offset of the mbarrier in shared memory.
        offset: usize,
        /// The thread that initialized it.
        by: [u32; 3],
        /// Whether this thread executed a fence after the initialization.
        fenced: bool,
    },
    /// A thread passes a number that the mbarrier cannot count. A `count` of 0 has two causes: the thread
    /// initializes the mbarrier for 0 arrivals, or more arrivals occur than the mbarrier expects.
    MbarrierCount {
        /// Offset of the mbarrier in shared memory.
        offset: usize,
        /// The number of arrivals or bytes.
        count: u32,
    },
    /// All arrivals of a phase of an mbarrier have occurred, but they announced fewer bytes than the copies
    /// of this phase deliver. The phase would end before its last copy, or never.
    MbarrierBytes {
        /// Offset of the mbarrier in shared memory.
        offset: usize,
        /// Number of the phase.
        phase: u32,
        /// Bytes that the arrivals expect.
        expected: i64,
        /// Bytes of the copies that have started in this phase.
        started: i64,
    },
    /// The block exits, and none of its threads has waited for the end of a copy to its shared memory.
    UnobservedCopy {
        /// Offset of the mbarrier that reports the end of the copy.
        mbarrier: usize,
        /// The phase of this mbarrier that ends with the copy.
        phase: u32,
    },
    /// A thread initializes an mbarrier in another block, waits at an mbarrier of another block, or copies
    /// from another block's shared memory. None of these is allowed.
    RemoteWait {
        /// Offset in shared memory.
        offset: usize,
    },
    /// The thread tests an mbarrier again and again, and no other thread can continue.
    Polling,
    /// The thread waits at a named barrier, and other threads never arrive.
    NamedBarrier {
        /// Number of the barrier.
        id: u32,
        /// Threads that have arrived.
        arrived: u32,
        /// Threads that the barrier expects.
        threads: u32,
    },
    /// A thread uses a named barrier whose number is not 1 to 15, or passes an invalid number of threads. The
    /// number of threads is invalid if it is 0, not a multiple of 32, or too large for the block.
    NamedBarrierUse {
        /// Number of the barrier.
        id: u32,
        /// Threads of the barrier.
        threads: u32,
    },
    /// Two threads arrive at the same named barrier with different numbers of threads.
    NamedBarrierThreads {
        /// Number of the barrier.
        id: u32,
        /// Threads that this thread expects.
        threads: u32,
        /// Threads that the thread before expects.
        expected: u32,
    },
    /// A thread accesses bytes of shared memory that an asynchronous copy writes, and has not waited for the
    /// end of this copy.
    UnfinishedCopy {
        /// Offset of the access in bytes.
        offset: usize,
        /// Size of the access in bytes.
        bytes: usize,
        /// Whether the access is a write.
        writes: bool,
        /// Offset of the mbarrier that reports the end of the copy.
        mbarrier: usize,
        /// The phase of this mbarrier that ends with the copy.
        phase: u32,
    },
    /// A data race in which at least one access is asynchronous or comes from a thread of another block.
    AsyncRace {
        /// Offset of the access in bytes.
        offset: usize,
        /// Size of the access in bytes.
        bytes: usize,
        /// What makes the access.
        now: Origin,
        /// Whether the access is a write.
        writes: bool,
        /// What made the earlier access.
        before: Origin,
        /// Whether the earlier access was a write.
        wrote: bool,
    },
    /// A store or a copy overwrites an initialized mbarrier.
    MbarrierOverwritten {
        /// Offset of the overwritten bytes.
        offset: usize,
        /// What overwrites them.
        now: Origin,
        /// The thread that initialized the mbarrier.
        by: [u32; 3],
    },
    /// An asynchronous operation accesses bytes that a thread wrote, and no proxy fence separates the write
    /// from the operation.
    ProxyFence {
        /// Offset of the bytes.
        offset: usize,
        /// Number of bytes.
        bytes: usize,
        /// What accesses them.
        now: Origin,
        /// Whether the access is a write.
        writes: bool,
        /// The thread that wrote them.
        writer: [u32; 3],
    },
    /// A `wgmma` reads a tile with another swizzle than the TMA copy that wrote the tile.
    Swizzle {
        /// Offset in shared memory.
        offset: usize,
        /// Bytes per row of the swizzle pattern with which the tile was written. 16 means no swizzle.
        written: u32,
        /// Bytes per row of the pattern of the descriptor.
        read: u32,
    },
    /// The descriptor of a `wgmma` operand has a start address at which the pattern of the swizzle does not
    /// start.
    Descriptor {
        /// The address.
        address: u32,
        /// Bytes per row of the pattern.
        swizzle: u32,
    },
    /// The descriptor of a `wgmma` operand has a base offset, which the executor does not support.
    DescriptorOffset {
        /// The base offset.
        offset: u32,
    },
    /// A `wgmma` operand is contiguous along M or N, but its elements do not have 16 bits, as such an operand
    /// requires.
    TransposedOperand {
        /// Bytes of an element.
        bytes: usize,
    },
    /// The thread accesses accumulator registers of a `wgmma` before it has called `wait` and `settle`.
    WgmmaRegisters,
    /// The thread starts a `wgmma` without a `fence` since the last `settle` of its registers.
    WgmmaFence,
    /// The thread writes accumulator registers of a `wgmma` between the start of the `wgmma` and `settle`.
    WgmmaOverwritten,
    /// The thread copies accumulator registers between the start of a `wgmma` and `settle`, and uses the
    /// copy.
    WgmmaMoved,
    /// The threads of a warpgroup execute different `wgmma` instructions.
    WgmmaLanes,
    /// The threads of a warpgroup pass different descriptors to a `wgmma`.
    WgmmaDescriptor {
        /// Descriptor of this thread.
        own: u64,
        /// Descriptor of another thread.
        other: u64,
    },
    /// The thread waits for a `wgmma` group that a warp of its warpgroup never commits.
    WgmmaCommit {
        /// Number of the group, from 1.
        group: u32,
        /// The warp of the warpgroup, from 0 to 3.
        warp: u32,
        /// Number of groups that this warp has committed.
        committed: u32,
    },
    /// The warps of a warpgroup execute different numbers of `wgmma` instructions.
    WgmmaWarpgroup {
        /// Number of instructions of the thread's warp.
        own: usize,
        /// Number of instructions of another warp.
        other: usize,
    },
    /// The thread returns without a wait for its `wgmma` instructions.
    WgmmaUnfinished,
    /// The thread returns without a wait for its bulk copies from shared memory.
    UnfinishedStore {
        /// Whether the thread has closed the bulk group.
        committed: bool,
    },
    /// The thread waits for registers (`setmaxnreg`) that other warps never give up.
    Registers {
        /// Registers of the block that are free.
        free: u32,
    },
    /// A `setmaxnreg` is not valid, for one of three reasons. The number of registers is not a multiple of 8
    /// from 24 to 256. The instruction raises the limit with `.dec` or lowers the limit with `.inc`. Not all
    /// warps of a warpgroup execute the instruction.
    RegisterCount {
        /// Registers per thread.
        count: u32,
        /// The present limit, if the direction is wrong.
        limit: Option<u32>,
    },
    /// The warps of a warpgroup execute different `setmaxnreg` instructions.
    RegisterWarps {
        /// The number of registers per thread in the `setmaxnreg` of this warp. `None` if this warp executes
        /// fewer such instructions than the other warp.
        own: Option<u32>,
        /// Registers per thread of the instruction of another warp.
        other: Option<u32>,
    },
    /// A kernel argument is not a tensor map of the executor, or its tensor has another number of dimensions
    /// than the instruction.
    TensorMap {
        /// Dimensions of the tensor map, or `None` if the argument is not a tensor map.
        dimensions: Option<usize>,
        /// Dimensions that the copy uses.
        used: usize,
    },
    /// A reduction that TMA does not have for this element type.
    Reduction {
        /// The operation.
        reduction: Reduction,
        /// The element type.
        element: TensorMapElement,
    },
    /// An access to global memory before the wait for earlier launches.
    EarlyAccess,
    /// The kernel panicked with this message.
    Panic(String),
    /// The host could not allocate the stack of a thread.
    Stack(String),
    /// The executor does not start the launch, for example because a CUDA driver would reject the launch
    /// shape. The fields `block` and `thread` of the fault then have no meaning.
    BadLaunch(String),
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
            Self::ClusterSize { declared, blocks } => write!(
                f,
                "declares clusters of {declared} blocks, the launch has clusters of {blocks}, or a grid that is no multiple of {declared} in x"
            ),
            Self::ClusterRank { rank, blocks } => {
                write!(f, "uses block {rank} of a cluster of {blocks} blocks")
            }
            Self::ClusterBarrier { arrived, threads } => write!(
                f,
                "waits at the barrier of its cluster at which only {arrived} of {threads} threads arrive"
            ),
            Self::ClusterBarrierOrder { arrives: true } => {
                f.write_str("arrives twice at the barrier of its cluster without a wait between")
            }
            Self::ClusterBarrierOrder { arrives: false } => {
                f.write_str("waits at the barrier of its cluster without an arrival")
            }
            Self::ExitedBlock { rank, offset, bytes } => write!(
                f,
                "accesses {bytes} bytes at offset {offset} of the shared memory of block {rank} of the cluster, which has exited"
            ),
            Self::EarlyExit { rank } => write!(
                f,
                "block {rank} of the cluster exits while another block or a copy may still access its shared memory"
            ),
            Self::Mbarrier { offset, phase, missing, arrivals, bytes } => write!(
                f,
                "waits for phase {phase} (parity {}) of the mbarrier at offset {offset}, which misses {missing} of {arrivals} arrivals and {bytes} bytes",
                phase % 2
            ),
            Self::WrongPhase { offset, phase, bytes_at: None } => write!(
                f,
                "waits for phase {phase} (parity {}) of the mbarrier at offset {offset} without a wait for the phase before",
                phase % 2
            ),
            Self::WrongPhase { offset, phase, bytes_at: Some(at) } => write!(
                f,
                "accesses offset {at} of shared memory after a wait for an earlier phase of the mbarrier at offset {offset}, it needs phase {phase} (parity {})",
                phase % 2
            ),
            Self::MissedPhase { offset, phase } => write!(
                f,
                "waits for phase {phase} (parity {}) of the mbarrier at offset {offset}, which has ended a later phase meanwhile",
                phase % 2
            ),
            Self::MbarrierBytes { offset, phase, expected, started } => write!(
                f,
                "the copies of phase {phase} (parity {}) of the mbarrier at offset {offset} have {started} bytes, its arrivals expect {expected}",
                phase % 2
            ),
            Self::UnobservedCopy { mbarrier, phase } => write!(
                f,
                "its block exits, and no thread has waited for phase {phase} (parity {}) of the mbarrier at offset {mbarrier}, which ends with a copy to the block's shared memory",
                phase % 2
            ),
            Self::NoMbarrier { offset } => {
                write!(f, "uses an mbarrier at offset {offset} of shared memory, where none is initialized")
            }
            Self::MbarrierNotVisible { offset, by, fenced } => write!(
                f,
                "uses the mbarrier at offset {offset}, whose initialization by thread {} is not visible: {}",
                Index(*by),
                if *fenced { "no barrier between" } else { "no fence and barrier between" }
            ),
            Self::MbarrierCount { offset, count: 0 } => {
                write!(
                    f,
                    "initializes the mbarrier at offset {offset} for 0 arrivals, or arrives more often than it expects in this phase"
                )
            }
            Self::MbarrierCount { offset, count } => {
                write!(f, "the mbarrier at offset {offset} cannot count {count}, expected 1 to 1048575")
            }
            Self::RemoteWait { offset } => {
                write!(f, "waits at, or copies from, offset {offset} of another block of the cluster")
            }
            Self::Polling => {
                f.write_str("tests an mbarrier again and again, and no other thread can continue")
            }
            Self::NamedBarrier { id, arrived, threads } => {
                write!(f, "waits at named barrier {id} at which only {arrived} of {threads} threads arrive")
            }
            Self::NamedBarrierUse { id, threads } => write!(
                f,
                "uses named barrier {id} with {threads} threads, expected a number from 1 to 15 and whole warps of the block"
            ),
            Self::NamedBarrierThreads { id, threads, expected } => write!(
                f,
                "arrives at named barrier {id} with {threads} threads, another thread with {expected}"
            ),
            Self::UnfinishedCopy { offset, bytes, writes, mbarrier, phase } => write!(
                f,
                "{} {bytes} bytes at offset {offset} of shared memory that an asynchronous copy writes, without a wait for phase {phase} (parity {}) of the mbarrier at offset {mbarrier}",
                if *writes { "writes" } else { "reads" },
                phase % 2
            ),
            Self::AsyncRace { offset, bytes, now, writes, before, wrote } => {
                let (access, before_) =
                    (if *writes { "writes" } else { "reads" }, if *wrote { "wrote" } else { "read" });
                write!(
                    f,
                    "{now} {access} {bytes} bytes at offset {offset} of shared memory that {before} {before_} with nothing that orders both"
                )
            }
            Self::MbarrierOverwritten { offset, now, by } => write!(
                f,
                "{now} writes to offset {offset} of shared memory, which is part of an mbarrier that thread {} initialized",
                Index(*by)
            ),
            Self::ProxyFence { offset, bytes, now, writes, writer } => write!(
                f,
                "{now} {} {bytes} bytes at offset {offset} of shared memory that thread {} wrote with no proxy fence between",
                if *writes { "writes" } else { "reads" },
                Index(*writer)
            ),
            Self::Swizzle { offset, written, read } => write!(
                f,
                "a wgmma reads offset {offset} of shared memory with the swizzle of {read} bytes, TMA wrote it with {written}"
            ),
            Self::Descriptor { address, swizzle } => write!(
                f,
                "a wgmma descriptor has the address {address:#x}, which is not where the pattern of the {swizzle}-byte swizzle starts"
            ),
            Self::DescriptorOffset { offset } => {
                write!(f, "a wgmma descriptor has the base offset {offset}, the executor expects 0")
            }
            Self::TransposedOperand { bytes } => write!(
                f,
                "a wgmma operand of {bytes}-byte elements is contiguous along M or N, only 2-byte elements can be"
            ),
            Self::WgmmaRegisters => {
                f.write_str("accesses accumulator registers of a wgmma before wait and settle")
            }
            Self::WgmmaFence => {
                f.write_str("starts a wgmma without a fence after an access to its registers")
            }
            Self::WgmmaOverwritten => f.write_str(
                "accumulator registers of a wgmma were written before wait and settle, or abandoned before wait",
            ),
            Self::WgmmaMoved => f.write_str(
                "uses a copy of accumulator registers of a wgmma that was made before wait and settle, expected the registers themselves",
            ),
            Self::WgmmaLanes => {
                f.write_str("the threads of the warpgroup execute different wgmma instructions")
            }
            Self::WgmmaDescriptor { own, other } => write!(
                f,
                "passes the wgmma descriptor {own:#018x}, expected {other:#018x} as another thread of the warpgroup"
            ),
            Self::WgmmaCommit { group, warp, committed } => write!(
                f,
                "waits for wgmma group {group}, warp {warp} of the warpgroup commits only {committed} groups"
            ),
            Self::WgmmaWarpgroup { own, other } => {
                write!(f, "its warp executes {own} wgmma instructions, another warp of the warpgroup {other}")
            }
            Self::WgmmaUnfinished => f.write_str("returns without a wait for its wgmma instructions"),
            Self::UnfinishedStore { committed } => write!(
                f,
                "returns without a wait for its bulk copies from shared memory{}",
                if *committed { "" } else { ", whose group is not committed" }
            ),
            Self::Registers { free } => {
                write!(f, "waits for registers that no warp gives up, {free} registers are free")
            }
            Self::RegisterCount { count, limit: None } => {
                write!(f, "setmaxnreg {count}, expected a multiple of 8 from 24 to 256 in a whole warpgroup")
            }
            Self::RegisterCount { count, limit: Some(limit) } => {
                write!(f, "setmaxnreg {count} in the wrong direction, the limit is {limit}")
            }
            Self::RegisterWarps { own, other } => write!(
                f,
                "its warp executes {}, another warp of the warpgroup {}, expected the same instructions",
                Setmaxnreg(*own),
                Setmaxnreg(*other)
            ),
            Self::TensorMap { dimensions: Some(dimensions), used } => {
                write!(f, "uses a tensor map of {dimensions} dimensions with {used} coordinates")
            }
            Self::TensorMap { dimensions: None, .. } => {
                f.write_str("uses an argument as a tensor map that the executor did not make")
            }
            Self::Reduction { reduction, element } => {
                write!(f, "TMA has no reduction {reduction:?} of elements {element:?}")
            }
            Self::EarlyAccess => {
                f.write_str("accesses global memory before it waits for earlier launches of the stream")
            }
            Self::Panic(message) => write!(f, "panicked: {message}"),
            Self::Stack(why) => write!(f, "got no stack: {why}"),
            Self::BadLaunch(why) => f.write_str(why),
        }
    }
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
    /// The lane waits at an mbarrier, a named barrier, the barrier of the cluster, for registers, or for
    /// `wgmma` instructions.
    Waiting,
    /// The missing lane is the calling lane itself, because it passed a mask that does not contain this lane.
    NotInMask,
}

/// What makes an access to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The thread with this index.
    Thread([u32; 3]),
    /// A `wgmma`, which reads an operand.
    Wgmma,
    /// An asynchronous copy.
    Copy,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Thread(index) => write!(f, "thread {}", Index(*index)),
            Self::Wgmma => f.write_str("a wgmma"),
            Self::Copy => f.write_str("an asynchronous copy"),
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
            Self::Waiting => f.write_str(
                "waits at an mbarrier, a named barrier or a cluster barrier, or for registers or wgmma",
            ),
            Self::NotInMask => f.write_str("is the calling lane"),
        }
    }
}

/// The argument of a `setmaxnreg`, or `None` if there is no such instruction.
struct Setmaxnreg(Option<u32>);

impl fmt::Display for Setmaxnreg {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            Some(count) => write!(f, "setmaxnreg {count}"),
            None => f.write_str("no setmaxnreg"),
        }
    }
}

/// An index in the format of CUDA's tools: `(17,0,0)`.
pub(super) struct Index(pub [u32; 3]);

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
