//! Stores the seed and the test case (such as a shape) of the running test. The test program prints them only
//! if the test fails.
use std::cell::RefCell;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

thread_local! {
    /// Makes the seeds of the running test.
    static SEEDS: RefCell<Option<StdRng>> = const { RefCell::new(None) };
    static CASE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Records the case that a test checks next, such as a shape. Takes the arguments of `format!`.
#[macro_export]
macro_rules! case {
    ($($argument:tt)*) => { $crate::case::set(format!($($argument)*)) };
}

/// Records the case that a test checks next; see [`case!`](crate::case!).
pub fn set(case: String) {
    CASE.set(case);
}

/// Returns a new seed. The seed of the running test and the number of earlier calls determine the result.
pub fn seed() -> u64 {
    SEEDS.with_borrow_mut(|seeds| seeds.as_mut().expect("`case::run` runs the test").random())
}

/// Runs the test `name`. The variable `OXIWARP_SEED` sets the seed of the test. Without the variable, each
/// run has a different seed.
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
