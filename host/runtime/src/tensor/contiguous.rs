//! Constructors of contiguous views. The source of a view is a pointer, a slice, or device memory of the
//! crate `cust`. Contiguous means row-major order without gaps, as in torch.
use std::ffi::c_void;

use cust::memory::{DeviceCopy, DeviceSlice};

use super::view::{View, ViewMut};
use crate::device::Location;
use crate::{Dtype, Error, Result, Scalar};

impl<'a> View<'a> {
    /// Makes a view of a contiguous tensor in memory that other code owns. The strides are computed from
    /// `shape`. The view does not store the device of the memory. If the caller knows the device,
    /// [`View::on`] stores it in the view.
    ///
    /// ```
    /// use oxiwarp_runtime::{Dtype, View};
    ///
    /// # fn main() -> oxiwarp_runtime::Result<()> {
    /// let values = [1.0_f32; 6];
    /// // SAFETY: the memory has 2 x 3 elements of type f32, and `values` lives longer than the view.
    /// let view = unsafe { View::from_raw_contiguous(values.as_ptr().cast(), Dtype::F32, &[2, 3])? };
    /// assert_eq!(view.strides(), [3, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// The requirements of [`View::from_raw`] apply.
    ///
    /// # Errors
    /// Returns the errors of [`View::from_raw`].
    pub unsafe fn from_raw_contiguous(ptr: *const c_void, dtype: Dtype, shape: &[i64]) -> Result<Self> {
        // SAFETY: `from_raw` requires that `ptr` is valid for every element of a contiguous tensor of
        // `shape`. The caller guarantees this.
        unsafe { Self::from_raw(ptr, dtype, shape, &contiguous(shape)) }
    }

    /// Makes a view of the elements of a slice, as a contiguous tensor of `shape`. The view is for the CPU
    /// executor, which runs kernels on the host. A slice is host memory, so [`View::expect_on`] returns an
    /// error for a GPU. [`Device::upload`](crate::Device::upload) copies a slice to a GPU.
    ///
    /// ```
    /// use oxiwarp_runtime::{Dtype, View};
    ///
    /// # fn main() -> oxiwarp_runtime::Result<()> {
    /// let values = [half::bf16::ONE; 6];
    /// let view = View::of_slice(&values, &[2, 3])?;
    /// assert_eq!((view.dtype(), view.strides()), (Dtype::Bf16, &[3, 1][..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The view borrows the slice, so the following code does not compile:
    ///
    /// ```compile_fail,E0597
    /// # use oxiwarp_runtime::View;
    /// let view = {
    ///     let values = vec![1.0_f32; 6];
    ///     View::of_slice(&values, &[6])?
    /// };
    /// let copy = view;
    /// # Ok::<(), oxiwarp_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the slice has more or fewer elements than a tensor of `shape`, and in the cases of
    /// [`View::from_raw`].
    pub fn of_slice<T: Scalar>(elements: &'a [T], shape: &[i64]) -> Result<Self> {
        // SAFETY: the view reads the elements of the slice, for which the slice's pointer is valid. The view
        // borrows the slice.
        unsafe { of_elements(elements.as_ptr(), elements.len(), shape) }
    }

    /// Makes a view of device memory of the crate `cust`, for example of a `DeviceBuffer`. The tensor is
    /// contiguous and starts at the first element of `memory`. The view does not store which GPU has the
    /// memory. If the caller knows the GPU, [`View::on`] stores it in the view. [`View::expect_on`] accepts
    /// every GPU if the view stores none, but returns an error for the CPU executor.
    ///
    /// `cust` does not accept the f16 and bf16 types of version 2 of the crate `half` as elements. Use `u16`
    /// elements and pass the dtype.
    ///
    /// # Errors
    /// Returns an error if the tensor is larger than `memory`, and in the cases of [`View::from_raw`].
    pub fn of_cust<T: DeviceCopy>(memory: &'a DeviceSlice<T>, dtype: Dtype, shape: &[i64]) -> Result<Self> {
        let ptr = memory.as_device_ptr().as_raw() as usize as *const c_void;
        // SAFETY: the view covers memory of `memory`, which it borrows. If the tensor is larger than
        // `memory`, the `if` after this line drops the view and returns an error.
        let view = unsafe { Self::from_raw_contiguous(ptr, dtype, shape) }?;
        let bytes = memory.len() as u64 * size_of::<T>() as u64;
        if count(shape).checked_mul(dtype.size() as u64).is_none_or(|needed| needed > bytes) {
            return Err(bad_shape(shape, format!("a tensor of at most {bytes} bytes")));
        }
        Ok(view.placed(Location::SomeCuda))
    }
}

