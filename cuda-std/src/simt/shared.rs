//! Dynamic shared memory of a launch. A kernel divides this memory into typed parts (arrays):
//!
//! ```ignore
//! let mut memory = SharedMemory::of_launch();
//! let sums: Shared<f32> = memory.take(32);
//! let row: Shared<u32> = memory.take(cols);
//! ```
//! The code that launches the kernel chooses the size of dynamic shared memory. The CPU executor reports a
//! fault if a kernel accesses bytes past the end of this memory.
use core::marker::PhantomData;

use crate::arch;

/// The part of the block's dynamic shared memory that is not allocated yet. Each call of `take` allocates the
/// next bytes.
pub struct SharedMemory {
    offset: usize,
}

impl SharedMemory {
    /// Returns the whole shared memory of the launch.
    #[inline(always)]
    pub fn of_launch() -> Self {
        Self { offset: 0 }
    }

    /// Returns the number of bytes of dynamic shared memory that the launch requested.
    #[inline(always)]
    pub fn bytes() -> u32 {
        arch::shared_bytes()
    }

    /// Allocates an array of `len` elements of `T` in shared memory, aligned for `T`. All threads of the
    /// block must allocate the same arrays in the same order.
    #[inline(always)]
    pub fn take<T: Copy>(&mut self, len: u32) -> Shared<T> {
        let offset = self.offset.next_multiple_of(align_of::<T>());
        self.offset = offset + len as usize * size_of::<T>();
        Shared { offset, len, element: PhantomData }
    }
}

/// An array of `len` elements of `T` in the block's shared memory. Each element is unspecified until a thread
/// writes it.
#[derive(Clone, Copy)]
pub struct Shared<T> {
    offset: usize,
    len: u32,
    element: PhantomData<*mut T>,
}

impl<T: Copy> Shared<T> {
    /// Returns the number of elements.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether this part of shared memory has no elements.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the same bytes of shared memory as an array of elements of type `U`. The alignment of `U` must
    /// not exceed the alignment of `T`.
    #[inline(always)]
    pub fn cast<U: Copy>(&self) -> Shared<U> {
        const { assert!(align_of::<U>() <= align_of::<T>()) };
        let len = self.len as usize * size_of::<T>() / size_of::<U>();
        Shared { offset: self.offset, len: len as u32, element: PhantomData }
    }

    /// Returns the sub-array of `len` elements that starts at element `first`.
    #[inline(always)]
    pub fn part(&self, first: u32, len: u32) -> Self {
        debug_assert!(first + len <= self.len, "elements {first} to {} of {}", first + len, self.len);
        Shared { offset: self.offset + first as usize * size_of::<T>(), len, element: PhantomData }
    }

    /// Starts an asynchronous copy of 16 bytes from global memory to element `at`. The copy bypasses the
    /// registers and L1.
    ///
    /// The calling thread may read the element after it has called [`copy::wait`](super::copy::wait). Other
    /// threads may read the element after a block barrier that follows this call of `wait`.
    ///
    /// # Safety
    /// The requirements of [`Shared::set`] apply to the element. `from` points to 16 readable bytes and is
    /// aligned to 16 bytes. No thread writes to the bytes at `from` during the copy.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy_from(&self, at: u32, from: *const u8) {
        const { assert!(size_of::<T>() == 16 && align_of::<T>() == 16) };
        self.note(at, true);
        // SAFETY: the copy reads 16 bytes at `from` and writes element `at`. The caller guarantees that the
        // bytes are readable and aligned. `checked` ensures that `at` is in bounds.
        unsafe { arch::copy_async(self.checked(at), from) }
    }

    /// If `wanted` is true, starts a copy of 16 bytes from global memory to element `at`, as
    /// [`Shared::copy_from`] does. Otherwise sets the element to zero and does not read `from`. Requires
    /// sm_80 or newer.
    ///
    /// # Safety
    /// If `wanted` is true, the requirements of [`Shared::copy_from`] apply. Otherwise the requirements of
    /// [`Shared::set`] apply.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy_or_zero(&self, at: u32, from: *const u8, wanted: bool) {
        const { assert!(size_of::<T>() == 16 && align_of::<T>() == 16) };
        self.note(at, true);
        // SAFETY: the copy writes element `at`, and reads 16 bytes at `from` if `wanted` is true. `window`
        // ensures that `at` is in bounds. The caller guarantees that the bytes are readable and aligned if
        // `wanted` is true.
        unsafe { arch::copy_async_or_zero(self.window(at), from, wanted) }
    }

    /// Returns the 32-bit shared-memory address of element `at`. The CPU executor checks that `at` is in
    /// bounds.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn window(&self, at: u32) -> u32 {
        self.checked(at);
        // Compute the address in 32 bits. 64-bit arithmetic would need more registers, and in some kernels
        // none are free.
        arch::shared_window(self.offset as u32 + at * size_of::<T>() as u32)
    }

    /// Returns the byte offset of element `at` in shared memory. The CPU executor checks that the element
    /// lies inside this array and inside the shared memory that the launch requested.
    #[inline(always)]
    #[track_caller]
    fn checked(&self, at: u32) -> usize {
        debug_assert!(at < self.len, "element {at} of a shared part of {} elements", self.len);
        let offset = self.offset + at as usize * size_of::<T>();
        arch::check_shared(offset, size_of::<T>());
        offset
    }

    /// Reports an access to element `at` to the race detection of the CPU executor. Does nothing in PTX code.
    #[inline(always)]
    #[track_caller]
    #[cfg_attr(target_arch = "nvptx64", expect(unused_variables))]
    fn note(&self, at: u32, writes: bool) {
        #[cfg(not(target_arch = "nvptx64"))]
        crate::cpu::note(self.checked(at), size_of::<T>(), writes);
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn address(&self, at: u32) -> *mut T {
        arch::shared_base().wrapping_add(self.checked(at)).cast()
    }

    /// Reads element `at`.
    ///
    /// # Safety
    /// Element `at` lies inside this array and inside the launch's shared memory. A barrier separates this
    /// read from the writes of other threads to the element.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn get(&self, at: u32) -> T {
        self.note(at, false);
        // SAFETY: the read covers element `at`. The caller keeps `at` in bounds and synchronizes the access.
        // `SharedMemory::take` aligned the array for its element type.
        unsafe { self.address(at).read() }
    }

    /// Writes element `at`.
    ///
    /// # Safety
    /// Element `at` lies inside this array and inside the launch's shared memory. A barrier separates this
    /// write from the accesses of other threads to the element.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn set(&self, at: u32, value: T) {
        self.note(at, true);
        // SAFETY: the write covers element `at`. The caller keeps `at` in bounds and synchronizes the access.
        // `SharedMemory::take` aligned the array for its element type.
        unsafe { self.address(at).write(value) }
    }
}
