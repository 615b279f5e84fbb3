//! A torch tensor handle that Rust owns, and views of its memory for the `oxiwarp` crate.

use crate::boundary::Failure;
use crate::device::Location;
use crate::shim::{Handle, MAX_DIMS, Place, shim};
use oxiwarp::arguments::Role;
use oxiwarp::{Dtype, View, ViewMut};
use std::borrow::Cow;

/// One owned reference to a torch tensor. For error messages, it also stores the name of an operator, and
/// the name of the argument of this operator for which the tensor was passed.
pub struct Tensor {
    handle: Handle,
    op: &'static str,
    name: &'static str,
    role: Role,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        shim().delete_tensor(self.handle);
    }
}

impl Tensor {
    /// Takes ownership of one reference to a tensor. `handle` must be a valid handle that the caller owns.
    pub fn own(handle: Handle, op: &'static str, name: &'static str, role: Role) -> Self {
        Tensor { handle, op, name, role }
    }

    /// Returns the role of the tensor in the operator.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Changes the name in error messages.
    pub fn rename(&mut self, name: &'static str) {
        self.name = name;
    }

    /// Returns the name in error messages.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the handle as a 64-bit value for torch's stack. The caller then owns the reference to the
    /// tensor.
    pub fn into_raw(self) -> u64 {
        let handle = self.handle;
        std::mem::forget(self);
        handle as u64
    }

    /// Allocates a contiguous tensor of the same sizes, dtype and device.
    pub fn empty_like(&self) -> Result<Tensor, String> {
        self.empty(self.sizes()?)
    }

    /// Allocates a contiguous float32 tensor of `sizes` on the same device.
    pub fn empty_f32(&self, sizes: &[i64]) -> Result<Tensor, String> {
        self.empty_ordered(sizes, shim().dtypes[0], false)
    }

    /// Allocates a contiguous tensor of `sizes`, with the dtype and device of this tensor.
    pub fn empty(&self, sizes: &[i64]) -> Result<Tensor, String> {
        self.empty_ordered(sizes, shim().dtype(self.handle)?, false)
    }

    /// Allocates a tensor with the sizes, dtype and device of this tensor. In memory, the new tensor always
    /// has the order `[B, S, heads, D]`. If `heads_first` is true, the sizes are `[B, heads, S, D]`, and the
    /// strides of the new tensor are permuted.
    pub fn empty_heads(&self, heads_first: bool) -> Result<Tensor, String> {
        self.empty_ordered(self.sizes()?, shim().dtype(self.handle)?, heads_first)
    }

    /// Returns whether two columns (elements of the last dimension) are not adjacent in memory.
    #[inline]
    pub fn is_scattered(&self) -> Result<bool, String> {
        if !shim().is_strided(self.handle)? {
            return Ok(false);
        }
        let (sizes, strides) = self.sizes_and_strides()?;
        let is_wide = sizes.last().is_some_and(|&size| size > 1) && !sizes.contains(&0);
        Ok(is_wide && strides.last() != Some(&1))
    }

    /// Returns a contiguous copy.
    pub fn copied(&self) -> Result<Tensor, String> {
        let mut copy = self.empty_like()?;
        (copy.name, copy.role) = (self.name, self.role);
        shim().copy(copy.handle, self.handle)?;
        Ok(copy)
    }

    /// Allocates a contiguous tensor of the same sizes and device, in float8_e5m2 or float8_e4m3fn.
    pub fn empty_fp8(&self, e5m2: bool) -> Result<Tensor, String> {
        let mut tensor = self.empty_ordered(self.sizes()?, shim().fp8_dtypes[usize::from(e5m2)], false)?;
        tensor.role = Role::Quantized;
        Ok(tensor)
    }

    /// Allocates a contiguous tensor of `sizes` on the same device, in float16 or bfloat16.
    pub fn empty_16_bits(&self, sizes: &[i64], f16: bool) -> Result<Tensor, String> {
        let [_, float16, bfloat16] = shim().dtypes;
        self.empty_ordered(sizes, if f16 { float16 } else { bfloat16 }, false)
    }

