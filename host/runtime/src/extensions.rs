//! Stores values of other crates together with a device, for example the loaded kernels of a library.
use std::any::{Any, TypeId};
use std::sync::OnceLock;

/// A container with at most one value per Rust type. A value is created on first use, and is never dropped.
#[derive(Default)]
pub(crate) struct Extensions(OnceLock<&'static Node>);

/// A node of a linked list. Nodes are added but never removed, so a lookup needs no lock.
struct Node {
    type_id: TypeId,
    value: &'static (dyn Any + Send + Sync),
    next: OnceLock<&'static Node>,
}

impl Extensions {
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Returns the value of type `T`. The first call for a type calls the function `make` and stores its
    /// result. If several threads call `make` at the same time, only one result is stored. All threads return
    /// the stored result.
    #[inline]
    pub fn get_or_make<T: Any + Send + Sync, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&'static T, E> {
        let mut place = &self.0;
        while let Some(node) = place.get() {
            match node.get() {
                Some(value) => return Ok(value),
                None => place = &node.next,
            }
        }
        self.append(make()?)
    }

    #[cold]
    fn append<T: Any + Send + Sync, E>(&self, value: T) -> Result<&'static T, E> {
        let new = Box::leak(Box::new(Node {
            type_id: TypeId::of::<T>(),
            value: Box::leak(Box::new(value)),
            next: OnceLock::new(),
        }));
        let mut place = &self.0;
        loop {
            let node = place.get_or_init(|| new);
            match node.get() {
                Some(value) => return Ok(value),
                None => place = &node.next,
            }
        }
    }
}

impl Node {
    /// Returns the value if it has type `T`. This function avoids `Any::downcast_ref`, which would be slower,
    /// because it calls a function through a pointer.
    #[inline]
    fn get<T: Any>(&self) -> Option<&'static T> {
        if self.type_id != TypeId::of::<T>() {
            return None;
        }
        // SAFETY: the cast requires a value of type `T`. `append` stored the type of the value in `type_id`,
        // and `type_id` is `T`.
        Some(unsafe { &*std::ptr::from_ref(self.value).cast::<T>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_one_value() {
        let extensions = Extensions::default();
        let number = |value: u32| extensions.get_or_make(|| Ok::<_, ()>(value));
        assert_eq!(extensions.get_or_make(|| Err::<u32, _>("later")), Err("later"));
        assert_eq!(number(1), Ok(&1));
        assert_eq!(extensions.get_or_make(|| Ok::<_, ()>("text")), Ok(&"text"));
        assert_eq!(number(2), Ok(&1), "the first value stays");
        assert_eq!(extensions.get_or_make(|| Ok::<_, ()>("other")), Ok(&"text"));
    }

    #[test]
    fn threads_get_the_same_value() {
        let extensions = Extensions::default();
        let values = std::thread::scope(|scope| {
            let make = |value: usize| extensions.get_or_make(|| Ok::<_, ()>(value)).copied();
            let threads: Vec<_> = (0..8).map(|value| scope.spawn(move || make(value))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    }
}
