//! The state of one GPU block on the CPU executor: its threads, its shared memory, and the call at which each
//! thread waits.
//!
//! One host thread runs a block from start to end, so the mutable fields of [`Block`] are cells (`Cell`,
//! `RefCell`) without locks. The functions of [`arch`](crate::arch) find the running block through the
//! thread-local variable [`CURRENT`]. Each GPU thread is a coroutine. Before the scheduler resumes a
//! coroutine, it stores the index of the GPU thread in the field `running`.
use core::cell::{Cell, RefCell};
use core::ffi::c_void;
use core::panic::Location;
use core::ptr;
use std::rc::Rc;

use corosensei::Yielder;

use super::cluster::Cluster;
use super::copies::Copies;
use super::race::Races;
use super::warp::Call;
use super::{Absence, Fault, FaultKind, Launch};
use crate::launch::Run;

thread_local! {
    /// Whether the running thread has accessed global memory since the scheduler resumed it.
    static GLOBAL: Cell<bool> = const { Cell::new(false) };
    static CURRENT: Cell<*const Block> = const { Cell::new(ptr::null()) };
}

/// Calls `f`, which runs blocks on this host thread. After the call, [`CURRENT`] (the running block) has its
/// former value again.
pub(super) fn enter<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(*const Block);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _restore = Restore(CURRENT.get());
    f()
}

/// Returns whether a kernel is running on this host thread.
pub(super) fn inside_kernel() -> bool {
    !CURRENT.get().is_null()
}

/// Calls `f` with the block that runs on this host thread.
#[inline(always)]
pub(crate) fn with<R>(f: impl FnOnce(&Block) -> R) -> R {
    // SAFETY: the block is used only until this call returns.
    f(unsafe { current() })
}

/// Calls `f` with the running block, as [`with`] does, for an operation that may wait or raise a fault. If
/// the running thread already unwinds after a fault, the function returns the default value without a call of
/// `f`. [`Block::unwinds`] gives the reason.
#[inline(always)]
pub(crate) fn operate<R: Default>(f: impl FnOnce(&Block) -> R) -> R {
    with(|block| if block.unwinds() { R::default() } else { f(block) })
}

/// Returns the block that runs on this host thread. In contrast to a closure that is passed to [`with`], code
/// that uses the returned reference is always inlined.
///
/// # Safety
/// The caller uses the block only while the running thread runs.
#[inline(always)]
pub(crate) unsafe fn current<'a>() -> &'a Block {
    let block = CURRENT.get();
    assert!(!block.is_null(), "a device function was called outside a kernel");
    // SAFETY: `Block::make_current` sets the pointer, and its caller keeps the block.
    unsafe { &*block }
}

/// Stores the location of the call in the kernel's source code. A fault of the running thread reports this
/// location.
#[inline(always)]
#[track_caller]
pub(crate) fn here() {
    let at = Location::caller();
    with(|block| block.thread().site.set(Some(at)));
}

/// Notes that the running thread accesses global memory.
#[inline(always)]
pub(crate) fn note_global() {
    GLOBAL.set(true);
}

/// Raises a fault if the running thread has accessed global memory since the scheduler resumed it. The
/// running thread calls this function when it waits for earlier launches. Before this wait, it must not
/// access global memory.
#[track_caller]
pub(crate) fn expect_no_global() {
    if GLOBAL.get() {
        let at = Location::caller();
        operate::<()>(|block| block.raise_at(at, FaultKind::EarlyAccess));
    }
}

/// Clears the flag which records that the running thread has accessed global memory. The scheduler calls this
/// function when it resumes a thread.
#[inline(always)]
pub(super) fn reset_global() {
    GLOBAL.set(false);
}

/// Scheduling state of a GPU thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    AtBarrier,
    AtCall,
    AtMbarrier,
    AtNamed,
    AtCluster,
    AtRegisters,
    AtWgmma,
    /// The thread waits until a phase of an mbarrier ends or no other thread can continue. Then it tests the
    /// mbarrier again.
    Polling,
    Returned,
}

