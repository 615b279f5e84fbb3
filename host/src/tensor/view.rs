//! Tensors that an op borrows. A view has a pointer, dtype, shape and strides. An op checks all its views
//! before it launches a kernel.
use std::ffi::c_void;
use std::marker::PhantomData;

use crate::device::handle::Location;
use crate::{Device, Dtype, Error, Result};

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
    /// The location of the memory if it belongs to a [`Buffer`](crate::Buffer). `None` for memory of another
    /// library, because only the caller has this information.
    location: Option<Location>,
    memory: PhantomData<&'a ()>,
}

impl<'a> View<'a> {
    /// Makes a view of memory that other code owns.
    ///
    /// # Safety
    /// `ptr` must point to memory of the device that the view is used on. Every element that shape and
    /// strides reach must be readable. Both must hold for `'a`, and until all GPU work that uses the view has
    /// finished.
    ///
    /// # Errors
    /// Returns an error in these cases: there are more than [`MAX_RANK`] dimensions; a size or stride is
    /// negative; the number of strides differs from the number of sizes; the product of the sizes is 2^63 or
    /// more (a size of 0 counts as 1).
    #[inline]
    pub unsafe fn from_raw(ptr: *const c_void, dtype: Dtype, shape: &[i64], strides: &[i64]) -> Result<Self> {
        let natural = shape.iter().chain(strides).all(|&number| number >= 0);
        // Check the product of the sizes for empty tensors too. Ops multiply some of the sizes, and this
        // product must not overflow although another size is 0.
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

    /// The address of the first element.
    pub fn ptr(&self) -> *const c_void {
        self.ptr
    }
    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
    /// The sizes.
    pub fn shape(&self) -> &[i64] {
        &self.shape[..self.rank]
    }
    /// The strides, in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides[..self.rank]
    }

    /// Returns the same view with a known memory location.
    pub(crate) fn placed(self, location: Location) -> Self {
        Self { location: Some(location), ..self }
    }
    /// Returns an error if the memory of the view is on another device than `device`. If the location is
    /// unknown, this function returns no error. The error names `op` and `arg`.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn expect_on(&self, op: &'static str, arg: &'static str, device: &Device) -> Result<()> {
        if self.location.is_none_or(|location| location == device.location()) {
            return Ok(());
        }
        Err(Error::Device { op, arg, expected: device.name().into() })
    }
    /// Returns an error that names `op` and `arg` if the element type is not `dtype`.
    ///
    /// # Errors
    /// [`Error::Dtype`].
    pub fn expect_dtype(&self, op: &'static str, arg: &'static str, dtype: Dtype) -> Result<()> {
        if self.dtype == dtype {
            return Ok(());
        }
        Err(Error::Dtype { op, arg, got: self.dtype, expected: dtype.to_string() })
    }
    /// Returns an error that names `op` and `arg` if the shape is not `shape`.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn expect_shape(&self, op: &'static str, arg: &'static str, shape: &[i64]) -> Result<()> {
        if self.shape() == shape {
            return Ok(());
        }
        Err(Error::Shape { op, arg, got: self.shape().to_vec(), expected: format!("{shape:?}") })
    }
    /// Returns the tensor broadcast to `shape`, as `torch.Tensor.expand` does. The dimensions that are
    /// expanded get the stride 0.
    pub(crate) fn broadcast_to(&self, op: &'static str, arg: &'static str, shape: &[i64]) -> Result<Self> {
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
    /// Returns the error for strides that an op does not support.
    pub(crate) fn bad_strides(&self, op: &'static str, arg: &'static str, problem: &'static str) -> Error {
        Error::Strides { op, arg, shape: self.shape().to_vec(), strides: self.strides().to_vec(), problem }
    }
    /// Returns the addresses of the first and the last byte of the tensor, or `None` if it has no elements.
    pub(crate) fn byte_range(&self) -> Option<(usize, usize)> {
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
pub struct ViewMut<'a>(View<'a>);

impl<'a> ViewMut<'a> {
    /// Makes a writable view of memory that other code owns.
    ///
    /// # Safety
    /// Same as [`View::from_raw`]. The memory must also be writable, and no other code may access it for
    /// `'a`.
    ///
    /// # Errors
    /// Same as [`View::from_raw`].
    #[inline]
    pub unsafe fn from_raw(ptr: *mut c_void, dtype: Dtype, shape: &[i64], strides: &[i64]) -> Result<Self> {
        // SAFETY: the caller passes device memory that is valid for every element of `shape` and `strides`.
        unsafe { View::from_raw(ptr, dtype, shape, strides) }.map(Self)
    }

    /// Returns the same view with a known memory location.
    pub(crate) fn placed(self, location: Location) -> Self {
        Self(self.0.placed(location))
    }

    /// Returns a read-only view of the same tensor, for example to read its shape and strides.
    pub fn as_view(&self) -> &View<'a> {
        &self.0
    }
}
