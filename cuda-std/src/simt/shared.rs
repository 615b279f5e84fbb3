//! Launch-sized shared memory, split into typed parts.
//!
//! ```ignore
//! let mut memory = SharedMemory::of_launch();
//! let sums: Shared<f32> = memory.take(32);
//! let row: Shared<u32> = memory.take(cols);
//! ```
//! The host asks for the bytes at the launch; a kernel that touches more is a fault that the CPU executor names.
use core::marker::PhantomData;

use crate::arch;

/// The block's shared memory from the first byte not yet taken.
pub struct SharedMemory {
    offset: usize,
}

impl SharedMemory {
    /// All of it.
    #[inline(always)]
    pub fn of_launch() -> Self {
        Self { offset: 0 }
    }

    /// The bytes that the launch asked for.
    #[inline(always)]
    pub fn bytes() -> u32 {
        arch::shared_bytes()
    }

    /// The next `len` elements of `T`, aligned for `T`. Every thread of the block takes the same parts.
    #[inline(always)]
    pub fn take<T: Copy>(&mut self, len: u32) -> Shared<T> {
        let offset = self.offset.next_multiple_of(align_of::<T>());
        self.offset = offset + len as usize * size_of::<T>();
        Shared { offset, len, element: PhantomData }
    }
}

/// A part of the block's shared memory: `len` elements of `T`. Its contents are unspecified until written.
#[derive(Clone, Copy)]
pub struct Shared<T> {
    offset: usize,
    len: u32,
    element: PhantomData<*mut T>,
}

impl<T: Copy> Shared<T> {
    /// The number of elements.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Is there no element?
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same bytes as elements of `U`, aligned for it as `T` is.
    #[inline(always)]
    pub fn cast<U: Copy>(&self) -> Shared<U> {
        const { assert!(align_of::<U>() <= align_of::<T>()) };
        let len = self.len as usize * size_of::<T>() / size_of::<U>();
        Shared { offset: self.offset, len: len as u32, element: PhantomData }
    }

    /// `len` elements from element `first` on.
    #[inline(always)]
    pub fn part(&self, first: u32, len: u32) -> Self {
        debug_assert!(first + len <= self.len, "elements {first} to {} of {}", first + len, self.len);
        Shared { offset: self.offset + first as usize * size_of::<T>(), len, element: PhantomData }
    }

    /// Begins to copy 16 bytes from global memory to element `at`, past the registers and L1. Nobody reads them before
    /// [`copy::wait`](super::copy::wait) in this thread and a barrier for the others.
    ///
    /// # Safety
    /// As for [`Shared::set`], of an element of 16 bytes; `from` is readable and aligned to them, and nothing writes there.
    #[inline(always)]
    pub unsafe fn copy_from(&self, at: u32, from: *const u8) {
        const { assert!(size_of::<T>() == 16 && align_of::<T>() == 16) };
        self.note(at, true);
        // SAFETY: as the caller promises.
        unsafe { arch::copy_async(self.checked(at), from) }
    }

    /// As [`Shared::copy_from`] of what is `wanted`; else the element becomes zero, and `from` is not read. From sm_80 on.
    ///
    /// # Safety
    /// As for [`Shared::copy_from`], if it is `wanted`.
    #[inline(always)]
    pub unsafe fn copy_or_zero(&self, at: u32, from: *const u8, wanted: bool) {
        const { assert!(size_of::<T>() == 16 && align_of::<T>() == 16) };
        self.note(at, true);
        // SAFETY: as the caller promises.
        unsafe { arch::copy_async_or_zero(self.window(at), from, wanted) }
    }

    /// The address of element `at` in the shared window, checked as [`Shared::get`] does.
    #[inline(always)]
    pub(crate) fn window(&self, at: u32) -> u32 {
        self.checked(at);
        // In 32 bits: a kernel at the end of its registers would pay for wider ones.
        arch::shared_window(self.offset as u32 + at * size_of::<T>() as u32)
    }

    /// Where element `at` lies, checked on the CPU executor against this part and the launch's bytes.
    #[inline(always)]
    fn checked(&self, at: u32) -> usize {
        debug_assert!(at < self.len, "element {at} of a shared part of {} elements", self.len);
        let offset = self.offset + at as usize * size_of::<T>();
        arch::check_shared(offset, size_of::<T>());
        offset
    }

    /// Tells the CPU executor of an access to element `at`: it finds races. Nothing on PTX.
    #[inline(always)]
    #[cfg_attr(target_arch = "nvptx64", expect(unused_variables))]
    fn note(&self, at: u32, writes: bool) {
        #[cfg(not(target_arch = "nvptx64"))]
        crate::cpu::note(self.checked(at), size_of::<T>(), writes);
    }

    #[inline(always)]
    pub(crate) fn address(&self, at: u32) -> *mut T {
        arch::shared_base().wrapping_add(self.checked(at)).cast()
    }

    /// Reads element `at`.
    ///
    /// # Safety
    /// `at` lies inside this part and the launch's shared memory; a barrier stands between this read and the write
    /// of another thread.
    #[inline(always)]
    pub unsafe fn get(&self, at: u32) -> T {
        self.note(at, false);
        // SAFETY: in bounds and synchronised, as the caller promises; aligned by `take`.
        unsafe { self.address(at).read() }
    }

    /// Writes element `at`.
    ///
    /// # Safety
    /// As for [`Shared::get`].
    #[inline(always)]
    pub unsafe fn set(&self, at: u32, value: T) {
        self.note(at, true);
        // SAFETY: in bounds and synchronised, as the caller promises; aligned by `take`.
        unsafe { self.address(at).write(value) }
    }
}
