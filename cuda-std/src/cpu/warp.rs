//! Warp operations on the CPU executor: shuffles, votes, warp barriers and matrix multiplications. Each
//! operation exchanges values between the lanes of a mask.
//!
//! As on a GPU, two lanes exchange values if both call the same operation with the same mask. The lanes that
//! call it first are suspended. The last lane to call it computes the results of all lanes, marks the
//! suspended lanes as ready, and continues.
use core::panic::Location;

use super::block::{State, current};
use super::matrix::{self, Fragments};
use super::{Absence, Block, FaultKind};

/// The kind of an exchange between the lanes of a warp.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    ShuffleXor,
    ShuffleDown,
    ShuffleUp,
    ShuffleIdx,
    Ballot,
    Sync,
    /// `ldmatrix` and `stmatrix`. Each of these instructions consists of several exchanges, and an exchange
    /// has the same result as with `ShuffleIdx`.
    LoadMatrices,
    StoreMatrices,
    /// Instructions that all lanes of a warp execute together (`.sync.aligned`): `setmaxnreg`, and waits for
    /// `wgmma` groups. The result is the value of the first lane. In the executor, these instructions order
    /// memory accesses as a warp barrier does. Kernels rely on this: after such an instruction, one elected
    /// lane releases a buffer that all lanes have read.
    WgmmaWait,
    RegisterLimit,
    /// A matrix multiplication. Each lane passes its fragments, the matrix elements that it has in registers.
    Multiply,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::ShuffleXor => "shfl_xor",
            Self::ShuffleDown => "shfl_down",
            Self::ShuffleUp => "shfl_up",
            Self::ShuffleIdx => "shfl_idx",
            Self::Ballot => "ballot",
            Self::Sync => "sync_warp",
            Self::LoadMatrices => "ldmatrix",
            Self::StoreMatrices => "stmatrix",
            Self::WgmmaWait => "wgmma.wait_group",
            Self::RegisterLimit => "setmaxnreg",
            Self::Multiply => "mma",
        }
    }

    /// Returns the result of the operation for lane `lane`. For a shuffle, `argument` is the number that this
    /// lane passed: the source lane, the distance or the xor mask. As in hardware, only the low five bits of
    /// `argument` count. If the source lane is outside the warp, the result is the value that lane `lane`
    /// itself passed.
    fn result(self, values: &[u32; 32], mask: u32, lane: u32, argument: u32) -> u32 {
        let argument = argument % 32;
        let source = match self {
            Self::ShuffleXor => lane ^ argument,
            Self::ShuffleDown if lane + argument < 32 => lane + argument,
            Self::ShuffleUp if lane >= argument => lane - argument,
            Self::ShuffleIdx | Self::LoadMatrices | Self::StoreMatrices => argument,
            Self::ShuffleDown | Self::ShuffleUp | Self::Sync | Self::Multiply => lane,
            Self::WgmmaWait | Self::RegisterLimit => mask.trailing_zeros(),
            Self::Ballot => return lanes(mask).fold(0, |bits, lane| bits | values[lane as usize] << lane),
        };
        values[source as usize]
    }
}

/// A thread's call of a warp operation, for example a shuffle. The field `value` is the value that the thread
/// passes, and after the call completes, its result.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    operation: Operation,
    mask: u32,
    value: u32,
    argument: u32,
    /// Fragments of a matrix multiplication, or null for other calls.
    fragments: *mut Fragments,
}

impl Call {
    pub const NONE: Self =
        Self { operation: Operation::Sync, mask: 0, value: 0, argument: 0, fragments: std::ptr::null_mut() };

    fn meets(&self, other: &Self) -> bool {
        self.operation == other.operation && self.mask == other.mask
    }

    pub fn absence(&self) -> Absence {
        Absence::AtCall { operation: self.operation.name(), mask: self.mask }
    }
}

/// Returns the lanes whose bits are set in `mask`.
fn lanes(mask: u32) -> impl Iterator<Item = u32> + Clone {
    (0..32).filter(move |lane| mask >> lane & 1 == 1)
}

/// Exchanges values between the lanes of `mask`, and returns the result of the calling lane.
///
/// If the source lane of a shuffle is outside the mask, the result is undefined on a GPU. On the CPU
/// executor, all bits of the result are then set, which is a NaN as a float.
#[inline(always)]
#[track_caller]
pub(crate) fn exchange(operation: Operation, mask: u32, value: u32, argument: u32) -> u32 {
    let at = Location::caller();
    // SAFETY: the block is used only in this function.
    let block = unsafe { current() };
    block.thread().site.set(Some(at));
    block.meet(Call { operation, mask, value, argument, ..Call::NONE })
}

/// Exchanges values between all lanes of the warp, as [`exchange`] does. This function does not change the
/// stored location of the call in the kernel's source code, so the caller must have stored it.
#[inline(always)]
pub(crate) fn exchange_here(operation: Operation, value: u32, argument: u32) -> u32 {
    // SAFETY: the block is used only in this function.
    let block = unsafe { current() };
    block.meet(Call { operation, mask: u32::MAX, value, argument, ..Call::NONE })
}

