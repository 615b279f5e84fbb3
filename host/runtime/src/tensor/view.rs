//! Tensors that an op borrows. A view has a pointer, dtype, shape and strides. An op checks all its views
//! before it launches a kernel.
use std::ffi::c_void;
use std::marker::PhantomData;

use crate::device::Location;
use crate::{Device, Dtype, Error, Result, Scalar};

/// Maximum number of dimensions.
pub const MAX_RANK: usize = 8;

/// A borrowed, read-only tensor: address, element type, shape, and strides in elements.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    ptr: *const c_void,
    dtype: Dtype,
    rank: usize,
    shape: [i64; MAX_RANK],
    strides: [i64; MAX_RANK],
    /// The location of the memory (host memory or a GPU), or `None` if this crate does not know the location.
    /// The location is known for a view of a [`Buffer`](crate::Buffer) or a slice, and after [`View::on`].
    /// This crate never asks the driver for the location.
    pub(super) location: Option<Location>,
    memory: PhantomData<&'a ()>,
}

impl<'a> View<'a> {
    /// Makes a view of memory that other code owns. The view does not store the device of the memory. If the
    /// caller knows the device, [`View::on`] stores it in the view.
    ///
    /// # Safety
    /// `ptr` must point to memory of the device that the view is used on. Every element that `shape` and
    /// `strides` address must be readable. The pointer must stay valid and the elements must stay readable
    /// for `'a`, and until all GPU work that uses the view has finished.
    ///
    /// # Errors
    /// Returns an error in these cases:
    ///
    /// - There are more than [`MAX_RANK`] dimensions.
    /// - A size or stride is negative.
    /// - The number of strides differs from the number of sizes.
    /// - The product of the sizes is 2^63 or more. In this product, a size of 0 counts as 1.
    #[inline]
    pub unsafe fn from_raw(ptr: *const c_void, dtype: Dtype, shape: &[i64], strides: &[i64]) -> Result<Self> {
        let natural = shape.iter().chain(strides).all(|&number| number >= 0);
        // Check the product of the sizes even if the tensor is empty. Ops multiply some of the sizes. The
        // product of these sizes must not overflow, even if another size is 0.
        let counted = shape.iter().try_fold(1_i64, |count, &size| count.checked_mul(size.max(1))).is_some();
        let fits = shape.len() <= MAX_RANK && shape.len() == strides.len() && natural && counted;
        if !fits {
            let expected = format!(
                "at most {MAX_RANK} sizes of less than 2^63 elements and a stride for each, none negative"
            );
            return Err(Error::Shape { op: "View", arg: "shape", got: shape.to_vec(), expected });
        }
        let dims = |of: &[i64]| std::array::from_fn(|i| of.get(i).copied().unwrap_or(0));
        Ok(Self {
            ptr,
            dtype,
            rank: shape.len(),
            shape: dims(shape),
            strides: dims(strides),
            location: None,
            memory: PhantomData,
        })
    }

    /// Returns the address of the first element.
    pub fn ptr(&self) -> *const c_void {
        self.ptr
    }

