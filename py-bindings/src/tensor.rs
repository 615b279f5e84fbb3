//! An owned torch tensor handle, and its view for the host crate.

use crate::device::Location;
use crate::shim::{Handle, MAX_DIMS, Place, shim};
use oxiwarp::{Dtype, View, ViewMut};
use std::borrow::Cow;

/// One owned reference to a tensor, with the names that its errors need.
pub struct Tensor {
    handle: Handle,
    op: &'static str,
    name: &'static str,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        shim().delete_tensor(self.handle);
    }
}

impl Tensor {
    /// Takes over one reference. `handle` is live and ours.
    pub fn own(handle: Handle, op: &'static str, name: &'static str) -> Self {
        Tensor { handle, op, name }
    }

    /// The same tensor, called `name` in errors.
    pub fn named(self, name: &'static str) -> Self {
        let tensor = std::mem::ManuallyDrop::new(self);
        Tensor { handle: tensor.handle, op: tensor.op, name }
    }

    /// Gives the reference away, as a value for the result stack.
    pub fn into_raw(self) -> u64 {
        let handle = self.handle;
        std::mem::forget(self);
        handle as u64
    }

    /// A new contiguous tensor of the same sizes, dtype and device: an output named `name`.
    pub fn empty_like(&self, name: &'static str) -> Result<Tensor, String> {
        self.empty(name, self.sizes()?)
    }

    /// A new float32 for each row of this tensor, which is its sizes without the last: an output named `name`.
    pub fn empty_rows(&self, name: &'static str) -> Result<Tensor, String> {
        let sizes = self.sizes()?;
        self.empty_of(name, &sizes[..sizes.len().saturating_sub(1)], shim().dtypes[0])
    }

    /// A new contiguous float32 tensor of `sizes` on the same device, named `name`.
    pub fn empty_f32(&self, name: &'static str, sizes: &[i64]) -> Result<Tensor, String> {
        self.empty_of(name, sizes, shim().dtypes[0])
    }

    /// A new contiguous tensor of `sizes`, of the same dtype and device: an output named `name`.
    pub fn empty(&self, name: &'static str, sizes: &[i64]) -> Result<Tensor, String> {
        self.empty_of(name, sizes, shim().dtype(self.handle)?)
    }

    /// A new tensor of the same sizes, dtype and device, in which the heads of a token lie side by side also if they come
    /// before the tokens in the sizes: an output named `name`.
    pub fn empty_heads(&self, name: &'static str, heads_first: bool) -> Result<Tensor, String> {
        self.empty_ordered(name, self.sizes()?, shim().dtype(self.handle)?, heads_first)
    }

    fn empty_of(&self, name: &'static str, sizes: &[i64], dtype: i32) -> Result<Tensor, String> {
        self.empty_ordered(name, sizes, dtype, false)
    }

    fn empty_ordered(
        &self,
        name: &'static str,
        sizes: &[i64],
        dtype: i32,
        heads_first: bool,
    ) -> Result<Tensor, String> {
        let (kind, index) = (shim().device_type(self.handle)?, shim().device_index(self.handle)?);
        if sizes.len() > MAX_DIMS {
            return Err(self.error(format!(
                "{} has {} dimensions, expected at most {MAX_DIMS}",
                self.name,
                sizes.len()
            )));
        }
        match shim().empty(sizes, heads_first, (dtype, kind, index)) {
            Ok(handle) => Ok(Tensor { handle, op: self.op, name }),
            // The Python side knows this text: it asks torch for the same memory to get torch's own exception.
            Err(why) => Err(self.error(format!(
                "could not allocate {name} {sizes:?} on {}{}{why}",
                self.location()?,
                if why.is_empty() { "" } else { ": " },
            ))),
        }
    }

    /// Its sizes.
    pub fn sizes(&self) -> Result<&[i64], String> {
        Ok(self.sizes_and_strides()?.0)
    }

    /// Where the tensor lives.
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

    /// An error unless this tensor lives where `x` does.
    pub fn expect_on(&self, x: Location) -> Result<(), String> {
        self.expect_beside(x, "x")
    }

    /// An error unless this tensor lives at `place`, where the argument `other` does.
    pub fn expect_beside(&self, place: Location, other: &str) -> Result<(), String> {
        let own = self.location()?;
        if own == place {
            return Ok(());
        }
        Err(self.error(format!("{} is on {own}, expected {place}, the device of {other}", self.name)))
    }

    /// The error of an argument that means nothing without `other`.
    pub fn given_without(&self, other: &str) -> String {
        self.error(format!("{} is given without {other}", self.name))
    }

