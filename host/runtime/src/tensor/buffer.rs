//! Owned device memory, for programs without a tensor library.
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use super::contiguous::contiguous;
use crate::cuda::memory::{Memory, pointer};
use crate::{Device, Error, Result, Scalar, Stream, View, ViewMut};

/// Alignment in bytes of buffers for the CPU executor. This alignment is the size of a cache line in the L2
/// cache of a GPU. On a GPU, the CUDA driver aligns buffers to 256 bytes.
const ALIGN: usize = cuda_std::l2::LINE as usize;

/// `len` elements of `T` on a device.
pub struct Buffer<T> {
    device: Device,
    memory: Place,
    len: usize,
    element: PhantomData<T>,
}

/// The memory of a buffer.
enum Place {
    Gpu(Memory),
    /// The address of an allocation in host memory. The function [`host_layout`] computes the memory layout
    /// of the allocation from its number of bytes.
    Host(*mut u8),
}

// SAFETY: the buffer owns its memory, and `&self` allows only reads.
unsafe impl<T: Send> Send for Buffer<T> {}
// SAFETY: `&self` allows only reads.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl Device {
    /// Allocates `len` elements and sets every byte to 0xFF. Floats are then NaN, and integers are -1. If an
    /// element still has this value after a launch, a test detects that the kernel did not write the element.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn alloc<T: Scalar>(&self, len: usize) -> Result<Buffer<T>> {
        let mut buffer = self.reserve(len)?;
        buffer.fill(&vec![T::POISON; len])?;
        Ok(buffer)
    }

    /// Copies `values` to a new buffer on the device.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory or the copy fails.
    pub fn upload<T: Scalar>(&self, values: &[T]) -> Result<Buffer<T>> {
        let mut buffer = self.reserve(values.len())?;
        buffer.fill(values)?;
        Ok(buffer)
    }

    /// Allocates `len` elements. On the CPU executor, the elements are zero. On a GPU, they are
    /// uninitialized.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn reserve<T: Scalar>(&self, len: usize) -> Result<Buffer<T>> {
        let out_of_memory = |bytes| Error::OutOfMemory { device: self.name().into(), bytes };
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize - ALIGN);
        let bytes = bytes.ok_or_else(|| out_of_memory(usize::MAX))?;
        let memory = match self.gpu() {
            Some(gpu) => Place::Gpu(Memory::new(gpu, bytes)?),
            None => {
                // SAFETY: `host_layout` returns a layout of at least one byte.
                let address = unsafe { std::alloc::alloc_zeroed(host_layout(bytes)) };
                if address.is_null() {
                    return Err(out_of_memory(bytes));
                }
                Place::Host(address)
            }
        };
        Ok(Buffer { device: self.clone(), memory, len, element: PhantomData })
    }
}

fn host_layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes.max(1), ALIGN).expect("a buffer smaller than the address space")
}

impl<T: Scalar> Buffer<T> {
    /// Copies `values` to the buffer. Panics if `values` and the buffer have different lengths.
    fn fill(&mut self, values: &[T]) -> Result<()> {
        assert_eq!(values.len(), self.len);
        match &mut self.memory {
            Place::Gpu(memory) => memory.upload(bytes_of(values)),
            // SAFETY: the copy writes the host memory of the buffer at `address`. `assert_eq!` has checked
            // that the buffer has the length of `values`.
            Place::Host(address) => unsafe {
                std::ptr::copy_nonoverlapping(values.as_ptr(), address.cast(), values.len());
                Ok(())
            },
        }
    }

    /// Returns the address of the first element, for a kernel's argument.
    pub fn as_ptr(&self) -> *const T {
        match &self.memory {
            Place::Gpu(memory) => pointer(memory.address()).cast(),
            Place::Host(address) => address.cast(),
        }
    }

