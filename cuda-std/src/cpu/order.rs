//! The order in which the CPU executor runs the threads of a block.
//!
//! A fixed order can hide a missing barrier. For example, if threads run in the order of their index, data
//! from a thread with a lower index is always ready. Therefore each block runs its threads in a pseudo-random
//! order, derived from the block's number. If a launch has many blocks, the reader very probably runs before
//! the writer in at least one block. Without a barrier, the reader then gets old data, or the NaN that fills
//! new shared memory. The order depends only on the block number and the seed, so every run of a launch gives
//! the same results.
use std::sync::OnceLock;

/// Environment variable that selects the thread orders. Its value is a number (the seed) or `index`.
const VARIABLE: &str = "OXIWARP_THREAD_ORDER";

/// How the executor chooses the order in which the threads of a block run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draw {
    /// Threads run in the order of their index.
    Index,
    /// Each block has its own order, derived from the number of the block and this seed.
    Seeded(u64),
}

impl Draw {
    /// Returns the order that the environment variable [`VARIABLE`] selects, or an error message if its value
    /// is invalid. The variable is read once per process.
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

/// The order in which the threads of one block run. It consists of an order of the block's warps and an order
/// of the 32 lanes. All warps of the block use the same order of lanes.
pub(super) struct Order {
    warps: Vec<u32>,
    /// In step `t` of 32, a warp runs lane `(factor * t + first) % 32`. Because `factor` is odd, the 32 steps
    /// run each lane once.
    factor: u32,
    first: u32,
}

impl Order {
    pub fn new(threads: u32) -> Self {
        Self { warps: (0..threads.div_ceil(32)).collect(), factor: 1, first: 0 }
    }

    /// Sets this value to the thread order of block number `at`.
    pub fn draw(&mut self, draw: Draw, at: u64) {
        let Draw::Seeded(seed) = draw else { return };
        let mut bits = Bits(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ at);
        let drawn = bits.next();
        (self.factor, self.first) = (drawn >> 8 | 1, drawn >> 16);
        // Reset the warps to ascending order before they are shuffled. Otherwise the new order would depend
        // on the blocks that this host thread ran before.
        self.warps.iter_mut().zip(0..).for_each(|(warp, number)| *warp = number);
        for left in (1..self.warps.len()).rev() {
            self.warps.swap(left, bits.next() as usize % (left + 1));
        }
    }

    pub fn warps(&self) -> usize {
        self.warps.len()
    }

    /// Returns the index of the thread that runs in step `step` (0 to 31) of a warp. `warp` is the position
    /// of the warp in the order of the warps, not its number. If the block's last warp is partial, the
    /// returned index may be past the end of the block.
    #[inline(always)]
    pub fn thread(&self, warp: usize, step: u32) -> usize {
        let lane = self.factor.wrapping_mul(step).wrapping_add(self.first) % 32;
        (self.warps[warp] * 32 + lane) as usize
    }
}

/// The SplitMix64 random number generator.
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
