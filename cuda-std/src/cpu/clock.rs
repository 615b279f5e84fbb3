//! Vector clocks, which say which events happen before which other events.
//!
//! An agent is a GPU thread, or a source of asynchronous operations such as an mbarrier. Each agent numbers
//! its events. The knowledge of a thread has one entry per agent: the number of the agent's last event that
//! happens before the thread's next event. A thread gets knowledge at a barrier from the threads that arrived
//! there.
//!
//! Asynchronous copies and `wgmma` access shared memory through another path (the async proxy) than the loads
//! and stores of threads. They see a thread's writes only after a proxy fence. Therefore a thread also has
//! fenced knowledge: the events before its last proxy fence, and those that other threads fenced before they
//! arrived at a barrier.
use std::rc::Rc;

/// For each agent, the number of its last known event. Agents past the end have the entry 0.
type Known = Rc<Vec<u32>>;

fn entry(known: &[u32], agent: u32) -> u32 {
    known.get(agent as usize).copied().unwrap_or(0)
}

fn raise(known: &mut Vec<u32>, agent: u32, time: u32) {
    let at = agent as usize;
    if known.len() <= at {
        known.resize(at + 1, 0);
    }
    known[at] = known[at].max(time);
}

fn join(into: &mut Vec<u32>, other: &[u32]) {
    if into.len() < other.len() {
        into.resize(other.len(), 0);
    }
    into.iter_mut().zip(other).for_each(|(into, &other)| *into = (*into).max(other));
}

/// The knowledge that the arrivals at a barrier released.
#[derive(Clone, Debug, Default)]
pub(super) struct Released {
    known: Known,
    fenced: Known,
}

impl Released {
    /// Whether both are the same object, not only equal.
    pub fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.known, &other.known) && Rc::ptr_eq(&self.fenced, &other.fenced)
    }
}

/// The clock of a thread: the number of its next event, and its knowledge.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    pub agent: u32,
    pub now: u32,
    released: Released,
    /// Number of the thread's own last event before its last proxy fence.
    fenced_own: u32,
}

impl Clock {
    /// Makes the clocks of `threads` threads. Each thread knows event 1 of all threads. The next event is
    /// number 2.
    pub fn of_threads(threads: u32) -> Vec<Self> {
        let released = Released { known: Rc::new(vec![1; threads as usize]), fenced: Known::default() };
        (0..threads).map(|agent| Self { agent, now: 2, released: released.clone(), fenced_own: 0 }).collect()
    }

    /// Returns whether event `time` of `agent` happens before the thread's next event.
    pub fn knows(&self, agent: u32, time: u32) -> bool {
        agent == self.agent || self.seen(agent) >= time
    }

    /// Returns whether a proxy fence follows event `time` of `agent`, before the thread's next event.
    pub fn knows_fenced(&self, agent: u32, time: u32) -> bool {
        let fenced = if agent == self.agent { self.fenced_own } else { entry(&self.released.fenced, agent) };
        fenced >= time
    }

    /// Returns the number of the last known event of another agent.
    pub fn seen(&self, agent: u32) -> u32 {
        entry(&self.released.known, agent)
    }

    /// Returns the knowledge about other agents.
    pub fn knowledge(&self) -> Released {
        self.released.clone()
    }

    /// Executes a proxy fence.
    pub fn fence(&mut self) {
        self.released.fenced = Rc::clone(&self.released.known);
        self.fenced_own = self.now;
        self.now += 1;
    }

    /// Adds the event `time` of `agent` to the knowledge.
    pub fn learn(&mut self, agent: u32, time: u32) {
        if self.seen(agent) < time {
            raise(Rc::make_mut(&mut self.released.known), agent, time);
            self.now += 1;
        }
    }
}

/// Collects the knowledge of the threads that arrive at a barrier.
#[derive(Debug, Default)]
pub(super) struct Gate {
    known: Vec<u32>,
    fenced: Vec<u32>,
    /// The knowledge that was added last. Most threads of a block have the same knowledge, except of their
    /// own events.
    last: Option<Released>,
}

