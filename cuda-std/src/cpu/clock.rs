//! Vector clocks, which say which events happen before which other events.
//!
//! An agent is a GPU thread, or a source of asynchronous operations such as an mbarrier. Each agent numbers
//! its events. The *knowledge* of a thread is the set of events that happen before the thread's next event.
//! It has one entry per agent: the number of the agent's last event in the set. At a barrier, each thread
//! adds the knowledge of all arrived threads to its own.
//!
//! Asynchronous copies and `wgmma` access shared memory through the async proxy, and loads and stores of
//! threads through the generic proxy. The async proxy sees a thread's writes only after a proxy fence.
//! Therefore a thread also has *fenced knowledge*. It contains the events before the thread's last proxy
//! fence. At a barrier, the thread adds the fenced knowledge of the other threads.
use std::rc::Rc;

/// A vector clock, which represents a set of events. For each agent (a thread or another source of accesses),
/// it has the number of the agent's last event in the set. Agents past the end have the entry 0.
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

/// Returns whether `other` has no event that `known` lacks.
fn covers(known: &[u32], other: &[u32]) -> bool {
    let (common, rest) = other.split_at(known.len().min(other.len()));
    common.iter().zip(known).all(|(other, known)| other <= known) && rest.iter().all(|&time| time == 0)
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

/// The clock of a thread: the number of its next event, and its knowledge (the events of all agents that
/// happen before this next event).
#[derive(Clone, Debug)]
pub(super) struct Clock {
    pub agent: u32,
    pub now: u32,
    released: Released,
    /// Number of the last event of this thread before its last proxy fence.
    fenced_own: u32,
}

/// The executor records no events until the cluster becomes active (the first Hopper operation). Three event
/// numbers then stand for all earlier accesses of a thread. `BEFORE_BLOCK_BARRIER` is for accesses that a
/// block barrier followed, and `BEFORE_WARP_BARRIER` for accesses that only a warp barrier followed.
/// `BEFORE_NO_BARRIER` is for all others.
pub(super) const BEFORE_BLOCK_BARRIER: u32 = 1;
pub(super) const BEFORE_WARP_BARRIER: u32 = 2;
pub(super) const BEFORE_NO_BARRIER: u32 = 3;

impl Clock {
    /// Creates the clocks of `blocks` blocks of `threads` threads. At first, a thread knows the accesses of
    /// its block that a block barrier followed.
    pub fn of_threads(blocks: u32, threads: u32) -> Vec<Self> {
        let of_block = |rank: u32| {
            let mut known = vec![0; (rank * threads) as usize];
            known.resize(known.len() + threads as usize, BEFORE_BLOCK_BARRIER);
            Released { known: Rc::new(known), fenced: Known::default() }
        };
        let of_threads = |rank: u32| {
            let released = of_block(rank);
            (rank * threads..(rank + 1) * threads).map(move |agent| Self {
                agent,
                now: BEFORE_NO_BARRIER + 1,
                released: released.clone(),
                fenced_own: 0,
            })
        };
        (0..blocks).flat_map(of_threads).collect()
    }

    /// Adds the accesses of all lanes of a warp before their last warp barrier to the knowledge of each lane.
    /// The clocks must be new, because the function gives all lanes the same knowledge.
    pub fn know_each_other(lanes: &mut [Self]) {
        let mut known = Vec::clone(&lanes[0].released.known);
        lanes.iter().for_each(|lane| raise(&mut known, lane.agent, BEFORE_WARP_BARRIER));
        let known = Rc::new(known);
        lanes.iter_mut().for_each(|lane| lane.released.known = Rc::clone(&known));
    }

    /// Returns whether event number `time` of the agent `agent` (a thread or another source of accesses)
    /// happens before the thread's next event.
    pub fn knows(&self, agent: u32, time: u32) -> bool {
        agent == self.agent || self.seen(agent) >= time
    }

    /// Returns a bit mask of agents. Bit `i` is set if event number `time` of the agent `32 * group + i` is
    /// not in the thread's knowledge.
    pub fn unknown(&self, group: u32, time: u32) -> u32 {
        let first = 32 * group as usize;
        let known = self.released.known.get(first..).unwrap_or_default();
        let mut unknown = u32::MAX;
        for (bit, &seen) in known.iter().take(32).enumerate() {
            unknown ^= u32::from(seen >= time) << bit;
        }
        if self.agent / 32 == group { unknown & !(1 << (self.agent % 32)) } else { unknown }
    }

    /// Returns whether a proxy fence lies between event number `time` of the agent `agent` and the thread's
    /// next event. Any thread may have executed the fence, even if the event is the calling thread's own. In
    /// PTX, base causality order is transitive, so the fence needs only to lie on some path from the event to
    /// the next event.
    pub fn knows_fenced(&self, agent: u32, time: u32) -> bool {
        let own = if agent == self.agent { self.fenced_own } else { 0 };
        own.max(entry(&self.released.fenced, agent)) >= time
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
}

/// Collects the knowledge of the threads that arrive at a barrier.
#[derive(Debug, Default)]
pub(super) struct Gate {
    known: Vec<u32>,
    fenced: Vec<u32>,
    /// The knowledge (set of earlier events) that the previous thread added. Most threads of a block share
    /// one object of knowledge, and adding the same object again would change nothing.
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
        if clock.fenced_own > 0 {
            raise(&mut self.fenced, clock.agent, clock.fenced_own);
        }
        clock.now += 1;
    }

    /// Adds the asynchronous operations in the knowledge of a thread. Their agents have the numbers from
    /// `threads` on. Adds no events of threads, neither of this thread nor of others.
    pub fn add_asynchronous(&mut self, clock: &Clock, threads: u32) {
        for (agent, &time) in (0..).zip(clock.released.known.iter()).skip(threads as usize) {
            self.add_event(agent, time);
        }
    }

    /// Adds an event of an asynchronous operation, to the knowledge and to the fenced knowledge. The async
    /// proxy sees its own writes without a proxy fence.
    pub fn add_event(&mut self, agent: u32, time: u32) {
        raise(&mut self.known, agent, time);
        raise(&mut self.fenced, agent, time);
    }

    /// Returns the collected knowledge and empties the gate.
    pub fn open(&mut self) -> Released {
        let Self { known, fenced, last } = std::mem::take(self);
        // Without a new fence, the collected fenced knowledge equals that of the threads. Reuse their object,
        // so that the clocks keep sharing it.
        let kept = last.map(|last| last.fenced).filter(|last| covers(last, &fenced));
        Released { known: Rc::new(known), fenced: kept.unwrap_or_else(|| Rc::new(fenced)) }
    }
}

/// What a thread adds to its knowledge.
#[derive(Clone, Debug)]
enum Lesson {
    Knowledge(Known),
    /// An event of an agent.
    Event(u32, u32),
}

impl Lesson {
    /// Returns the union of `known`, the knowledge of a thread, and this lesson, which is new knowledge. If
    /// one of them contains the other, the function returns the larger one without creating a new object.
    fn added_to(&self, known: &Known) -> Known {
        match self {
            Self::Knowledge(from) if covers(from, known) => Rc::clone(from),
            Self::Knowledge(from) if covers(known, from) => Rc::clone(known),
            Self::Knowledge(from) => {
                let mut joined = Vec::clone(from);
                join(&mut joined, known);
                Rc::new(joined)
            }
            &Self::Event(agent, time) if entry(known, agent) >= time => Rc::clone(known),
            &Self::Event(agent, time) => {
                let mut raised = Vec::clone(known);
                raise(&mut raised, agent, time);
                Rc::new(raised)
            }
        }
    }
}

/// A cache of recent additions to the knowledge of threads. Each entry has the knowledge before the addition,
/// the lesson (the knowledge that was added), and the knowledge after it. There are several entries, because
/// a lane of a warp may add several lessons before the next lane adds the first of them.
#[derive(Debug, Default)]
struct Lessons {
    last: Vec<(Known, Lesson, Known)>,
    newest: usize,
}

impl Lessons {
    const KEPT: usize = 32;

    /// Returns `known` plus a lesson (knowledge to add), if the cache contains the result of this addition.
    #[inline]
    fn recall(&self, known: &Known, is_lesson: impl Fn(&Lesson) -> bool) -> Option<Known> {
        let fits =
            |(before, lesson, _): &&(Known, Lesson, Known)| Rc::ptr_eq(before, known) && is_lesson(lesson);
        let newest = self.last.get(self.newest).filter(fits);
        newest.or_else(|| self.last.iter().find(fits)).map(|(_, _, after)| Rc::clone(after))
    }

    #[inline(never)]
    fn add(&mut self, known: &mut Known, lesson: Lesson) {
        let mut after = lesson.added_to(known);
        // Threads may add the same lessons (pieces of knowledge) in different orders, with equal results. Let
        // these threads share one object.
        if let Some((_, _, equal)) = self.last.iter().find(|(_, _, result)| *result == after) {
            after = Rc::clone(equal);
        }
        let added = (std::mem::replace(known, Rc::clone(&after)), lesson, after);
        if self.last.len() < Self::KEPT {
            self.newest = self.last.len();
            self.last.push(added);
        } else {
            self.newest = (self.newest + 1) % Self::KEPT;
            self.last[self.newest] = added;
        }
    }
}

/// Adds knowledge to the clocks of threads. If several threads with the same knowledge make the same
/// addition, they share the resulting object.
#[derive(Debug, Default)]
pub(super) struct Acquirer {
    known: Lessons,
    fenced: Lessons,
}

impl Acquirer {
    /// Adds released knowledge to a clock.
    pub fn acquire(&mut self, clock: &mut Clock, from: &Released) {
        let Released { known, fenced } = &mut clock.released;
        Self::update(&mut self.known, known, &from.known);
        Self::update(&mut self.fenced, fenced, &from.fenced);
        clock.now += 1;
    }

    #[inline]
    fn update(lessons: &mut Lessons, known: &mut Known, from: &Known) {
        if Rc::ptr_eq(known, from) {
            return;
        }
        let is_from = |lesson: &Lesson| matches!(lesson, Lesson::Knowledge(other) if Rc::ptr_eq(other, from));
        match lessons.recall(known, is_from) {
            Some(after) => *known = after,
            None => lessons.add(known, Lesson::Knowledge(Rc::clone(from))),
        }
    }

    /// Adds the event `time` of `agent` to a clock.
    pub fn learn(&mut self, clock: &mut Clock, agent: u32, time: u32) {
        if clock.seen(agent) < time {
            let known = &mut clock.released.known;
            let is_event =
                |lesson: &Lesson| matches!(lesson, &Lesson::Event(a, t) if (a, t) == (agent, time));
            match self.known.recall(known, is_event) {
                Some(after) => *known = after,
                None => self.known.add(known, Lesson::Event(agent, time)),
            }
            clock.now += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_passes_through_a_barrier() {
        let mut clocks = Clock::of_threads(1, 2);
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
    fn asynchronous_knowledge_passes_without_that_about_threads() {
        let mut clocks = Clock::of_threads(1, 3);
        let (mut acquirer, write) = (Acquirer::default(), clocks[0].now);
        acquirer.learn(&mut clocks[0], 3, 5);
        // From here on, the knowledge of thread 0 contains an entry for thread 0 itself, with its own events.
        let mut gate = Gate::default();
        clocks[..2].iter_mut().for_each(|clock| gate.add(clock));
        let released = gate.open();
        clocks[..2].iter_mut().for_each(|clock| acquirer.acquire(clock, &released));
        gate.add_asynchronous(&clocks[0], 3);
        acquirer.acquire(&mut clocks[2], &gate.open());
        assert!(clocks[1].knows(0, write) && clocks[1].knows(3, 5));
        assert!(!clocks[2].knows(0, write) && clocks[2].knows(3, 5) && !clocks[2].knows(3, 6));
    }

    #[test]
    fn a_fence_covers_what_happened_before_it() {
        let mut clocks = Clock::of_threads(1, 3);
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
        let mut clocks = Clock::of_threads(1, 64);
        clocks.iter_mut().for_each(|clock| gate.add(clock));
        gate.add_event(100, 3);
        let (released, mut acquirer) = (gate.open(), Acquirer::default());
        clocks.iter_mut().for_each(|clock| acquirer.acquire(clock, &released));
        assert!(clocks.iter().all(|clock| Rc::ptr_eq(&clock.released.known, &clocks[0].released.known)));
        assert!(
            clocks[5].knows(63, 4)
                && !clocks[5].knows(63, 5)
                && clocks[5].knows(100, 3)
                && !clocks[5].knows(100, 4)
        );
        acquirer.learn(&mut clocks[5], 100, 4);
        assert!(clocks[5].knows(100, 4) && !clocks[6].knows(100, 4));
    }

    #[test]
    fn lanes_that_learn_the_same_one_after_the_other_share_it() {
        let mut clocks = Clock::of_threads(2, 32);
        let (lanes, others) = clocks.split_at_mut(32);
        let mut acquirer = Acquirer::default();
        for round in 1..5 {
            // The other threads arrive at an mbarrier. Each lane waits for this mbarrier between two waits
            // for `wgmma`.
            let mut gate = Gate::default();
            others.iter_mut().for_each(|other| gate.add(other));
            let released = gate.open();
            for lane in &mut *lanes {
                acquirer.learn(lane, 100, 2 * round - 1);
                acquirer.acquire(lane, &released);
                acquirer.learn(lane, 100, 2 * round);
            }
            let knowledge = lanes[0].knowledge();
            assert!(lanes.iter().all(|lane| lane.knowledge().is_same(&knowledge)));
            assert!(lanes[7].knows(100, 2 * round) && lanes[7].knows(40, others[8].now - 1));
        }
    }

    #[test]
    fn a_thread_that_knows_less_takes_the_released_knowledge_itself() {
        let mut clocks = Clock::of_threads(1, 4);
        let mut acquirer = Acquirer::default();
        acquirer.learn(&mut clocks[2], 50, 1);
        let mut gate = Gate::default();
        clocks.iter_mut().for_each(|clock| gate.add(clock));
        let released = gate.open();
        clocks.iter_mut().for_each(|clock| acquirer.acquire(clock, &released));
        // No thread has executed a proxy fence, so all threads still share one object of fenced knowledge
        // (the events before a fence).
        let fenced = Rc::clone(&clocks[0].released.fenced);
        assert!(clocks.iter().all(|clock| Rc::ptr_eq(&clock.released.known, &released.known)));
        assert!(clocks.iter().all(|clock| Rc::ptr_eq(&clock.released.fenced, &fenced)));
        assert!(Rc::ptr_eq(&released.fenced, &fenced));
        assert!(covers(&[3, 1], &[3, 1, 0]) && !covers(&[3, 1], &[0, 0, 1]) && !covers(&[3, 1], &[4]));
    }

    #[test]
    fn unknown_events_of_a_group_are_a_mask() {
        let mut clocks = Clock::of_threads(1, 70);
        let time = clocks[0].now;
        Acquirer::default().learn(&mut clocks[40], 33, time);
        assert_eq!(clocks[40].unknown(1, time), !(1 << 1 | 1 << 8));
        assert_eq!((clocks[40].unknown(0, time), clocks[40].unknown(0, 1)), (u32::MAX, 0));
        assert_eq!((clocks[40].unknown(2, 1), clocks[40].unknown(9, 1)), (!0x3F, u32::MAX));
    }
}