/// One GPU thread of the block.
pub(super) struct Slot {
    pub index: [u32; 3],
    pub state: Cell<State>,
    pub call: Cell<Call>,
    pub yielder: Cell<*const Yielder<(), ()>>,
    /// The place in the kernel's source code of the thread's last call of a device function.
    pub site: Cell<Option<&'static Location<'static>>>,
}

/// The part of a GPU thread's state that the scheduler does not read. The part that the scheduler reads is in
/// [`Slot`], which is therefore small.
#[derive(Default)]
pub(super) struct ThreadNotes {
    /// What the thread waits for. In the states `AtMbarrier` and `Polling`: the offset and the phase of the
    /// mbarrier. In the state `AtNamed`: the number of the named barrier, and its number of threads. In the
    /// state `AtWgmma`: the number of the group.
    pub waits_for: Cell<Option<(u32, u32)>>,
    /// Number of calls at the barrier of the cluster.
    pub cluster_arrivals: Cell<u32>,
    pub cluster_waits: Cell<u32>,
}

/// The unit in which shared memory is allocated. Its alignment makes the shared memory start at a multiple of
/// 128 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct AlignedUnit([u8; 128]);

/// The state of one GPU block. In a launch, each worker (host thread) creates one `Block` and reuses it for
/// every GPU block that the worker runs.
pub(crate) struct Block {
    kernel: &'static str,
    run: Run,
    pub shape: Launch,
    args: *const [*const c_void],
    pub index: Cell<[u32; 3]>,
    /// The cluster of the block, and the block's rank in it.
    pub(super) cluster: Rc<Cluster>,
    pub(super) rank: Cell<u32>,
    pub(super) slots: Vec<Slot>,
    pub(super) notes: Vec<ThreadNotes>,
    /// For each warp, the mask of lanes that wait at a shuffle, vote, warp barrier or `mma`.
    pub(super) calling: Vec<Cell<u32>>,
    pub(super) running: Cell<usize>,
    at_barrier: Cell<usize>,
    shared: RefCell<Vec<AlignedUnit>>,
    shared_base: *mut u8,
    host_panics: bool,
    pub(super) races: Races,
    pub(super) copies: Copies,
}

impl Block {
    /// # Safety
    /// The requirements of [`launch`](super::launch) apply as long as the returned `Block` exists.
    pub(super) unsafe fn new(
        kernel: &'static str,
        run: Run,
        shape: &Launch,
        args: &[*const c_void],
        cluster: &Rc<Cluster>,
        rank: u32,
    ) -> Self {
        let [dim_x, dim_y, dim_z] = shape.block;
        let threads = (dim_x * dim_y * dim_z) as usize;
        let slot = |t: u32| Slot {
            index: [t % dim_x, t / dim_x % dim_y, t / dim_x / dim_y],
            state: Cell::new(State::Ready),
            call: Cell::new(Call::NONE),
            yielder: Cell::new(ptr::null()),
            site: Cell::new(None),
        };
        let mut shared =
            vec![AlignedUnit([0; 128]); (shape.shared_bytes as usize).div_ceil(size_of::<AlignedUnit>())];
        Self {
            kernel,
            run,
            shape: *shape,
            args,
            index: Cell::new([0; 3]),
            cluster: Rc::clone(cluster),
            rank: Cell::new(rank),
            slots: (0..threads as u32).map(slot).collect(),
            notes: (0..threads).map(|_| ThreadNotes::default()).collect(),
            calling: vec![Cell::new(0); threads.div_ceil(32)],
            running: Cell::new(0),
            at_barrier: Cell::new(0),
            shared_base: shared.as_mut_ptr().cast(),
            shared: RefCell::new(shared),
            host_panics: std::thread::panicking(),
            races: Races::new(shape.shared_bytes, threads.div_ceil(32)),
            copies: Copies::new(threads),
        }
    }

