//! The coroutines that run the threads of a block, and their scheduler.
use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::block::{Block, State, with};
use super::order::{Draw, Order};
use super::stack::{self, Stack};
use super::{Fault, FaultKind};

type Thread = Coroutine<(), (), Result<(), Box<Fault>>, Stack>;

/// Runs the blocks of a launch one after the other on the calling host thread.
pub(super) struct Crew {
    threads: Vec<Option<Thread>>,
    draw: Draw,
    order: Order,
    stacks: Vec<Stack>,
}

impl Crew {
    pub fn new(threads: u32, draw: Draw) -> Self {
        let order = Order::new(threads);
        Self { threads: (0..threads).map(|_| None).collect(), draw, order, stacks: stack::take() }
    }

    /// Runs the GPU block with linear index `at` in the grid. `block` is the `Block` that this host thread
    /// reuses for every GPU block.
    pub fn run(&mut self, block: &Block, at: u64) -> Result<(), Fault> {
        self.order.draw(self.draw, at);
        block.enter(at, || {
            let outcome = self.schedule(block);
            if outcome.is_err() {
                self.dismiss(block);
            }
            outcome
        })
    }

    /// Runs the block's warps one after the other, each until all its threads wait or have returned. Then the
    /// function starts again with the first warp, until all threads have returned or no thread can continue.
    ///
    /// On a GPU, one warp may run to the next barrier before another warp starts. The CPU executor always
    /// does this. If a barrier is missing, one warp may overwrite data before another warp has read it. The
    /// executor can therefore show this error as a wrong result.
    fn schedule(&mut self, block: &Block) -> Result<(), Fault> {
        let mut live = self.threads.len();
        while live > 0 {
            let mut stalled = true;
            for warp in 0..self.order.warps() {
                while self.step(block, warp, &mut live)? {
                    stalled = false;
                }
            }
            if stalled {
                return Err(block.stalled());
            }
        }
        Ok(())
    }

    /// Lets each ready lane of a warp run until it waits or returns. Returns false if no lane was ready.
    /// `live` is the number of threads of the block that have not returned. The function decreases `live` by
    /// one for each thread that returns.
    #[inline(always)]
    fn step(&mut self, block: &Block, warp: usize, live: &mut usize) -> Result<bool, Fault> {
        let mut went = false;
        for step in 0..32 {
            let at = self.order.thread(warp, step);
            if block.slots.get(at).is_some_and(|slot| slot.state.get() == State::Ready) {
                went = true;
                block.running.set(at);
                *live -= usize::from(self.resume(block, at)?);
            }
        }
        Ok(went)
    }

    /// Runs thread `at` until it waits or returns. The result is `Ok(true)` if the thread has returned.
    fn resume(&mut self, block: &Block, at: usize) -> Result<bool, Fault> {
        let thread = match &mut self.threads[at] {
            Some(thread) => thread,
            none => {
                let stack = match self.stacks.pop() {
                    Some(stack) => stack,
                    None => Stack::new(at)
                        .map_err(|error| block.fault_of(at, FaultKind::Stack(error.to_string())))?,
                };
                none.insert(Thread::with_stack(stack, |yielder, ()| thread_main(yielder)))
            }
        };
        let CoroutineResult::Return(result) = thread.resume(()) else { return Ok(false) };
        block.slots[at].state.set(State::Returned);
        self.stacks.extend(self.threads[at].take().map(Thread::into_stack));
        result.map(|()| true).map_err(|fault| *fault)
    }

    /// After a fault in the block, unwinds all threads that have not returned. Unwinding drops the values
    /// that these threads own.
    fn dismiss(&mut self, block: &Block) {
        for (at, thread) in self.threads.iter_mut().enumerate() {
            if let Some(mut thread) = thread.take() {
                block.running.set(at);
                thread.force_unwind();
                self.stacks.push(thread.into_stack());
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        stack::keep(core::mem::take(&mut self.stacks));
    }
}

/// The function that every coroutine executes. It runs the kernel for one GPU thread, and converts a panic of
/// the kernel into a [`Fault`].
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
                Box::new(block.fault_of(block.linear_index(), FaultKind::Panic(message)))
            })
        })
    })
}