    /// Allocates a float32 tensor of `sizes` and `strides` on the same device.
    pub fn empty_f32_strided(&self, sizes: &[i64], strides: &[i64]) -> Result<Tensor, String> {
        self.allocate(sizes, |kind, index| {
            shim().empty_strided(sizes, strides, (shim().dtypes[0], kind, index))
        })
    }

    fn empty_ordered(&self, sizes: &[i64], dtype: i32, heads_first: bool) -> Result<Tensor, String> {
        self.allocate(sizes, |kind, index| shim().empty(sizes, heads_first, (dtype, kind, index)))
    }

    /// Returns the tensor of `sizes` that `create` makes on the device with this type and index, the device
    /// of this tensor.
    fn allocate(
        &self,
        sizes: &[i64],
        create: impl FnOnce(i32, i32) -> Result<Handle, String>,
    ) -> Result<Tensor, String> {
        let (kind, index) = (shim().device_type(self.handle)?, shim().device_index(self.handle)?);
        if sizes.len() > MAX_DIMS {
            return Err(self.error(format!(
                "{} has {} dimensions, expected at most {MAX_DIMS}",
                self.name,
                sizes.len()
            )));
        }
        match create(kind, index) {
            Ok(handle) => Ok(Tensor { handle, op: self.op, name: "the result", role: Role::Output }),
            // The Python part of this package recognizes the text of this error. It then allocates the same
            // tensor with torch, so that the user gets torch's exception (such as out of memory).
            Err(why) => Err(self.error(format!(
                "could not allocate the result {sizes:?} on {}{}{why}",
                self.location()?,
                if why.is_empty() { "" } else { ": " },
            ))),
        }
    }

    /// Returns the sizes.
    pub fn sizes(&self) -> Result<&[i64], String> {
        Ok(self.sizes_and_strides()?.0)
    }

    /// Returns the device of the tensor.
    pub fn location(&self) -> Result<Location, String> {
        let kind = shim().device_type(self.handle)?;
        let place = match shim().places.iter().position(|&place| place == kind) {
            Some(0) => Some(Place::Cpu),
            Some(_) => Some(Place::Cuda),
            None => None,
        };
        let index = if place == Some(Place::Cuda) { shim().device_index(self.handle)? } else { -1 };
        Ok(Location { place, index })
    }

    /// Returns an error if this tensor is not on `location`, the device of the argument `other`.
    pub fn expect_on(&self, location: Location, other: &str) -> Result<(), String> {
        let own = self.location()?;
        if own == location {
            return Ok(());
        }
        Err(self.error(format!("{} is on {own}, expected {location}, the device of {other}", self.name)))
    }

