//! The coroutines that run the threads of a cluster of blocks, and their scheduler.
use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::block::{Block, State, enter, reset_global, with};
use super::order::{Draw, Order};
use super::stack::{self, Stack};
use super::{Fault, FaultKind};

type Thread = Coroutine<(), (), Result<(), Box<Fault>>, Stack>;

/// Maximum number of consecutive rounds without progress in which threads test mbarriers. Progress is an
/// arrival, a copy that starts or ends, or a thread that returns.
const MAX_POLLS: u32 = 10_000;

/// Counts the rounds since the last progress in which threads tested mbarriers without success.
#[derive(Default)]
struct Polls {
    rounds: u32,
    /// The cluster's count of progress in the last round.
    progress: u64,
}

/// The threads of one block, and the order in which they run.
struct Threads {
    all: Vec<Option<Thread>>,
    order: Order,
    live: usize,
}

/// Runs the clusters of a launch one after the other on the calling host thread.
pub(super) struct Crew {
    blocks: Vec<Threads>,
    draw: Draw,
    stacks: Vec<Stack>,
}

impl Crew {
    /// Creates a `Crew`, which can run clusters of `blocks` blocks with `threads` threads each.
    pub fn new(blocks: u32, threads: u32, draw: Draw) -> Self {
        let of_block =
            |_| Threads { all: (0..threads).map(|_| None).collect(), order: Order::new(threads), live: 0 };
        Self { blocks: (0..blocks).map(of_block).collect(), draw, stacks: stack::take() }
    }

    /// Runs cluster number `at`. `blocks` are the `Block`s that this host thread reuses for every cluster.
    /// The caller has reset them.
    pub fn run(&mut self, blocks: &[Block], at: u64) -> Result<(), Fault> {
        let count = blocks.len() as u64;
        for (threads, number) in self.blocks.iter_mut().zip(at * count..) {
            threads.order.draw(self.draw, number);
            threads.live = threads.all.len();
        }
        enter(|| {
            let outcome = self.schedule(blocks);
            if outcome.is_err() {
                self.dismiss(blocks);
            }
            outcome
        })
    }

    /// Runs the warps of each block one after the other, each until all its threads wait or have returned.
    /// The function repeats these steps until all threads have returned. If no thread can continue, it
    /// completes an asynchronous copy.
    ///
    /// On a GPU, one warp may run to the next barrier before another warp starts. The CPU executor always
    /// runs warps in this way. If a barrier is missing, one warp then overwrites data before another warp has
    /// read it, so the result is wrong.
    fn schedule(&mut self, blocks: &[Block]) -> Result<(), Fault> {
        let mut polls = Polls::default();
        while self.blocks.iter().any(|threads| threads.live > 0) {
            let mut stalled = true;
            for (threads, block) in self.blocks.iter_mut().zip(blocks) {
                block.make_current();
                for warp in 0..threads.order.warps() {
                    while threads.step(block, warp, &mut self.stacks)? {
                        stalled = false;
                    }
                }
            }
            if stalled {
                self.unblock(blocks, &mut polls)?;
            }
        }
        // A thread may return before its copies from shared memory have written their bytes. Complete these
        // copies here.
        while blocks[0].cluster.complete_one() {}
        Ok(())
    }

    /// Called when no thread can continue. Completes an asynchronous copy if one is pending. Otherwise, lets
    /// the threads that poll mbarriers test them again. If no thread polls, returns the fault of a waiting
    /// thread.
    #[cold]
    #[inline(never)]
    fn unblock(&self, blocks: &[Block], polls: &mut Polls) -> Result<(), Fault> {
        let cluster = &blocks[0].cluster;
        if cluster.complete_one() {
            return Ok(());
        }
        let progress = cluster.progress.get();
        if progress != polls.progress {
            *polls = Polls { rounds: 0, progress };
        }
        polls.rounds += 1;
        let wake = || blocks.iter().filter(|block| block.wake(State::Polling)).count();
        if polls.rounds <= MAX_POLLS && wake() > 0 {
            return Ok(());
        }
        let has = |block: &&Block, state| block.states().any(|found| found.get() == state);
        let waiting: Vec<_> =
            blocks.iter().zip(&self.blocks).filter(|(_, threads)| threads.live > 0).collect();
        // Threads that wait at a block barrier are usually not the cause, because the missing threads of
        // their block wait for another block. If there is a block without such threads, report this block.
        let first = waiting.iter().find(|(block, _)| !has(block, State::AtBarrier)).or(waiting.first());
        Err(first.expect("a thread lives").0.stalled())
    }