    /// A view for reading.
    pub fn view(&self) -> Result<View<'_>, String> {
        self.view_as(self.dtype()?)
    }

    /// A view for reading what must have the dtype that `x` has.
    pub fn view_like(&self, x: &View) -> Result<View<'_>, String> {
        self.view_as(self.dtype_or(|| x.dtype().to_string())?)
    }

    /// A view for reading a parameter: of the dtype that `x` has, or float32.
    pub fn parameter_view(&self, x: &View) -> Result<View<'_>, String> {
        self.view_or_f32(x.dtype(), "x")
    }

    /// A view for reading what has the dtype of `like`, or float32.
    pub fn view_or_f32(&self, dtype: Dtype, like: &str) -> Result<View<'_>, String> {
        self.view_as(self.dtype_or(|| dtype.or_f32(like))?)
    }

    /// A view for reading indices.
    pub fn index_view(&self) -> Result<View<'_>, String> {
        self.view_as(self.one_of(shim().index_dtypes, Dtype::INDICES, "int64 or int32")?)
    }

    /// A view for reading a mask: of truth values, or of numbers that are added.
    pub fn mask_view(&self) -> Result<View<'_>, String> {
        let ([single, half, brain], truth) = (shim().dtypes, shim().bool_dtype);
        let dtypes = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Bool];
        self.view_as(self.one_of([single, half, brain, truth], dtypes, "bool, f32, f16 or bf16")?)
    }

    fn view_as(&self, dtype: Dtype) -> Result<View<'_>, String> {
        let (shape, strides) = self.parts()?;
        // SAFETY: torch keeps sizes, strides and storage alive as long as the handle that `self` owns.
        unsafe { View::from_raw(shim().data_ptr(self.handle)?, dtype, shape, &strides) }
            .map_err(|e| self.error(e.to_string()))
    }

    /// A view for writing into the caller's tensor, which must have the dtype that `x` has.
    pub fn view_mut_like(&self, x: &View) -> Result<ViewMut<'_>, String> {
        self.dtype_or(|| x.dtype().to_string())?;
        self.view_mut()
    }

    /// A view for writing. The schema says that this tensor is written; torch allows aliases, the host checks overlap.
    pub fn view_mut(&self) -> Result<ViewMut<'_>, String> {
        let (dtype, (shape, strides)) = (self.dtype()?, self.parts()?);
        // SAFETY: as in view_as().
        unsafe { ViewMut::from_raw(shim().data_ptr(self.handle)?, dtype, shape, &strides) }
            .map_err(|e| self.error(e.to_string()))
    }

    /// Sizes and strides; where there are no elements, strides of a contiguous tensor, which any such tensor is to torch:
    /// autograd makes expanded ones, and `contiguous()` leaves them as they are.
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

    fn dtype(&self) -> Result<Dtype, String> {
        self.dtype_or(|| "f32, f16 or bf16".into())
    }

    /// Its dtype, if it is one that kernels compute with; the error says what was expected. Whether it fits is for the host.
    fn dtype_or(&self, expected: impl FnOnce() -> String) -> Result<Dtype, String> {
        let number = shim().dtype(self.handle)?;
        match shim().dtypes.iter().position(|&dtype| dtype == number) {
            Some(at) => Ok(Dtype::FLOATS[at]),
            None => self.one_of([], [], &expected()),
        }
    }

    /// The dtype among those that torch numbers so.
    fn one_of<const N: usize>(
        &self,
        numbers: [i32; N],
        dtypes: [Dtype; N],
        expected: &str,
    ) -> Result<Dtype, String> {
        let number = shim().dtype(self.handle)?;
        let at = |numbers: &[i32]| numbers.iter().position(|&dtype| dtype == number);
        if let Some(at) = at(&numbers) {
            return Ok(dtypes[at]);
        }
        let got = match at(&shim().dtypes) {
            Some(at) => Dtype::FLOATS[at].to_string(),
            None => shim()
                .dtype_name(number)
                .map_or_else(|| format!("of the dtype that torch numbers {number}"), Into::into),
        };
        Err(self.error(format!("{} is {got}, expected {expected}", self.name)))
    }

    fn sizes_and_strides(&self) -> Result<(&[i64], &[i64]), String> {
        let dim = shim().dim(self.handle)? as usize;
        if dim == 0 {
            return Ok((&[], &[]));
        }
        let (sizes, strides) = (shim().sizes(self.handle)?, shim().strides(self.handle)?);
        // SAFETY: torch holds `dim` sizes and strides per tensor, alive as long as the handle.
        Ok(unsafe { (std::slice::from_raw_parts(sizes, dim), std::slice::from_raw_parts(strides, dim)) })
    }

    fn error(&self, what: String) -> String {
        format!("{}: {what}", self.op)
    }
}