    /// Returns a view for reading.
    #[inline]
    pub fn view_as(&self, dtype: Dtype) -> Result<View<'_>, Failure> {
        let (shape, strides) = self.parts()?;
        // SAFETY: the view covers the memory of this tensor, with its pointer, sizes and strides. torch keeps
        // them and the memory alive as long as the handle, which `self` owns.
        unsafe { View::from_raw(shim().data_ptr(self.handle)?, dtype, shape, &strides) }
            .map_err(|error| Failure(self.error(error.to_string())))
    }

    /// Returns a view for writing. The operator's schema declares that the operator writes this tensor. torch
    /// permits arguments that overlap in memory, so the `oxiwarp` function checks whether tensors overlap.
    #[inline]
    pub fn view_mut_as(&self, dtype: Dtype) -> Result<ViewMut<'_>, Failure> {
        let (shape, strides) = self.parts()?;
        // SAFETY: the view covers the memory of this tensor, with its pointer, sizes and strides. torch keeps
        // them and the memory alive as long as the handle, which `self` owns.
        unsafe { ViewMut::from_raw(shim().data_ptr(self.handle)?, dtype, shape, &strides) }
            .map_err(|error| Failure(self.error(error.to_string())))
    }

    /// Returns sizes and strides. For a tensor without elements, the function returns the strides of a
    /// contiguous tensor, because the actual strides may be 0. autograd passes such tensors, and torch's
    /// `contiguous()` does not change their strides.
    fn parts(&self) -> Result<(&[i64], Cow<'_, [i64]>), String> {
        if !shim().is_strided(self.handle)? {
            return Err(self.error(format!("{} has a sparse layout, expected a strided tensor", self.name)));
        }
        let (sizes, strides) = self.sizes_and_strides()?;
        if !sizes.contains(&0) {
            return Ok((sizes, Cow::Borrowed(strides)));
        }
        let mut contiguous = vec![1_i64; sizes.len()];
        for dim in (1..sizes.len()).rev() {
            contiguous[dim - 1] = contiguous[dim].saturating_mul(sizes[dim].max(1));
        }
        Ok((sizes, Cow::Owned(contiguous)))
    }

    /// Returns the dtype, or an error if it is not f32, f16 or bf16.
    pub fn dtype(&self) -> Result<Dtype, String> {
        self.float_dtype()?.ok_or_else(|| self.wrong_dtype("f32, f16 or bf16"))
    }

    /// Returns the dtype, or `None` if it is not f32, f16 or bf16.
    #[inline]
    pub fn float_dtype(&self) -> Result<Option<Dtype>, String> {
        self.one_of(shim().dtypes, Dtype::FLOATS)
    }

    /// Returns the dtype, or `None` if it is neither float8_e4m3fn nor float8_e5m2.
    pub fn fp8_dtype(&self) -> Result<Option<Dtype>, String> {
        self.one_of(shim().fp8_dtypes, Dtype::FP8)
    }

    /// Returns the dtype of a tensor of indices, or an error if the dtype is neither int64 nor int32.
    pub fn index_dtype(&self) -> Result<Dtype, String> {
        let dtype = self.one_of(shim().index_dtypes, Dtype::INDICES)?;
        dtype.ok_or_else(|| self.wrong_dtype("int64 or int32"))
    }

    /// Returns the dtype of a bool attention mask. For any other dtype, returns an error that lists bool,
    /// f32, f16 and bf16. The caller has already handled masks in f32, f16 and bf16.
    pub fn mask_dtype(&self) -> Result<Dtype, String> {
        let dtype = self.one_of([shim().bool_dtype], [Dtype::Bool])?;
        dtype.ok_or_else(|| self.wrong_dtype("bool, f32, f16 or bf16"))
    }

    /// Returns the tensor's dtype if it is one of `dtypes`, otherwise `None`. `numbers` contains torch's
    /// codes of `dtypes`, in the same order.
    #[inline]
    fn one_of<const N: usize>(&self, numbers: [i32; N], dtypes: [Dtype; N]) -> Result<Option<Dtype>, String> {
        let number = shim().dtype(self.handle)?;
        Ok(numbers.iter().position(|&dtype| dtype == number).map(|at| dtypes[at]))
    }

    /// Returns the error text for a tensor whose dtype is not `expected`.
    pub fn wrong_dtype(&self, expected: &str) -> String {
        let number = match (self.float_dtype(), shim().dtype(self.handle)) {
            (Ok(Some(dtype)), _) => {
                return self.error(format!("{} is {dtype}, expected {expected}", self.name));
            }
            (_, Ok(number)) => number,
            (_, Err(error)) => return error,
        };
        let got = shim().dtype_name(number);
        let got = got.map_or_else(|| format!("of the dtype that torch numbers {number}"), Into::into);
        self.error(format!("{} is {got}, expected {expected}", self.name))
    }

    fn sizes_and_strides(&self) -> Result<(&[i64], &[i64]), String> {
        let dim = shim().dim(self.handle)? as usize;
        if dim == 0 {
            return Ok((&[], &[]));
        }
        let (sizes, strides) = (shim().sizes(self.handle)?, shim().strides(self.handle)?);
        // SAFETY: the slices cover `dim` values at `sizes` and at `strides`, which point to arrays of torch.
        // The arrays stay valid as long as the handle, which `self` owns.
        Ok(unsafe { (std::slice::from_raw_parts(sizes, dim), std::slice::from_raw_parts(strides, dim)) })
    }

    fn error(&self, what: String) -> String {
        format!("{}: {what}", self.op)
    }
}