impl<'a> ViewMut<'a> {
    /// Makes a writable view of a contiguous tensor in memory that other code owns: see
    /// [`View::from_raw_contiguous`].
    ///
    /// # Safety
    /// The requirements of [`ViewMut::from_raw`] apply.
    ///
    /// # Errors
    /// Returns the errors of [`View::from_raw`].
    pub unsafe fn from_raw_contiguous(ptr: *mut c_void, dtype: Dtype, shape: &[i64]) -> Result<Self> {
        // SAFETY: `from_raw_contiguous` requires that `ptr` is valid for every element of a contiguous tensor
        // of `shape`. The caller guarantees this. The caller also guarantees that the elements are writable,
        // and that no other code accesses them.
        unsafe { View::from_raw_contiguous(ptr, dtype, shape) }.map(Self)
    }

    /// Makes a writable view of the elements of a slice, as a contiguous tensor of `shape`, for the CPU
    /// executor: see [`View::of_slice`].
    ///
    /// ```
    /// use cuda_std::prelude::*;
    /// use oxiwarp_runtime::{Device, Kernels, Launch, Stream, ViewMut};
    ///
    /// /// # Safety
    /// /// `x` has one element per thread of the launch.
    /// unsafe fn twice<T: Elem>(x: *mut T) {
    ///     // SAFETY: each thread has its own element.
    ///     unsafe {
    ///         let x = x.add(thread::index()[0] as usize);
    ///         *x = T::from_f32((*x).to_f32() * 2.0);
    ///     }
    /// }
    /// entry!(twice<T: [f32, bf16]>(x: *mut T) => twice::<T>(x));
    ///
    /// # fn main() -> oxiwarp_runtime::Result<()> {
    /// let mut values = vec![1.0_f32, 2.0];
    /// let mut view = ViewMut::of_slice(&mut values, &[2])?;
    /// let kernels = Kernels::load(&Device::cpu(), &[], KERNELS)?;
    /// let site = kernels.on(Stream::default(), Launch::of([1, 1, 1], [2, 1, 1]));
    /// // SAFETY: the view has two elements, and the launch has two threads.
    /// unsafe { launch::twice(site, view.as_mut_ptr::<f32>()?)? };
    /// assert_eq!(values, [2.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The view borrows the slice mutably, so other code cannot access the slice until the last use of the
    /// view:
    ///
    /// ```compile_fail,E0502
    /// # use oxiwarp_runtime::ViewMut;
    /// let mut values = vec![1.0_f32, 2.0];
    /// let view = ViewMut::of_slice(&mut values, &[2])?;
    /// assert_eq!(values[0], 1.0);
    /// drop(view);
    /// # Ok::<(), oxiwarp_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`View::of_slice`].
    pub fn of_slice<T: Scalar>(elements: &'a mut [T], shape: &[i64]) -> Result<Self> {
        // SAFETY: the view accesses the elements of the slice, for which the slice's pointer is valid. The
        // view borrows the slice mutably.
        unsafe { of_elements(elements.as_mut_ptr(), elements.len(), shape) }.map(Self)
    }

    /// Makes a writable view of device memory of the crate `cust`: see [`View::of_cust`].
    ///
    /// # Errors
    /// Returns the errors of [`View::of_cust`].
    pub fn of_cust<T: DeviceCopy>(
        memory: &'a mut DeviceSlice<T>,
        dtype: Dtype,
        shape: &[i64],
    ) -> Result<Self> {
        View::of_cust(memory, dtype, shape).map(Self)
    }
}

/// Makes a view of `len` elements in host memory, as a contiguous tensor of `shape`. Returns an error if a
/// tensor of `shape` does not have exactly `len` elements.
///
/// # Safety
/// `ptr` must be valid for `len` elements during `'a`.
unsafe fn of_elements<'a, T: Scalar>(ptr: *const T, len: usize, shape: &[i64]) -> Result<View<'a>> {
    // SAFETY: the view may cover only elements for which `ptr` is valid. The caller guarantees `len` such
    // elements. If the tensor has another number of elements, the `if` after this line drops the view and
    // returns an error.
    let view = unsafe { View::from_raw_contiguous(ptr.cast(), T::DTYPE, shape) }?;
    if count(shape) != len as u64 {
        return Err(bad_shape(shape, format!("a tensor of {len} elements")));
    }
    Ok(view.placed(Location::Host))
}

/// Returns the number of elements of a shape that [`View::from_raw`] has accepted.
fn count(shape: &[i64]) -> u64 {
    shape.iter().product::<i64>() as u64
}