impl Gate {
    /// Adds all events of a thread up to now.
    pub fn add(&mut self, clock: &mut Clock) {
        let Released { known, fenced } = &clock.released;
        let last = self.last.get_or_insert_default();
        if !Rc::ptr_eq(&last.known, known) {
            join(&mut self.known, known);
        }
        if !Rc::ptr_eq(&last.fenced, fenced) {
            join(&mut self.fenced, fenced);
        }
        *last = clock.released.clone();
        raise(&mut self.known, clock.agent, clock.now);
        raise(&mut self.fenced, clock.agent, clock.fenced_own);
        clock.now += 1;
    }

    /// Adds an event of an asynchronous operation. The async proxy sees its own writes without a fence.
    pub fn add_event(&mut self, agent: u32, time: u32) {
        raise(&mut self.known, agent, time);
        raise(&mut self.fenced, agent, time);
    }

    /// Returns the collected knowledge and empties the gate.
    pub fn open(&mut self) -> Released {
        let Self { known, fenced, .. } = std::mem::take(self);
        Released { known: Rc::new(known), fenced: Rc::new(fenced) }
    }
}

/// Adds released knowledge to the clocks of threads. Threads that had the same knowledge before share the
/// result.
#[derive(Debug, Default)]
pub(super) struct Acquirer {
    last: [Option<(Known, Known, Known)>; 2],
}

impl Acquirer {
    pub fn acquire(&mut self, clock: &mut Clock, from: &Released) {
        let [known, fenced] = &mut self.last;
        Self::update(known, &mut clock.released.known, &from.known);
        Self::update(fenced, &mut clock.released.fenced, &from.fenced);
        clock.now += 1;
    }

    fn update(last: &mut Option<(Known, Known, Known)>, known: &mut Known, from: &Known) {
        if Rc::ptr_eq(known, from) {
            return;
        }
        if let Some((before, other, result)) = last
            && Rc::ptr_eq(before, known)
            && Rc::ptr_eq(other, from)
        {
            *known = Rc::clone(result);
            return;
        }
        let mut joined = Vec::clone(from);
        join(&mut joined, known);
        let joined = Rc::new(joined);
        *last = Some((std::mem::replace(known, Rc::clone(&joined)), Rc::clone(from), joined));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_passes_through_a_barrier() {
        let mut clocks = Clock::of_threads(2);
        let [writer, reader] = &mut clocks[..] else { unreachable!() };
        let write = writer.now;
        assert!(!reader.knows(0, write));
        let mut gate = Gate::default();
        gate.add(writer);
        let later = writer.now;
        let released = gate.open();
        Acquirer::default().acquire(reader, &released);
        assert!(reader.knows(0, write) && !reader.knows(0, later) && !reader.knows_fenced(0, write));
    }

    #[test]
    fn a_fence_covers_what_happened_before_it() {
        let mut clocks = Clock::of_threads(3);
        let write = clocks[0].now;
        clocks[0].fence();
        let later = clocks[0].now;
        let mut gate = Gate::default();
        gate.add(&mut clocks[0]);
        let released = gate.open();
        Acquirer::default().acquire(&mut clocks[1], &released);
        assert!(clocks[1].knows_fenced(0, write) && !clocks[1].knows_fenced(0, later));
        assert!(clocks[1].knows(0, later));
        clocks[1].fence();
        assert!(clocks[1].knows_fenced(0, later));
        assert!(!clocks[2].knows_fenced(0, write));
    }

    #[test]
    fn threads_with_equal_knowledge_share_it() {
        let mut gate = Gate::default();
        let mut clocks = Clock::of_threads(64);
        clocks.iter_mut().for_each(|clock| gate.add(clock));
        gate.add_event(100, 3);
        let (released, mut acquirer) = (gate.open(), Acquirer::default());
        clocks.iter_mut().for_each(|clock| acquirer.acquire(clock, &released));
        assert!(clocks.iter().all(|clock| Rc::ptr_eq(&clock.released.known, &clocks[0].released.known)));
        assert!(
            clocks[5].knows(63, 2)
                && !clocks[5].knows(63, 3)
                && clocks[5].knows(100, 3)
                && !clocks[5].knows(100, 4)
        );
        clocks[5].learn(100, 4);
        assert!(clocks[5].knows(100, 4) && !clocks[6].knows(100, 4));
    }
}
