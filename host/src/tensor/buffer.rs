//! Owned device memory, for programs without a tensor library.
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use crate::{Device, Error, Result, Scalar, Stream, View, ViewMut};

/// Alignment in bytes of buffers for the CPU executor: one L2 line. On a GPU, the CUDA driver aligns buffers
/// to 256 bytes.
const ALIGN: usize = cuda_std::l2::LINE as usize;

/// `len` elements of `T` on a device.
pub struct Buffer<T> {
    device: Device,
    address: u64,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: the buffer owns its memory, and `&self` allows only reads.
unsafe impl<T: Send> Send for Buffer<T> {}
// SAFETY: `&self` allows only reads.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl Device {
    /// Allocates `len` elements and sets every byte to 0xFF, which means NaN or -1. An element that a kernel
    /// fails to write then has a value that tests notice.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn alloc<T: Scalar>(&self, len: usize) -> Result<Buffer<T>> {
        let buffer = self.reserve(len)?;
        buffer.fill(&vec![T::POISON; len])?;
        Ok(buffer)
    }

    /// Copies `values` to a new buffer on the device.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory or the copy fails.
    pub fn upload<T: Scalar>(&self, values: &[T]) -> Result<Buffer<T>> {
        let buffer = self.reserve(values.len())?;
        buffer.fill(values)?;
        Ok(buffer)
    }

    /// Allocates `len` elements. On the CPU executor they are zero, on a GPU they are uninitialized.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn reserve<T: Scalar>(&self, len: usize) -> Result<Buffer<T>> {
        let out_of_memory = |bytes| Error::OutOfMemory { device: self.name().into(), bytes };
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize - ALIGN);
        let bytes = bytes.ok_or_else(|| out_of_memory(usize::MAX))?;
        let address = match self.as_cuda() {
            Some(cuda) => cuda.alloc(bytes)?,
            // SAFETY: `host_layout` returns a layout of at least one byte.
            None => match unsafe { std::alloc::alloc_zeroed(host_layout(bytes)) } as u64 {
                0 => return Err(out_of_memory(bytes)),
                address => address,
            },
        };
        Ok(Buffer { device: self.clone(), address, len, element: PhantomData })
    }
}

fn host_layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes.max(1), ALIGN).expect("a buffer smaller than the address space")
}

impl<T: Scalar> Buffer<T> {
    /// Fills a new buffer, to which no other reference exists yet.
    fn fill(&self, values: &[T]) -> Result<()> {
        let (from, bytes) = (values.as_ptr(), size_of_val(values));
        assert_eq!(values.len(), self.len);
        match self.device.as_cuda() {
            // SAFETY: `values` and the buffer are `bytes` bytes long.
            Some(cuda) => unsafe { cuda.upload(self.address, from.cast(), bytes) },
            None => {
                // SAFETY: `values` and the buffer have the same length, as `assert_eq!` has checked.
                unsafe { std::ptr::copy_nonoverlapping(from, self.address as *mut T, values.len()) };
                Ok(())
            }
        }
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
    /// Same as [`Buffer::view`].
    pub fn view_mut(&mut self, shape: &[i64]) -> Result<ViewMut<'_>> {
        self.view_strided_mut(0, shape, &contiguous(shape))
    }

    /// Returns the tensor of `shape` and `strides` (in elements) that starts at element `offset`.
    ///
    /// # Errors
    /// Returns an error if the tensor extends past the end of the buffer.
    pub fn view_strided(&self, offset: usize, shape: &[i64], strides: &[i64]) -> Result<View<'_>> {
        let ptr = self.inside(offset, shape, strides)?;
        // SAFETY: `inside` checked that every element of the view is in the buffer. The view borrows the
        // buffer.
        unsafe { View::from_raw(ptr, T::DTYPE, shape, strides) }
            .map(|view| view.placed(self.device.location()))
    }

    /// Like [`Buffer::view_strided`], for writing.
    ///
    /// # Errors
    /// Same as [`Buffer::view_strided`].
    pub fn view_strided_mut(&mut self, offset: usize, shape: &[i64], strides: &[i64]) -> Result<ViewMut<'_>> {
        let ptr = self.inside(offset, shape, strides)?;
        // SAFETY: `inside` checked that every element of the view is in the buffer. The view borrows the
        // buffer mutably.
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
        match self.device.as_cuda() {
            // SAFETY: both buffers have `self.len` elements and are on this GPU. `drop` frees a buffer only
            // after submitted GPU work is done.
            Some(cuda) => unsafe { cuda.copy(self.address, from.address, self.len * size_of::<T>(), stream) },
            // SAFETY: both are host buffers of the same length. `&mut self` guarantees that they do not
            // overlap.
            None => unsafe {
                std::ptr::copy_nonoverlapping(from.address as *const T, self.address as *mut T, self.len);
                Ok(())
            },
        }
    }

    /// Returns the address of element `offset`. Fails if a tensor of `shape` and `strides` that starts there
    /// is not completely inside the buffer.
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
        Ok((self.address as usize + offset * size_of::<T>()) as *mut c_void)
    }

    /// Copies the elements to the host, after all work on the legacy default stream is done. If work on
    /// another stream writes the buffer, synchronize that stream first.
    ///
    /// # Errors
    /// Returns an error if a kernel or the copy failed.
    pub fn download(&self) -> Result<Vec<T>> {
        self.download_part(0..self.len)
    }

    /// Copies a range of the elements to the host, like [`Buffer::download`].
    ///
    /// # Errors
    /// Returns an error if the range is not inside the buffer, or if a kernel or the copy failed.
    pub fn download_part(&self, range: Range<usize>) -> Result<Vec<T>> {
        let from = self.inside(range.start, &[range.len() as i64], &[1])?;
        let mut values = vec![T::default(); range.len()];
        match self.device.as_cuda() {
            // SAFETY: `values` and the range have the same length.
            Some(cuda) => unsafe {
                cuda.download(values.as_mut_ptr().cast(), from as u64, size_of_val(&values[..]))?
            },
            // SAFETY: `values` and the range have the same length, and the buffer is on the host.
            None => unsafe {
                std::ptr::copy_nonoverlapping(from.cast::<T>(), values.as_mut_ptr(), values.len())
            },
        }
        Ok(values)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let bytes = self.len * size_of::<T>();
        // SAFETY: `reserve` allocated the memory with this layout, and every view borrows the buffer.
        // Launches and copies may still use the memory, but `cuMemFree` waits until they are done.
        unsafe {
            match self.device.as_cuda() {
                Some(cuda) => cuda.free(self.address),
                None => std::alloc::dealloc(self.address as *mut u8, host_layout(bytes)),
            }
        }
    }
}

fn contiguous(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = i64::saturating_mul(strides[dim], shape[dim].max(1));
    }
    strides
}