    /// After a fault in a block, unwinds all threads that have not returned. Unwinding drops the values that
    /// these threads own.
    fn dismiss(&mut self, blocks: &[Block]) {
        for (threads, block) in self.blocks.iter_mut().zip(blocks) {
            block.make_current();
            // Destructors that run during unwinding may make warp calls, such as shuffles. Delete the calls
            // of suspended lanes, so that no values are exchanged with them.
            block.calling.iter().for_each(|lanes| lanes.set(0));
            for (at, thread) in threads.all.iter_mut().enumerate() {
                if let Some(mut thread) = thread.take() {
                    block.running.set(at);
                    thread.force_unwind();
                    self.stacks.push(thread.into_stack());
                }
            }
        }
    }
}

impl Threads {
    /// Lets each ready lane of a warp run until it waits or returns. Returns false if no lane was ready.
    #[inline(always)]
    fn step(&mut self, block: &Block, warp: usize, stacks: &mut Vec<Stack>) -> Result<bool, Fault> {
        let mut went = false;
        for step in 0..32 {
            let at = self.order.thread(warp, step);
            if block.slots.get(at).is_some_and(|slot| slot.state.get() == State::Ready) {
                went = true;
                block.running.set(at);
                if self.resume(block, at, stacks)? {
                    self.returned(block, at)?;
                }
            }
        }
        Ok(went)
    }

    /// Runs thread `at` until it waits or returns. The result is `Ok(true)` if the thread has returned.
    fn resume(&mut self, block: &Block, at: usize, stacks: &mut Vec<Stack>) -> Result<bool, Fault> {
        let thread = match &mut self.all[at] {
            Some(thread) => thread,
            none => none.insert(new_thread(block, at, stacks)?),
        };
        reset_global();
        let CoroutineResult::Return(result) = thread.resume(()) else { return Ok(false) };
        block.slots[at].state.set(State::Returned);
        stacks.extend(self.all[at].take().map(Thread::into_stack));
        result.map(|()| true).map_err(|fault| *fault)
    }

    /// Counts thread `at` as returned.
    #[inline(never)]
    fn returned(&mut self, block: &Block, at: usize) -> Result<(), Fault> {
        self.live -= 1;
        if block.cluster.is_active() {
            block.cluster.note_progress();
            block.returns().map_err(|kind| block.fault_without_location(at, kind))?;
        }
        if self.live == 0 {
            block.exits().map_err(|(thread, kind)| block.fault_without_location(thread, kind))?;
        }
        if block.cluster.barrier_used.get() {
            block.returns_from_cluster_barrier(at);
        }
        Ok(())
    }
}

/// Makes the coroutine of thread `at`, with one of `stacks` or a new stack.
fn new_thread(block: &Block, at: usize, stacks: &mut Vec<Stack>) -> Result<Thread, Fault> {
    let stack = match stacks.pop() {
        Some(stack) => stack,
        None => Stack::new(at)
            .map_err(|error| block.fault_without_location(at, FaultKind::Stack(error.to_string())))?,
    };
    Ok(Thread::with_stack(stack, |yielder, ()| thread_main(yielder)))
}

impl Drop for Crew {
    fn drop(&mut self) {
        stack::keep(core::mem::take(&mut self.stacks));
    }
}

/// The function that every coroutine executes. It runs the kernel for one GPU thread, and converts a panic of
/// the kernel into a [`Fault`]. The function is inlined, because the host CPU mispredicts each return
/// instruction that follows a switch of coroutines.
#[inline(always)]
fn thread_main(yielder: &Yielder<(), ()>) -> Result<(), Box<Fault>> {
    with(|block| {
        block.thread().yielder.set(yielder);
        catch_unwind(AssertUnwindSafe(|| block.run_thread())).map_err(|payload| {
            payload.downcast::<Fault>().unwrap_or_else(|payload| {
                let message = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
                    (Some(text), _) => (*text).to_owned(),
                    (_, Some(text)) => text.clone(),
                    _ => "a payload that is no text".to_owned(),
                };
                Box::new(block.fault_without_location(block.linear_index(), FaultKind::Panic(message)))
            })
        })
    })
}