    /// Returns the address of the first element. Pass this address to a kernel that writes the buffer.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.as_ptr().cast_mut()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the elements as a contiguous tensor of `shape`.
    ///
    /// # Errors
    /// Returns an error if `shape` has more elements than the buffer.
    pub fn view(&self, shape: &[i64]) -> Result<View<'_>> {
        self.view_strided(0, shape, &contiguous(shape))
    }

    /// Returns the elements as a contiguous, writable tensor of `shape`.
    ///
    /// # Errors
    /// Returns the errors of [`Buffer::view`].
    pub fn view_mut(&mut self, shape: &[i64]) -> Result<ViewMut<'_>> {
        self.view_strided_mut(0, shape, &contiguous(shape))
    }

    /// Returns the tensor of `shape` and `strides` (in elements) that starts at element `offset`.
    ///
    /// # Errors
    /// Returns an error if the tensor extends past the end of the buffer.
    pub fn view_strided(&self, offset: usize, shape: &[i64], strides: &[i64]) -> Result<View<'_>> {
        let ptr = self.inside(offset, shape, strides)?;
        // SAFETY: the view covers only elements of the buffer, as `inside` checked. The elements stay valid,
        // because the view borrows the buffer.
        unsafe { View::from_raw(ptr, T::DTYPE, shape, strides) }
            .map(|view| view.placed(self.device.location()))
    }

    /// Like [`Buffer::view_strided`], for writing.
    ///
    /// # Errors
    /// Returns the errors of [`Buffer::view_strided`].
    pub fn view_strided_mut(&mut self, offset: usize, shape: &[i64], strides: &[i64]) -> Result<ViewMut<'_>> {
        let ptr = self.inside(offset, shape, strides)?;
        // SAFETY: the view covers only elements of the buffer, as `inside` checked. No other code accesses
        // them, because the view borrows the buffer mutably.
        unsafe { ViewMut::from_raw(ptr, T::DTYPE, shape, strides) }
            .map(|view| view.placed(self.device.location()))
    }

    /// Copies `from` into this buffer on `stream`. Benchmarks use this copy to measure the memory bandwidth
    /// of a GPU.
    ///
    /// # Errors
    /// Returns an error if the two buffers differ in length or device, or a driver error.
    pub fn copy_from(&mut self, from: &Self, stream: Stream) -> Result<()> {
        let (op, arg) = ("Buffer::copy_from", "from");
        if self.len != from.len {
            let expected = format!("[{}]", self.len);
            return Err(Error::Shape { op, arg, got: vec![from.len as i64], expected });
        }
        if self.device.location() != from.device.location() {
            return Err(Error::Device { op, arg, expected: self.device.name().into() });
        }
        match (&self.memory, &from.memory) {
            // SAFETY: the copy accesses `self.len` elements of both buffers, which have this length and are
            // on the same GPU. The buffers stay valid until the copy is done, because `drop` frees a buffer
            // only after all submitted GPU work.
            (Place::Gpu(to), Place::Gpu(from)) => unsafe {
                to.copy_from(from, self.len * size_of::<T>(), stream)
            },
            // SAFETY: the copy accesses `self.len` elements of both buffers, which are host buffers of this
            // length. They do not overlap, because `self` is borrowed mutably.
            _ => unsafe {
                std::ptr::copy_nonoverlapping(from.as_ptr(), self.as_mut_ptr(), self.len);
                Ok(())
            },
        }
    }

    /// Returns the address of element `offset`. Fails if a tensor of `shape` and `strides` that starts at
    /// this element is not completely inside the buffer.
    fn inside(&self, offset: usize, shape: &[i64], strides: &[i64]) -> Result<*mut c_void> {
        let dims =
            || shape.iter().zip(strides).map(|(&size, &stride)| (i128::from(size), i128::from(stride)));
        let last =
            dims().try_fold(0_i128, |last, (size, stride)| last.checked_add((size - 1).checked_mul(stride)?));
        let natural = dims().all(|(size, stride)| size >= 0 && stride >= 0);
        let empty = shape.contains(&0) && offset <= self.len;
        let ends_inside = last.is_some_and(|last| last < self.len as i128 - offset as i128);
        if !natural || !(empty || ends_inside) {
            let expected = format!("a tensor inside the buffer of {} elements", self.len);
            return Err(Error::Shape { op: "Buffer::view", arg: "shape", got: shape.to_vec(), expected });
        }
        Ok((self.as_ptr() as usize + offset * size_of::<T>()) as *mut c_void)
    }

    /// Copies the elements to the host, after all work on the legacy default stream is done. If work on
    /// another stream writes the buffer, synchronize that stream first.
    ///
    /// # Errors
    /// Returns an error if a kernel or the copy failed.
    pub fn download(&self) -> Result<Vec<T>> {
        self.download_part(0..self.len)
    }

    /// Copies a range of the elements to the host, after all work on the legacy default stream is done.
    ///
    /// # Errors
    /// Returns an error if the range is not inside the buffer, or if a kernel or the copy failed.
    pub fn download_part(&self, range: Range<usize>) -> Result<Vec<T>> {
        let from = self.inside(range.start, &[range.len() as i64], &[1])?;
        let mut values = vec![T::default(); range.len()];
        match &self.memory {
            Place::Gpu(memory) => {
                let start = range.start * size_of::<T>();
                let end = start + size_of_val(&values[..]);
                memory.download(bytes_of_mut(&mut values), start..end)?;
            }
            // SAFETY: the copy reads the range from host memory, and `inside` checked that the range is in
            // the buffer. It writes to `values`, which has the length of the range.
            Place::Host(_) => unsafe {
                std::ptr::copy_nonoverlapping(from.cast::<T>(), values.as_mut_ptr(), values.len())
            },
        }
        Ok(values)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let Place::Host(address) = self.memory {
            let bytes = self.len * size_of::<T>();
            // SAFETY: `dealloc` requires the layout with which `reserve` allocated the memory, and
            // `host_layout` returns this layout. No view of the memory exists any more, because every view
            // borrows the buffer.
            unsafe { std::alloc::dealloc(address, host_layout(bytes)) };
        }
    }
}

fn bytes_of<T: Scalar>(values: &[T]) -> &[u8] {
    // SAFETY: a `Scalar` is a number without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_of_mut<T: Scalar>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: the slice covers the bytes of `values`. A `Scalar` is a number without padding. The caller may
    // write any bytes, because every sequence of bytes is a valid number.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
