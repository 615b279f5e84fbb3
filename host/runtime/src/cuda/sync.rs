//! Synchronization between host threads. The type [`Setting`] stores the value of a driver setting, and the
//! type [`Slots`] is an array of values that are initialized on first use.
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The current value of a driver setting, for example a kernel's limit of dynamic shared memory.
pub(crate) struct Setting {
    value: AtomicI32,
    /// Locked by the thread that changes the setting.
    changing: Mutex<()>,
}

impl Setting {
    /// Returns a `Setting` for a driver setting that currently has the value `value`.
    pub const fn new(value: i32) -> Self {
        Self { value: AtomicI32::new(value), changing: Mutex::new(()) }
    }

    /// Makes sure that the setting is at least `wanted`. If the setting is lower, this function calls `set`
    /// with `wanted`. The new value is stored only if `set` succeeds. A lock ensures that two threads never
    /// run `set` at the same time.
    #[inline]
    pub fn raise<E>(&self, wanted: i32, set: impl FnOnce(i32) -> Result<(), E>) -> Result<(), E> {
        self.update(|value| value < wanted, wanted, set)
    }

    /// Makes sure that the setting is exactly `wanted`. If the value differs, this function calls `set` with
    /// `wanted`. The new value is stored only if `set` succeeds. Another thread may change the setting again
    /// at any time.
    #[inline]
    pub fn change<E>(&self, wanted: i32, set: impl FnOnce(i32) -> Result<(), E>) -> Result<(), E> {
        self.update(|value| value != wanted, wanted, set)
    }

    #[inline]
    fn update<E>(
        &self,
        differs: impl Fn(i32) -> bool,
        wanted: i32,
        set: impl FnOnce(i32) -> Result<(), E>,
    ) -> Result<(), E> {
        if !differs(self.value.load(Ordering::Acquire)) {
            return Ok(());
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if differs(self.value.load(Ordering::Acquire)) {
            set(wanted)?;
            self.value.store(wanted, Ordering::Release);
        }
        Ok(())
    }
}

/// An array of values that are initialized on first use. Each value has a lock. A thread that needs one value
/// does not wait for the initialization of another value.
pub(crate) struct Slots<T>(Box<[Slot<T>]>);

struct Slot<T> {
    value: OnceLock<T>,
    /// Locked by the thread that initializes the value.
    making: Mutex<()>,
}

impl<T> Slots<T> {
    /// Creates `count` empty slots.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| Slot { value: OnceLock::new(), making: Mutex::new(()) }).collect())
    }

    /// Returns the number of slots.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns value number `index`. If the value is not initialized, this function calls `make` first. If
    /// `make` fails, the next call tries again. Returns `None` if `index` is out of range.
    pub fn get_or_make<E>(&self, index: usize, make: impl FnOnce() -> Result<T, E>) -> Option<Result<&T, E>> {
        let slot = self.0.get(index)?;
        if let Some(value) = slot.value.get() {
            return Some(Ok(value));
        }
        let _making = slot.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = slot.value.get() {
            return Some(Ok(value));
        }
        Some(make().map(|value| slot.value.get_or_init(|| value)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_limit_only_rises() {
        let (limit, driver) = (Setting::new(48), AtomicI32::new(48));
        let set = |bytes| {
            driver.store(bytes, SeqCst);
            Ok::<_, ()>(())
        };
        limit.raise(60, set).unwrap();
        limit.raise(100, |_| Err(())).expect_err("the driver refuses");
        limit.raise(60, |_| -> Result<(), ()> { panic!("it is set") }).unwrap();
        limit.raise(100, set).expect("what was refused is asked for again");
        limit.raise(60, set).unwrap();
        assert_eq!(driver.load(SeqCst), 100, "a smaller launch does not lower it");
    }

    #[test]
    fn a_setting_changes_both_ways() {
        let (setting, driver) = (Setting::new(-1), AtomicI32::new(-1));
        let set = |value| {
            driver.store(value, SeqCst);
            Ok::<_, ()>(())
        };
        for wanted in [57, 30, -1] {
            setting.change(wanted, set).unwrap();
            assert_eq!(driver.load(SeqCst), wanted);
            setting.change(wanted, |_| -> Result<(), ()> { panic!("it is set") }).unwrap();
        }
    }

    #[test]
    fn a_limit_is_there_for_each_threads_launch() {
        for _ in 0..50 {
            let (limit, driver) = (Setting::new(48), AtomicI32::new(48));
            thread::scope(|scope| {
                for wanted in [100, 60, 80, 70] {
                    let (limit, driver) = (&limit, &driver);
                    scope.spawn(move || {
                        for _ in 0..3 {
                            let set = |bytes| {
                                thread::yield_now();
                                driver.store(bytes, SeqCst);
                                Ok::<_, ()>(())
                            };
                            limit.raise(wanted, set).unwrap();
                            thread::yield_now();
                            assert!(driver.load(SeqCst) >= wanted, "the launch would fail");
                        }
                    });
                }
            });
        }
    }

    /// Runs `f` in a new thread. Panics if `f` takes more than 20 seconds, so a deadlock does not hang the
    /// test.
    #[track_caller]
    fn soon<'s, T: Send + 's>(scope: &'s thread::Scope<'s, '_>, f: impl FnOnce() -> T + Send + 's) -> T {
        let (done, result) = channel();
        scope.spawn(move || done.send(f()));
        result.recv_timeout(Duration::from_secs(20)).expect("it waits for a value that it did not ask for")
    }

    #[test]
    fn a_value_in_the_making_blocks_no_other() {
        let (slots, made) = (Slots::new(3), AtomicU32::new(0));
        let (slots, made) = (&slots, &made);
        let of = move |value: &'static str| move || Ok::<_, ()>(value);
        assert_eq!(slots.get_or_make(2, of("two")), Some(Ok(&"two")));
        thread::scope(|scope| {
            let ((started, begun), (release, released)) = (channel(), channel());
            let slow = scope.spawn(move || {
                slots.get_or_make(0, || {
                    made.fetch_add(1, SeqCst);
                    started.send(()).unwrap();
                    // If the test fails before the end, its thread drops the sender, and the channel closes.
                    // `recv` then returns an error instead of blocking forever.
                    released.recv().map(|()| "zero").map_err(|_| ())
                })
            });
            begun.recv().unwrap();
            let release = release;
            assert_eq!(
                soon(scope, move || slots.get_or_make(2, of("again"))),
                Some(Ok(&"two")),
                "it is open"
            );
            assert_eq!(
                soon(scope, move || slots.get_or_make(1, of("one"))),
                Some(Ok(&"one")),
                "it is opened"
            );
            let same = scope.spawn(move || {
                slots.get_or_make(0, || {
                    made.fetch_add(1, SeqCst);
                    Ok("another")
                })
            });
            thread::sleep(Duration::from_millis(50));
            assert!(!same.is_finished(), "of one value, the second thread waits for the first");
            release.send(()).unwrap();
            assert_eq!([slow.join().unwrap(), same.join().unwrap()], [Some(Ok(&"zero")); 2]);
        });
        assert_eq!(made.load(SeqCst), 1);
    }

    #[test]
    fn what_failed_is_tried_again() {
        let slots = Slots::new(1);
        assert_eq!(slots.get_or_make(0, || Err("no")), Some(Err("no")));
        assert_eq!(slots.get_or_make(0, || Ok::<_, &str>(7)), Some(Ok(&7)));
        assert_eq!((slots.get_or_make(1, || Ok::<_, &str>(8)), slots.count()), (None, 1));
    }
}
