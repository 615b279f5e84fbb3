//! The coroutines that play the threads of a block, and the order in which they take turns.
use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::block::{Block, State, with};
use super::stack::{self, Stack};
use super::{Fault, FaultKind};

type Thread = Coroutine<(), (), Result<(), Box<Fault>>, Stack>;

/// Runs blocks, one after the other, on the calling host thread.
pub(super) struct Crew {
    threads: Vec<Option<Thread>>,
    stacks: Vec<Stack>,
}

impl Crew {
    pub fn new(threads: u32) -> Self {
        Self { threads: (0..threads).map(|_| None).collect(), stacks: stack::take() }
    }

    /// Runs `block` as number `at` of its grid.
    pub fn run(&mut self, block: &Block, at: u64) -> Result<(), Fault> {
        block.enter(at, || {
            let outcome = self.schedule(block);
            if outcome.is_err() {
                self.dismiss(block);
            }
            outcome
        })
    }

    /// Gives every thread that can go on its turn, in order, until all have returned or none can go on.
    fn schedule(&mut self, block: &Block) -> Result<(), Fault> {
        let mut live = self.threads.len();
        while live > 0 {
            let mut stalled = true;
            for at in 0..self.threads.len() {
                if block.slots[at].state.get() == State::Ready {
                    stalled = false;
                    block.running.set(at);
                    live -= usize::from(self.resume(block, at)?);
                }
            }
            if stalled {
                return Err(block.stalled());
            }
        }
        Ok(())
    }

    /// Lets thread `at` run until it waits or returns; true if it has returned.
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

    /// Unwinds the threads that a fault left waiting, which drops what they own.
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

/// The root of every coroutine: nothing unwinds past it.
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