fn bad_shape(shape: &[i64], expected: String) -> Error {
    Error::Shape { op: "View", arg: "shape", got: shape.to_vec(), expected }
}

/// Returns the strides of a contiguous tensor.
pub(crate) fn contiguous(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = i64::saturating_mul(strides[dim], shape[dim].max(1));
    }
    strides
}

#[cfg(test)]
mod tests {
    use cust::memory::DevicePointer;
    use half::{bf16, f16};

    use super::*;
    use crate::Device;

    #[test]
    fn a_pointer_gets_row_major_strides() {
        let mut bytes = [0_u8; 24];
        let (ptr, shape) = (bytes.as_mut_ptr().cast(), [2, 3, 1]);
        // SAFETY: the memory has six elements of four bytes.
        let view = unsafe { View::from_raw_contiguous(ptr, Dtype::F32, &shape) }.unwrap();
        assert_eq!(
            (view.shape(), view.strides(), view.dtype()),
            (&[2, 3, 1][..], &[3, 1, 1][..], Dtype::F32)
        );
        assert_eq!(view.ptr(), ptr.cast_const());
        assert!(view.is_contiguous());
        // SAFETY: the memory has six elements of four bytes, and no other code accesses it.
        let mut view = unsafe { ViewMut::from_raw_contiguous(ptr, Dtype::F32, &shape) }.unwrap();
        assert_eq!(view.as_view().strides(), [3, 1, 1]);
        assert_eq!(view.as_mut_ptr::<f32>().unwrap(), ptr.cast());
    }

    #[test]
    fn a_pointer_with_a_bad_shape_is_an_error() {
        for shape in [&[1; 9][..], &[2, -1], &[1 << 32, 1 << 31]] {
            // SAFETY: the function returns no view.
            assert!(unsafe { View::from_raw_contiguous(std::ptr::null(), Dtype::F32, shape) }.is_err());
        }
    }

    #[test]
    fn a_slice_becomes_a_tensor_of_host_memory() {
        fn check<T: Scalar>(dtype: Dtype) {
            let mut values = [T::default(); 6];
            let start = values.as_ptr();
            let view = View::of_slice(&values, &[2, 3]).unwrap();
            assert_eq!((view.dtype(), view.shape(), view.strides()), (dtype, &[2, 3][..], &[3, 1][..]));
            assert_eq!(view.as_ptr::<T>().unwrap(), start);
            assert_eq!(view.location, Some(Location::Host));
            let mut view = ViewMut::of_slice(&mut values, &[3, 2]).unwrap();
            assert_eq!(view.as_mut_ptr::<T>().unwrap().cast_const(), start);
            let view = view.as_view();
            assert_eq!(
                (view.dtype(), view.shape(), view.location),
                (dtype, &[3, 2][..], Some(Location::Host))
            );
        }
        check::<f32>(Dtype::F32);
        check::<f16>(Dtype::F16);
        check::<bf16>(Dtype::Bf16);
        check::<i64>(Dtype::I64);
        check::<i32>(Dtype::I32);
        check::<u8>(Dtype::Bool);
    }

    #[test]
    fn memory_of_cust_is_on_a_gpu() {
        // SAFETY: the test does not read the memory.
        let memory = unsafe { DeviceSlice::<f32>::from_raw_parts(DevicePointer::from_raw(256), 6) };
        let view = View::of_cust(&memory, Dtype::F32, &[2, 3]).unwrap();
        assert_eq!(view.location, Some(Location::SomeCuda));
        let error = view.expect_on("f", "x", &Device::cpu()).unwrap_err().to_string();
        assert_eq!(error, "f: x is on another device than CPU executor");
        assert!(Location::SomeCuda.may_be(Location::Cuda(1)) && !Location::Cuda(0).may_be(Location::Cuda(1)));
    }

    #[test]
    fn a_slice_has_as_many_elements_as_its_tensor() {
        let mut values = [1.0_f32; 6];
        for shape in [&[7][..], &[5], &[2, 2], &[], &[6, 0]] {
            let expected = format!("View: shape has shape {shape:?}, expected a tensor of 6 elements");
            assert_eq!(View::of_slice(&values, shape).unwrap_err().to_string(), expected);
            assert_eq!(ViewMut::of_slice(&mut values, shape).unwrap_err().to_string(), expected);
        }
        assert!(View::of_slice(&values, &[-2, -3]).is_err(), "negative sizes");
        assert!(View::of_slice(&values[..1], &[]).is_ok(), "a scalar");
        assert!(View::of_slice(&values[..0], &[3, 0]).is_ok(), "no elements");
    }
}