    /// Returns the address of the first element as a typed pointer.
    ///
    /// # Errors
    /// Returns [`Error::Dtype`] if the element type is not `T`.
    pub fn as_ptr<T: Scalar>(&self) -> Result<*const T> {
        self.expect_dtype("View::as_ptr", "self", T::DTYPE)?;
        Ok(self.ptr.cast())
    }
    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
    /// Returns the size of each dimension.
    pub fn shape(&self) -> &[i64] {
        &self.shape[..self.rank]
    }
    /// Returns the stride of each dimension, in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides[..self.rank]
    }

    /// Returns whether the elements are in row-major order without gaps, as `torch.Tensor.is_contiguous`
    /// does. The stride of a dimension of size 1 is ignored. A tensor without elements is contiguous.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        let mut dims = self.shape().iter().zip(self.strides()).rev();
        let dense = dims.all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        });
        dense || self.shape().contains(&0)
    }

    /// Returns the same view with a known memory location.
    pub(crate) fn placed(self, location: Location) -> Self {
        Self { location: Some(location), ..self }
    }

    /// Returns the same view, with the information that its memory is on `device`. [`View::expect_on`] then
    /// returns an error for every other device. Without this information, [`View::expect_on`] accepts every
    /// device. The caller must know the device, for example from a tensor of another library, because this
    /// function does not ask the driver.
    ///
    /// ```
    /// use oxiwarp_runtime::{Device, Dtype, View};
    ///
    /// # fn main() -> oxiwarp_runtime::Result<()> {
    /// let values = [1.0_f32, 2.0, 3.0];
    /// // SAFETY: the pointer is valid for three elements, and `values` lives longer than the view.
    /// let view = unsafe { View::from_raw_contiguous(values.as_ptr().cast(), Dtype::F32, &[3])? };
    /// let view = view.on(&Device::cpu())?;
    /// if let Ok(gpu) = Device::cuda(0) {
    ///     assert!(view.expect_on("my_op", "x", &gpu).is_err());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`Error::Device`] if the view already stores that its memory is on another device.
    pub fn on(self, device: &Device) -> Result<Self> {
        self.expect_on("View::on", "self", device)?;
        Ok(self.placed(device.location()))
    }

    /// Returns an error if the memory of the view is not on `device`. If the view does not store its device,
    /// this function returns no error. The error names `op` and `arg`.
    ///
    /// # Errors
    /// Returns [`Error::Device`].
    pub fn expect_on(&self, op: &'static str, arg: &'static str, device: &Device) -> Result<()> {
        if self.location.is_none_or(|location| location.may_be(device.location())) {
            return Ok(());
        }
        Err(Error::Device { op, arg, expected: device.name().into() })
    }
    /// Returns an error that names `op` and `arg` if the element type is not `dtype`.
    ///
    /// # Errors
    /// Returns [`Error::Dtype`].
    pub fn expect_dtype(&self, op: &'static str, arg: &'static str, dtype: Dtype) -> Result<()> {
        if self.dtype == dtype {
            return Ok(());
        }
        Err(Error::Dtype { op, arg, got: self.dtype, expected: dtype.to_string() })
    }
    /// Returns an error that names `op` and `arg` if the shape is not `shape`.
    ///
    /// # Errors
    /// Returns [`Error::Shape`].
    pub fn expect_shape(&self, op: &'static str, arg: &'static str, shape: &[i64]) -> Result<()> {
        if self.shape() == shape {
            return Ok(());
        }
        Err(Error::Shape { op, arg, got: self.shape().to_vec(), expected: format!("{shape:?}") })
    }
    /// Returns the tensor broadcast to `shape`, as `torch.Tensor.expand` does. Expanded dimensions have the
    /// stride 0. The error names `op` and `arg`.
    ///
    /// # Errors
    /// Returns [`Error::Shape`].
    pub fn broadcast_to(&self, op: &'static str, arg: &'static str, shape: &[i64]) -> Result<Self> {
        let own = self.shape();
        let missing = shape.len().checked_sub(own.len());
        let fits = |missing: usize| {
            own.iter().zip(&shape[missing..]).all(|(own, wanted)| own == wanted || *own == 1)
        };
        let Some(missing) = missing.filter(|&missing| fits(missing)) else {
            let expected = format!("one that broadcasts to {shape:?}");
            return Err(Error::Shape { op, arg, got: own.to_vec(), expected });
        };
        let mut wide = Self { rank: shape.len(), shape: [0; MAX_RANK], strides: [0; MAX_RANK], ..*self };
        wide.shape[..shape.len()].copy_from_slice(shape);
        for (dim, (size, stride)) in own.iter().zip(self.strides()).enumerate() {
            wide.strides[missing + dim] = if *size == shape[missing + dim] { *stride } else { 0 };
        }
        Ok(wide)
    }
    /// Returns the tensor with the dimensions `a` and `b` exchanged.
    ///
    /// # Panics
    /// Panics if the tensor does not have these dimensions.
    pub fn transposed(mut self, a: usize, b: usize) -> Self {
        assert!(a.max(b) < self.rank, "dimensions {a} and {b} of a tensor with {} dimensions", self.rank);
        self.shape.swap(a, b);
        self.strides.swap(a, b);
        self
    }
    /// Returns the error for strides that an op does not support. The error names `op` and `arg`.
    pub fn bad_strides(&self, op: &'static str, arg: &'static str, problem: &'static str) -> Error {
        Error::Strides { op, arg, shape: self.shape().to_vec(), strides: self.strides().to_vec(), problem }
    }
    /// Returns the addresses of the first and the last byte of the tensor, or `None` if it has no elements.
    pub fn byte_range(&self) -> Option<(usize, usize)> {
        if self.shape().contains(&0) {
            return None;
        }
        let last: i64 =
            self.shape().iter().zip(self.strides()).map(|(size, stride)| (size - 1) * stride).sum();
        let start = self.ptr as usize;
        Some((start, start + (last as usize + 1) * self.dtype.size() - 1))
    }
}

