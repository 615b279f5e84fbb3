//! The two passes of a norm over a row that stays in registers, those of its warp or of the four warps of a block.
//!
//! All of the row is on its way at once, and nothing waits in shared memory but what warps exchange.
use cuda_std::prelude::*;
use cuda_std::vec4::{MOST_HELD, held, shared};

use super::io::{Sink, Source};
use super::passes::Passes;
use super::reduce::block::PartMoments;
use super::reduce::warp::{Moments, Stats};

impl<T: Elem, const ACCESS: u32> Passes<T, ACCESS> {
    /// The warp's tile of number `nth`, if the row has it.
    #[inline(always)]
    pub fn own(&self, nth: usize) -> Option<u32> {
        (nth < held(ACCESS)).then_some(self.tile(nth as u32))
    }

    /// Both passes.
    #[inline(always)]
    pub fn run_held<M: Moments, S: Source<T, ACCESS>, K: Sink<T>>(&self, source: S, sink: K) {
        let (mut parts, mut row) = ([S::NOTHING; MOST_HELD], [Quad::<T>::ZERO; MOST_HELD]);
        for nth in 0..MOST_HELD {
            if let Some(tile) = self.own(nth) {
                parts[nth] = source.parts(self, tile);
            }
        }
        for nth in 0..MOST_HELD {
            if let Some(tile) = self.own(nth) {
                row[nth] = source.make(self, tile, parts[nth]);
            }
        }
        // Warps wait for each other: what they read next is on its way meanwhile, if there are registers for it.
        let (early, mut beside) = (shared(ACCESS) && K::EARLY, [K::EMPTY; MOST_HELD]);
        for nth in 0..MOST_HELD {
            if let Some(tile) = self.own(nth).filter(|_| early) {
                beside[nth] = sink.fetch(tile);
            }
        }
        let stats = self.reduce_held::<M>(&row);
        for first in (0..MOST_HELD).step_by(K::AHEAD) {
            for nth in first..first + K::AHEAD {
                if let Some(tile) = self.own(nth).filter(|_| !early) {
                    beside[nth] = sink.fetch(tile);
                }
            }
            for nth in first..first + K::AHEAD {
                if let Some(tile) = self.own(nth) {
                    sink.put(stats, tile, row[nth].forget_lanes(), beside[nth]);
                }
            }
        }
    }

    /// What `read` says of the warp's tiles.
    #[inline(always)]
    pub fn held_row(&self, read: impl Fn(u32) -> Quad<T>) -> [Quad<T>; MOST_HELD] {
        core::array::from_fn(|nth| self.own(nth).map_or(Quad::ZERO, &read))
    }

    /// Reduces a row that is held.
    #[inline(always)]
    pub fn reduce_held<M: Moments>(&self, row: &[Quad<T>; MOST_HELD]) -> Stats {
        if shared(ACCESS) {
            return self.reduce_held_part::<M::Part>(row);
        }
        let mut moments = M::EMPTY;
        for nth in 0..MOST_HELD {
            if self.own(nth).is_some() {
                moments.push_quad(nth as u32, row[nth].lanes());
            }
        }
        moments.finish(self.cols(), self.p.eps)
    }

    #[inline(always)]
    fn reduce_held_part<M: PartMoments>(&self, row: &[Quad<T>; MOST_HELD]) -> Stats {
        let mut moments = M::EMPTY;
        for nth in 0..MOST_HELD {
            if let Some(tile) = self.own(nth) {
                moments.push_quad(nth as u32, row[nth].lanes());
                if M::READS {
                    self.staged.put(tile, row[nth]);
                }
            }
        }
        self.finish_part(moments)
    }
}
