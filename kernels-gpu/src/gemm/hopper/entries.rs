//! The macro `hopper_products!`, which declares the kernels of an op.

/// Declares the kernels of a matrix product on Hopper.
///
/// The first line has the kernel arguments, the type of the epilogue, and the arguments of
/// [`gemm`](super::kernel::gemm). Each further line has the name of a kernel and its type in the module
/// [`shape`](super::shape), which determines the tile sizes. The parameter of this type has the element
/// types.
#[allow(unused_macros)] // Only the units of matrix products on Hopper use the macro.
macro_rules! hopper_products {
    ($arguments:tt => $epilogue:ty, $values:tt;
     $($name:ident<$T:ident: $elements:tt>($kernel:ident<$types:ty>));+ $(;)?) => {
        cuda_std::entry! { $(
            @shared(|_block| {
                use $crate::gemm::hopper::shape::{$kernel, GemmKernel};
                <$kernel<$types, $epilogue> as GemmKernel>::TILE.shared_bytes()
            })
            @only(sm_90a) $name<$T: $elements> $arguments =>
                $crate::gemm::hopper::kernel::gemm::<$crate::gemm::hopper::shape::$kernel<$types, $epilogue>> $values
        );+ }
    };
}
#[allow(unused_imports)]
pub(crate) use hopper_products;