/// A tensor to write.
#[derive(Debug)]
pub struct ViewMut<'a>(pub(super) View<'a>);

impl<'a> ViewMut<'a> {
    /// Makes a writable view of memory that other code owns.
    ///
    /// # Safety
    /// The requirements of [`View::from_raw`] apply. The memory must also be writable. During `'a`, no other
    /// code may access the memory.
    ///
    /// # Errors
    /// Returns the errors of [`View::from_raw`].
    #[inline]
    pub unsafe fn from_raw(ptr: *mut c_void, dtype: Dtype, shape: &[i64], strides: &[i64]) -> Result<Self> {
        // SAFETY: `View::from_raw` requires that `ptr` is valid for every element that `shape` and `strides`
        // address. The caller guarantees this.
        unsafe { View::from_raw(ptr, dtype, shape, strides) }.map(Self)
    }

    /// Returns the address of the first element as a typed pointer.
    ///
    /// # Errors
    /// Returns the errors of [`View::as_ptr`].
    pub fn as_mut_ptr<T: Scalar>(&mut self) -> Result<*mut T> {
        self.0.as_ptr().map(<*const T>::cast_mut)
    }

    /// Returns the same view with a known memory location.
    pub(crate) fn placed(self, location: Location) -> Self {
        Self(self.0.placed(location))
    }

    /// Returns the same view, with the information that its memory is on `device`: see [`View::on`].
    ///
    /// # Errors
    /// Returns the errors of [`View::on`].
    pub fn on(self, device: &Device) -> Result<Self> {
        self.0.on(device).map(Self)
    }

    /// Returns a read-only view of the same tensor, for example to read its shape and strides.
    pub fn as_view(&self) -> &View<'a> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(shape: &[i64], strides: &[i64]) -> View<'static> {
        // SAFETY: the tests do not read the memory.
        unsafe { View::from_raw(std::ptr::null(), Dtype::F32, shape, strides) }.unwrap()
    }

    #[test]
    fn contiguous_views_have_row_major_strides() {
        let contiguous = |shape, strides| view(shape, strides).is_contiguous();
        assert!(contiguous(&[], &[]));
        assert!(contiguous(&[2, 3, 4], &[12, 4, 1]));
        assert!(!contiguous(&[2, 3, 4], &[24, 4, 1]), "gaps between matrices");
        assert!(!contiguous(&[2, 3], &[1, 2]), "column-major");
        assert!(!contiguous(&[4], &[2]), "every second element");
        assert!(!contiguous(&[4], &[0]), "one element, broadcast");
        assert!(contiguous(&[2, 1, 3], &[3, 99, 1]), "the stride of one element does not matter");
        assert!(contiguous(&[3, 0], &[7, 9]), "no elements");
        assert!(contiguous(&[0, 3], &[1, 1]), "no elements");
    }

    #[test]
    fn a_view_knows_its_device_after_it_was_told() {
        let cpu = Device::cpu();
        let unknown = view(&[1], &[1]);
        assert!(unknown.location.is_none());
        assert_eq!(unknown.on(&cpu).unwrap().location, Some(Location::Host));
        assert_eq!(ViewMut(unknown).on(&cpu).unwrap().as_view().location, Some(Location::Host));
        assert!(unknown.expect_on("f", "x", &cpu).is_ok());
        let on_gpu = unknown.placed(Location::Cuda(1));
        let says = |done: Result<()>| done.unwrap_err().to_string();
        assert_eq!(says(on_gpu.expect_on("f", "x", &cpu)), "f: x is on another device than CPU executor");
        let expected = "View::on: self is on another device than CPU executor";
        assert_eq!(says(on_gpu.on(&cpu).map(drop)), expected);
        assert_eq!(says(ViewMut(on_gpu).on(&cpu).map(drop)), expected);
    }
}