/// Waits until all lanes of the warp execute the instruction `operation`, and returns the value that the
/// first lane passed. This function does not change the stored location of the call in the kernel's source
/// code, so the caller must have stored it.
#[inline(always)]
pub(super) fn converge(operation: Operation, value: u32) -> u32 {
    exchange_here(operation, value, 0)
}

/// Lets the calling lane take part in a matrix multiplication of the whole warp. Replaces `fragments.c` by
/// this lane's elements of the matrix `c + a b`.
#[inline(always)]
#[track_caller]
pub(crate) fn exchange_fragments(fragments: &mut Fragments) {
    let at = Location::caller();
    // SAFETY: the block is used only in this function.
    let block = unsafe { current() };
    block.thread().site.set(Some(at));
    block.meet(Call { operation: Operation::Multiply, mask: u32::MAX, fragments, ..Call::NONE });
}

impl Block {
    /// Lets the running thread take part in a warp operation, and returns its result.
    #[inline(always)]
    fn meet(&self, call: Call) -> u32 {
        if !self.call(call) {
            self.suspend();
        }
        self.thread().call.get().value
    }

    /// Registers the running thread's call of a warp operation, for example a shuffle. Returns false if the
    /// thread must wait for other lanes.
    fn call(&self, call: Call) -> bool {
        let lane = self.linear_index() % 32;
        self.check_mask(&call, lane);
        self.thread().call.set(call);
        let calling = &self.calling[self.linear_index() / 32];
        calling.set(calling.get() | 1 << lane);
        if calling.get() & call.mask != call.mask || !self.all_meet(&call) {
            let waits = self.may_wait(State::AtCall);
            if !waits {
                // Remove the lane from the call of the warp. The lane's matrix fragments are on its stack,
                // which unwinds before the other lanes make the call.
                calling.set(calling.get() & !(1 << lane));
            }
            return !waits;
        }
        calling.set(calling.get() & !call.mask);
        if call.operation == Operation::Sync {
            self.races.rendezvous(self.linear_index() / 32);
        }
        let orders =
            matches!(call.operation, Operation::Sync | Operation::WgmmaWait | Operation::RegisterLimit);
        if orders && self.cluster.is_active() {
            let start = self.warp_start();
            self.synchronize_active(lanes(call.mask).map(|lane| start + lane as usize));
        }
        self.complete(&call);
        true
    }

    /// Returns the index of the first thread of the running thread's warp.
    fn warp_start(&self) -> usize {
        self.linear_index() & !31
    }

    /// Raises a fault if the mask of `call` lacks the calling lane or contains a lane that does not exist in
    /// the block.
    fn check_mask(&self, call: &Call, lane: usize) {
        let (operation, mask) = (call.operation.name(), call.mask);
        if mask >> lane & 1 == 0 && !self.unwinds() {
            let first = Absence::NotInMask;
            self.raise(FaultKind::MissingLanes { operation, mask, missing: 1 << lane, first });
        }
        let existing = (self.slots.len() - self.warp_start()).min(32);
        let missing = mask & !(u32::MAX >> (32 - existing));
        if missing != 0 && !self.unwinds() {
            let first = Absence::NotInBlock { threads: self.threads() };
            self.raise(FaultKind::MissingLanes { operation, mask, missing, first });
        }
    }

    fn all_meet(&self, call: &Call) -> bool {
        let warp = &self.slots[self.warp_start()..];
        lanes(call.mask).all(|lane| warp[lane as usize].call.get().meets(call))
    }

    fn complete(&self, call: &Call) {
        let warp = &self.slots[self.warp_start()..];
        if call.operation == Operation::Multiply {
            let fragments = std::array::from_fn(|lane| warp[lane].call.get().fragments);
            // SAFETY: `multiply_all` accesses the matrix fragments of all 32 lanes. The pointers to them are
            // valid, because every lane is still in the function `exchange_fragments`. No other code uses the
            // fragments until the call completes.
            unsafe { matrix::multiply_all(fragments) };
        }
        let mut values = [u32::MAX; 32];
        for lane in lanes(call.mask) {
            values[lane as usize] = warp[lane as usize].call.get().value;
        }
        for lane in lanes(call.mask) {
            let slot = &warp[lane as usize];
            let mut theirs = slot.call.get();
            theirs.value = call.operation.result(&values, call.mask, lane, theirs.argument);
            slot.call.set(theirs);
            self.slots[self.warp_start() + lane as usize].state.set(State::Ready);
        }
    }

    /// Returns a fault for thread `thread`, which waits at a warp operation such as a shuffle. The fault
    /// lists the lanes of the mask that do not wait at the same call.
    pub(super) fn missing_lanes(&self, thread: usize) -> FaultKind {
        let (start, call) = (thread & !31, self.slots[thread].call.get());
        let there =
            |at: usize| self.slots[at].state.get() == State::AtCall && self.slots[at].call.get().meets(&call);
        let missing = lanes(call.mask)
            .filter(|&lane| !there(start + lane as usize))
            .fold(0, |bits, lane| bits | 1u32 << lane);
        let first = self.absence(start + missing.trailing_zeros() as usize);
        FaultKind::MissingLanes { operation: call.operation.name(), mask: call.mask, missing, first }
    }
}
