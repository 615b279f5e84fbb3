//! Stores the seed and the current case (such as a shape) of the running test. If the test fails, the test
//! program prints both.
use std::cell::RefCell;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

thread_local! {
    /// Makes the seeds of the running test.
    static SEEDS: RefCell<Option<StdRng>> = const { RefCell::new(None) };
    static CASE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Records the case that a test checks next, such as a shape. The macro takes the arguments of `format!`.
#[macro_export]
macro_rules! case {
    ($($argument:tt)*) => { $crate::case::set(format!($($argument)*)) };
}

/// Records the case that a test checks next; see [`case!`](crate::case!).
pub fn set(case: String) {
    CASE.set(case);
}

/// Returns a new seed. The new seed depends only on the seed of the running test and on the number of earlier
/// calls in this test.
pub fn seed() -> u64 {
    SEEDS.with_borrow_mut(|seeds| seeds.as_mut().expect("`case::run` runs the test").random())
}

/// Runs the test `name`. The environment variable `OXIWARP_SEED` sets the seed of the test. If it is not set,
/// each run has a random seed.
///
/// If the test panics, the function prints the seed, the last recorded case and the command that repeats the
/// test.
pub fn run(name: &str, test: impl FnOnce()) {
    let seed = match std::env::var("OXIWARP_SEED") {
        Ok(seed) => seed.parse().expect("OXIWARP_SEED is a number"),
        Err(_) => rand::random(),
    };
    SEEDS.set(Some(StdRng::seed_from_u64(seed)));
    CASE.take();
    let _report = Report { name, seed };
    test();
}

struct Report<'a> {
    name: &'a str,
    seed: u64,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { name, seed } = self;
            let case = CASE.take();
            let case = if case.is_empty() { "the only one" } else { &case };
            eprintln!("{name}: case: {case}\n{name}: seed: {seed}");
            eprintln!(
                "run alone: OXIWARP_SEED={seed} cargo test -p oxiwarp-tests --test kernels -- --exact {name}"
            );
        }
    }
}