    /// Resets this `Block`, so that it represents the GPU block with this index in the grid.
    pub(super) fn reset(&self, index: [u32; 3]) {
        self.index.set(index);
        self.states().for_each(|state| state.set(State::Ready));
        if self.cluster.is_active() || self.cluster.barrier_used.get() {
            for notes in &self.notes {
                notes.waits_for.set(None);
                notes.cluster_arrivals.set(0);
                notes.cluster_waits.set(0);
            }
        }
        self.calling.iter().for_each(|lanes| lanes.set(0));
        self.at_barrier.set(0);
        self.races.begin();
        self.copies.clear();
        let lines = self.shared.borrow().len();
        // SAFETY: `shared_base` points to `lines` allocated units, and no GPU thread accesses these units
        // yet.
        unsafe { self.shared_base.write_bytes(0xFF, lines * size_of::<AlignedUnit>()) };
    }

    /// Makes device functions use this block. The block must exist until the function [`enter`] returns.
    pub(super) fn make_current(&self) {
        CURRENT.set(self);
    }

    /// Returns the address of argument `number` of the kernel.
    pub(crate) fn argument(&self, number: u32) -> *const c_void {
        // SAFETY: the caller of `new` passed arguments that stay valid.
        let args = unsafe { &*self.args };
        args[number as usize]
    }

    /// Runs the kernel's body for the running thread.
    pub(super) fn run_thread(&self) {
        // SAFETY: the caller of `new` passed valid arguments for the kernel.
        unsafe { (self.run)(&*self.args) }
    }

    #[inline(always)]
    pub(super) fn thread(&self) -> &Slot {
        &self.slots[self.running.get()]
    }

    #[inline(always)]
    pub(super) fn own_notes(&self) -> &ThreadNotes {
        &self.notes[self.running.get()]
    }

    #[inline]
    pub(crate) fn thread_index(&self) -> [u32; 3] {
        self.thread().index
    }

    #[inline]
    pub(crate) fn linear_index(&self) -> usize {
        self.running.get()
    }

