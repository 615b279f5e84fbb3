//! Accessors for the properties of a tensor handle.

use super::{Handle, Shim};
use std::ffi::c_void;

/// Defines a method for each property of a tensor. The method calls a function of torch's C shim, which
/// writes the property to an out parameter, and returns the property.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $function:ident -> $ty:ty;)*) => {
        impl Shim { $(
            $(#[$doc])*
            pub fn $name(&self, tensor: Handle) -> Result<$ty, String> {
                let mut value = std::mem::MaybeUninit::<$ty>::uninit();
                // SAFETY: the shim function reads the tensor of the handle, and writes at most one value of
                // this type to `value`. Callers own the handle `tensor`, so it is valid.
                match unsafe { (self.functions.$function)(tensor, value.as_mut_ptr()) } {
                    // SAFETY: the shim wrote the value, because the code is 0.
                    0 => Ok(unsafe { value.assume_init() }),
                    code => Err(format!("{} failed with code {code}", stringify!($function))),
                }
            }
        )* }
    };
}

getters! {
    /// Address of the first element.
    data_ptr: aoti_torch_get_data_ptr -> *mut c_void;
    /// Number of dimensions.
    dim: aoti_torch_get_dim -> i64;
    /// Sizes, borrowed from the tensor.
    sizes: aoti_torch_get_sizes -> *mut i64;
    /// Strides in elements, borrowed from the tensor.
    strides: aoti_torch_get_strides -> *mut i64;
    /// torch's code of the dtype.
    dtype: aoti_torch_get_dtype -> i32;
    /// torch's code of the device type.
    device_type: aoti_torch_get_device_type -> i32;
    /// Index of the device, -1 for the CPU.
    device_index: aoti_torch_get_device_index -> i32;
    /// torch's code of the layout.
    layout: aoti_torch_get_layout -> i32;
}
