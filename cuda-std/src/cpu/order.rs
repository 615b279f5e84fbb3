//! The order in which the threads of a block take turns.
//!
//! A kernel that lacks a barrier is right in some orders: with threads in the order of their index, whatever a low
//! thread writes is there when a higher one reads it. So every block has an order of its own, drawn from its number:
//! in some block the reader comes before the writer, and finds the NaN that shared memory starts as, or what was
//! there before. The draw depends on nothing else, so a launch gives the same results each time.
use std::sync::OnceLock;

/// What chooses the orders: a number, or `index`.
const VARIABLE: &str = "OXIWARP_THREAD_ORDER";

/// How orders are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draw {
    /// Threads in the order of their index.
    Index,
    /// Another order for each block; a seed for those of a process.
    Seeded(u64),
}

impl Draw {
    /// As the environment says when it is first asked; else what is wrong there.
    pub fn of_process() -> Result<Self, String> {
        static DRAW: OnceLock<Result<Draw, String>> = OnceLock::new();
        DRAW.get_or_init(|| Self::parse(&std::env::var(VARIABLE).unwrap_or_default())).clone()
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::Seeded(0)),
            "index" => Ok(Self::Index),
            seed => seed
                .parse()
                .map(Self::Seeded)
                .map_err(|_| format!("{VARIABLE} is {seed:?}, expected a number or \"index\"")),
        }
    }
}

/// The order of one block: its warps, and the lanes of each.
pub(super) struct Order {
    warps: Vec<u32>,
    /// Turn `t` of a warp is lane `(factor * t + first) % 32`; the factor is odd, so each has one.
    factor: u32,
    first: u32,
}

impl Order {
    pub fn new(threads: u32) -> Self {
        Self { warps: (0..threads.div_ceil(32)).collect(), factor: 1, first: 0 }
    }

    /// Makes this the order of block `at`.
    pub fn draw(&mut self, draw: Draw, at: u64) {
        let Draw::Seeded(seed) = draw else { return };
        let mut bits = Bits(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ at);
        let drawn = bits.next();
        (self.factor, self.first) = (drawn >> 8 | 1, drawn >> 16);
        // From the same order each time: blocks are drawn by whichever worker is free.
        self.warps.iter_mut().zip(0..).for_each(|(warp, number)| *warp = number);
        for left in (1..self.warps.len()).rev() {
            self.warps.swap(left, bits.next() as usize % (left + 1));
        }
    }

    pub fn warps(&self) -> usize {
        self.warps.len()
    }

    /// The thread that has turn `step` in the warp that has turn `warp`; the last warp may have fewer than 32.
    #[inline(always)]
    pub fn thread(&self, warp: usize, step: u32) -> usize {
        let lane = self.factor.wrapping_mul(step).wrapping_add(self.first) % 32;
        (self.warps[warp] * 32 + lane) as usize
    }
}

/// SplitMix64.
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(order: &Order) -> Vec<usize> {
        (0..order.warps()).flat_map(|warp| (0..32).map(move |step| order.thread(warp, step))).collect()
    }

    #[test]
    fn every_thread_has_one_turn() {
        for (threads_of_block, at) in [(1, 0), (32, 1), (33, 2), (256, 3), (1_024, 4)] {
            let mut order = Order::new(threads_of_block);
            assert!(threads(&order).into_iter().eq(0..threads_of_block.next_multiple_of(32) as usize));
            order.draw(Draw::Seeded(7), at);
            let mut drawn = threads(&order);
            drawn.sort_unstable();
            assert!(drawn.into_iter().eq(0..threads_of_block.next_multiple_of(32) as usize));
        }
    }

    #[test]
    fn an_order_depends_on_seed_and_block_alone() {
        let mut order = Order::new(256);
        let mut drawn = |seed, at| {
            order.draw(Draw::Seeded(seed), at);
            threads(&order)
        };
        let first = drawn(0, 5);
        assert_ne!(drawn(0, 6), first);
        assert_ne!(drawn(1, 5), first);
        assert_eq!(drawn(0, 5), first);
    }

    #[test]
    fn the_variable_is_a_number_or_index() {
        let drawn = ["", "index", "7"].map(|text| Draw::parse(text).unwrap());
        assert_eq!(drawn, [Draw::Seeded(0), Draw::Index, Draw::Seeded(7)]);
        let wrong = Draw::parse("reverse").unwrap_err();
        assert_eq!(wrong, "OXIWARP_THREAD_ORDER is \"reverse\", expected a number or \"index\"");
    }
}