    #[inline]
    pub(crate) fn threads(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn cluster_size(&self) -> u32 {
        self.cluster.blocks.get()
    }

    pub(crate) fn cluster_rank(&self) -> u32 {
        self.rank.get()
    }

    #[inline]
    pub(crate) fn shared_base(&self) -> *mut u8 {
        self.shared_base
    }

    /// Waits at the block barrier until every thread of the block has arrived. The last thread to arrive
    /// continues at once.
    #[inline(always)]
    pub(crate) fn barrier(&self, at: &'static Location<'static>) {
        self.thread().site.set(Some(at));
        if !self.arrive() {
            self.suspend();
        }
    }

    /// Counts the running thread as arrived at the block barrier. Returns false if the caller must suspend
    /// the thread.
    fn arrive(&self) -> bool {
        let arrived = self.at_barrier.get() + 1;
        if arrived < self.slots.len() {
            self.at_barrier.set(arrived);
            return !self.may_wait(State::AtBarrier);
        }
        self.complete_barrier();
        true
    }

    /// Lets all threads that wait at the block barrier continue. The running thread is the last to arrive
    /// there.
    #[inline(never)]
    fn complete_barrier(&self) {
        self.at_barrier.set(0);
        self.races.barrier();
        if self.cluster.is_active() {
            self.synchronize_active(0..self.slots.len());
        }
        self.states().for_each(|state| state.set(State::Ready));
    }

    /// Returns whether the running thread unwinds after a fault or a panic.
    ///
    /// A destructor that runs during unwinding may call a device function. If the device function suspended
    /// the thread, the executor could unwind this thread a second time. If the device function raised a
    /// fault, there would be a panic during a panic. Both would abort the process, so device functions do
    /// nothing while the thread unwinds.
    #[inline]
    pub(super) fn unwinds(&self) -> bool {
        !self.host_panics && std::thread::panicking()
    }

    /// Marks the running thread as waiting. Returns false, and marks nothing, if the thread unwinds.
    pub(super) fn may_wait(&self, state: State) -> bool {
        let may = !self.unwinds();
        if may {
            self.slots[self.running.get()].state.set(state);
        }
        may
    }

    /// Returns the states of all threads.
    pub(super) fn states(&self) -> impl Iterator<Item = &Cell<State>> + Clone {
        self.slots.iter().map(|slot| &slot.state)
    }

    /// Marks the threads in the state `state` as ready. Returns whether there were such threads.
    pub(super) fn wake(&self, state: State) -> bool {
        let waiting = self.states().filter(|found| found.get() == state);
        waiting.map(|found| found.set(State::Ready)).count() > 0
    }

    /// Suspends the running thread until another thread marks it as ready.
    ///
    /// The function is inlined into the kernel, because this makes a thread switch faster. After each switch,
    /// the host CPU mispredicts every return instruction between the coroutine library and the kernel.
    /// Inlining removes one of these instructions.
    #[inline(always)]
    pub(super) fn suspend(&self) {
        // SAFETY: the code dereferences the pointer `yielder`. The coroutine of the running thread stored
        // this pointer, and this coroutine still runs.
        unsafe { &*self.thread().yielder.get() }.suspend(());
    }

    pub(super) fn fault_of(&self, thread: usize, kind: FaultKind) -> Fault {
        let location = self.slots[thread].site.get();
        Fault { location, ..self.fault_without_location(thread, kind) }
    }

    pub(super) fn fault_without_location(&self, thread: usize, kind: FaultKind) -> Fault {
        let thread = self.slots[thread].index;
        Fault { kernel: self.kernel, block: self.index.get(), thread, location: None, kind }
    }

    /// Ends the running thread with a fault. The launch then fails with this fault.
    #[cold]
    pub(crate) fn raise(&self, kind: FaultKind) -> ! {
        std::panic::resume_unwind(Box::new(self.fault_of(self.running.get(), kind)))
    }

    /// Ends the running thread with a fault. The fault names the call at `at` in the kernel's source code.
    #[cold]
    pub(crate) fn raise_at(&self, at: &'static Location<'static>, kind: FaultKind) -> ! {
        self.thread().site.set(Some(at));
        self.raise(kind)
    }

    /// Returns the fault to report for a block in which no thread can continue.
    ///
    /// Some threads may wait at a warp call (shuffle, vote, warp barrier or `mma`) while others wait at the
    /// block barrier. The function then reports the warp call. The warp call is the cause, because the
    /// barrier cannot complete before the threads at the warp call arrive there.
    pub(super) fn stalled(&self) -> Fault {
        let first = |state| self.states().position(|found| found.get() == state);
        if let Some(thread) = first(State::AtCall) {
            return self.fault_of(thread, self.missing_lanes(thread));
        }
        if let Some(thread) = first(State::AtWgmma)
            && self.lacks_returned_warp(thread)
        {
            return self.fault_of(thread, self.stalled_at_wgmma(thread));
        }
        if let Some(thread) = first(State::AtMbarrier) {
            return self.fault_of(thread, self.stalled_at_mbarrier(thread));
        }
        if let Some(thread) = first(State::AtNamed) {
            return self.fault_of(thread, self.stalled_at_named(thread));
        }
        if let Some(thread) = first(State::AtRegisters) {
            return self.fault_of(thread, self.stalled_at_registers());
        }
        if let Some(thread) = first(State::AtWgmma) {
            return self.fault_of(thread, self.stalled_at_wgmma(thread));
        }
        if let Some(thread) = first(State::AtCluster) {
            return self.fault_of(thread, self.stalled_at_cluster());
        }
        if let Some(thread) = first(State::Polling) {
            return self.fault_of(thread, FaultKind::Polling);
        }
        let (waiting, absent) = (first(State::AtBarrier), first(State::Returned));
        let (waiting, absent) = (waiting.expect("somebody waits"), absent.expect("somebody is missing"));
        let kind = FaultKind::Barrier {
            waiting: self.at_barrier.get() as u32,
            threads: self.threads(),
            absent: self.slots[absent].index,
        };
        self.fault_of(waiting, kind)
    }

    /// Returns the reason why thread `thread` does not take part in a warp call.
    pub(super) fn absence(&self, thread: usize) -> Absence {
        match self.slots[thread].state.get() {
            State::AtBarrier => Absence::AtBarrier,
            State::AtCall => self.slots[thread].call.get().absence(),
            State::AtMbarrier
            | State::AtNamed
            | State::AtCluster
            | State::AtRegisters
            | State::AtWgmma
            | State::Polling => Absence::Waiting,
            State::Returned | State::Ready => Absence::Returned,
        }
    }
}
