//! Memory on a device, for programs that have no tensor library.
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use crate::{Device, Error, Result, Scalar, Stream, View, ViewMut};

/// The alignment of buffers on the CPU: that of a line of L2, more than any access wants. (The driver aligns its own to 256.)
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
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl Device {
    /// Allocates `len` elements and sets every byte to 0xFF (a NaN, or -1). Elements that a kernel fails to
    /// write are then visible.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn alloc<T: Scalar>(&self, len: usize) -> Result<Buffer<T>> {
        let buffer = self.reserve(len)?;
        buffer.fill(&vec![T::POISON; len])?;
        Ok(buffer)
    }

    /// A copy of `values` on the device.
    ///
    /// # Errors
    /// Not enough memory, or a copy that failed.
    pub fn upload<T: Scalar>(&self, values: &[T]) -> Result<Buffer<T>> {
        let buffer = self.reserve(values.len())?;
        buffer.fill(values)?;
        Ok(buffer)
    }

    /// Allocates `len` elements: zeros on the CPU, uninitialized on a GPU.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn reserve<T: Scalar>(&self, len: usize) -> Result<Buffer<T>> {
        let out_of_memory = |bytes| Error::OutOfMemory { device: self.name().into(), bytes };
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize - ALIGN);
        let bytes = bytes.ok_or_else(|| out_of_memory(usize::MAX))?;
        let address = match self.as_cuda() {
            Some(cuda) => cuda.alloc(bytes)?,
            // SAFETY: the layout is not empty.
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
    /// Writes a new buffer, which nobody else has yet.
    fn fill(&self, values: &[T]) -> Result<()> {
        let (from, bytes) = (values.as_ptr(), size_of_val(values));
        assert_eq!(values.len(), self.len);
        match self.device.as_cuda() {
            // SAFETY: both are `bytes` long.
            Some(cuda) => unsafe { cuda.upload(self.address, from.cast(), bytes) },
            None => {
                // SAFETY: both are as long.
                unsafe { std::ptr::copy_nonoverlapping(from, self.address as *mut T, values.len()) };
                Ok(())
            }
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is there no element?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as a contiguous tensor of `shape`.
    ///
    /// # Errors
    /// A shape of more elements than there are.
    pub fn view(&self, shape: &[i64]) -> Result<View<'_>> {
        self.view_strided(0, shape, &contiguous(shape))
    }

    /// The elements as a contiguous tensor of `shape`, to be written.
    ///
    /// # Errors
    /// As [`Buffer::view`].
    pub fn view_mut(&mut self, shape: &[i64]) -> Result<ViewMut<'_>> {
        self.view_strided_mut(0, shape, &contiguous(shape))
    }

    /// The tensor of `shape` and `strides` (in elements) that begins at element `offset`.
    ///
    /// # Errors
    /// A tensor that reaches past the buffer.
    pub fn view_strided(&self, offset: usize, shape: &[i64], strides: &[i64]) -> Result<View<'_>> {
        let ptr = self.inside(offset, shape, strides)?;
        // SAFETY: every element lies in the buffer, which the view borrows.
        unsafe { View::from_raw(ptr, T::DTYPE, shape, strides) }
            .map(|view| view.placed(self.device.location()))
    }

    /// As [`Buffer::view_strided`], to be written.
    ///
    /// # Errors
    /// As there.
    pub fn view_strided_mut(&mut self, offset: usize, shape: &[i64], strides: &[i64]) -> Result<ViewMut<'_>> {
        let ptr = self.inside(offset, shape, strides)?;
        // SAFETY: as `view_strided`, borrowed mutably.
        unsafe { ViewMut::from_raw(ptr, T::DTYPE, shape, strides) }
            .map(|view| view.placed(self.device.location()))
    }

    /// Gives a copy of `from` into this buffer to `stream`: a GPU's memory bandwidth is measured by it.
    ///
    /// # Errors
    /// Buffers of different lengths or devices; a driver error.
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
            // SAFETY: both are this long, on this GPU, and are freed when the copy is done (see `drop`).
            Some(cuda) => unsafe { cuda.copy(self.address, from.address, self.len * size_of::<T>(), stream) },
            // SAFETY: two buffers on the host.
            None => unsafe {
                std::ptr::copy_nonoverlapping(from.address as *const T, self.address as *mut T, self.len);
                Ok(())
            },
        }
    }

    /// The address of element `offset`, if the tensor that begins there ends inside.
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

    /// Copies the elements back, after what was given to the default stream. For work on another stream, wait for that
    /// stream first.
    ///
    /// # Errors
    /// A kernel or a copy that failed.
    pub fn download(&self) -> Result<Vec<T>> {
        self.download_part(0..self.len)
    }

    /// As [`Buffer::download`], of some of the elements.
    ///
    /// # Errors
    /// A range that is not inside the buffer; a kernel or a copy that failed.
    pub fn download_part(&self, range: Range<usize>) -> Result<Vec<T>> {
        let from = self.inside(range.start, &[range.len() as i64], &[1])?;
        let mut values = vec![T::default(); range.len()];
        match self.device.as_cuda() {
            // SAFETY: both have the same length.
            Some(cuda) => unsafe {
                cuda.download(values.as_mut_ptr().cast(), from as u64, size_of_val(&values[..]))?
            },
            // SAFETY: as above.
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
        // SAFETY: allocated in `reserve`, with this layout; no view outlives the buffer. Launches and copies may: `cuMemFree`
        // waits for what the GPU was given before, as memory of `cuMemAlloc` is unmapped at once.
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
