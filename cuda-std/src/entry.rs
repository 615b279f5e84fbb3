//! The macro `entry!`, which declares the kernels of a file. For a function that is generic over the element
//! type, the macro exports one kernel per element type.

/// Declares kernels. Each declaration makes one kernel per element type. The name of a kernel is
/// `<name>_<dtype>`, for example `scale_bf16`.
///
/// ```
/// use cuda_std::cpu::Launch;
/// use cuda_std::prelude::*;
///
/// /// # Safety
/// /// `x` has `n` elements.
/// unsafe fn scale<T: Elem>(x: *mut T, n: u32, factor: f32) {
///     let at = thread::block_index()[0] * thread::block_dim()[0] + thread::index()[0];
///     if at < n {
///         // SAFETY: `at` is less than `n`, and each thread has its own element.
///         unsafe {
///             let x = x.add(at as usize);
///             *x = T::from_f32((*x).to_f32() * factor);
///         }
///     }
/// }
/// entry!(scale<T: [f32, f16, bf16]>(x: *mut T, n: u32, factor: f32) => scale::<T>(x, n, factor));
///
/// # fn main() -> Result<(), cuda_std::cpu::Fault> {
/// let mut x = [1.0_f32, 2.0, 3.0];
/// let shape = Launch { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
/// // SAFETY: `x` has 3 elements, and nothing else accesses them during the launch.
/// unsafe { launch::scale(shape, x.as_mut_ptr(), 3, 10.0)? };
/// assert_eq!(x, [10.0, 20.0, 30.0]);
/// # Ok(())
/// # }
/// ```
///
/// For PTX targets, each kernel becomes a PTX entry point. For other targets, the macro defines two items:
///
/// - `pub mod launch` has one function per declaration, which launches the kernel. The first argument of the
///   function is a [`Launcher`](crate::launch::Launcher), for example a launch shape for the CPU executor.
///   The other arguments are the kernel's arguments, so a call with a missing or wrong argument does not
///   compile.
/// - `pub static KERNELS` is a list with one [`Entry`](crate::launch::Entry) per declaration. The host uses
///   this list to load the kernels.
///
/// The compiler also rejects a launch with an element type that the declaration does not list:
///
/// ```compile_fail,E0080
/// # use cuda_std::cpu::Launch;
/// # use cuda_std::prelude::*;
/// entry!(nothing<T: [f32]>(x: *mut T) => { let _ = x; });
/// # fn main() {
/// # let shape = Launch { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
/// let mut x = [bf16::ZERO];
/// unsafe { launch::nothing(shape, x.as_mut_ptr()) };
/// # }
/// ```
///
/// One `entry!` may contain several declarations, separated by `;`. A declaration may list several bodies,
/// each for a different list of element types. In this example, `norm_in_8` has one body for f16 and bf16,
/// and another body for f32:
///
/// ```ignore
/// entry! {
///     norm_in_8<T: [f16, bf16]>(x: Rows) => norm::<T, 8>(x), [f32] => norm::<T, 4>(x);
///     @overlap(Before) copy<T: [f32]>(x: *const T, y: *mut T, n: u32) => copy::<T>(x, y, n);
///     @shared(|block| block[0] * 4) sum<T: [f32]>(x: *const T, y: *mut T) => sum::<T>(x, y);
/// }
/// ```
/// These attributes may precede a declaration, in this order:
///
/// - `@overlap(...)` names an [`Overlap`](crate::launch::Overlap). This value says whether a launch of the
///   kernel may overlap with the previous and the next launch of its stream (programmatic dependent launch).
///   The default is `Both`. The attribute has an effect only if the host loads the kernel with
///   `Kernels::of_library` of the crate `oxiwarp-runtime`. `Kernels::load` ignores the attribute.
/// - `@shared(|block| bytes)` computes the dynamic shared memory of a launch. `block` is the block size, of
///   type `[u32; 3]`. The expression `bytes` may also use the kernel's arguments by name. With the attribute,
///   a launch ignores the field `shared_bytes` of its launch shape. Without the attribute, a launch uses this
///   field.
/// - `@only(sm_90a)` is for a kernel with instructions that exist only on this architecture. Compile a file
///   with such a kernel only for this architecture, because PTX for other architectures cannot contain the
///   instructions. The CPU executor emulates the instructions of sm_90a.
///
/// The type of every argument implements `Copy` and has the same memory layout on the host and on the GPU.
/// Numbers, pointers, and `repr(C)` structs of numbers and pointers satisfy this condition.
#[cfg(not(target_arch = "nvptx64"))]
#[macro_export]
macro_rules! entry {
    ($($(@overlap($overlap:ident))? $(@shared(|$block:ident| $shared:expr))? $(@only($arch:ident))?
        $op:ident<$T:ident: [$($elem:ident),+]>($($arg:ident: $ty:ty),* $(,)?)
        => $body:expr $(, [$($other:ident),+] => $other_body:expr)*);+ $(;)?) => {
        /// The kernels of this file.
        pub static KERNELS: &[$crate::launch::Entry] = &[$(
            $crate::entry!(@entry [$($overlap)?] [$(|$block| $shared)?] [$($arch)?] $op $T ($($arg: $ty),*)
                [$($elem),+] { $body } $([$($other),+] { $other_body })*)
        ),+];
        const NAMES: &[&str] = &[$(stringify!($op)),+];

        /// One launch function per kernel declaration of this file, with the name of the declaration. Its
        /// first parameter is the launcher, and the kernel's parameters follow.
        #[allow(unused_imports, private_interfaces)]
        pub mod launch {
            use super::*;
            $($crate::entry!(@launch $op $T ($($arg: $ty),*) [$($elem),+] $([$($other),+])*);)+
        }
    };
    (@launch $op:ident $T:ident ($($arg:ident: $ty:ty),*) $([$($elem:ident),+])+) => {
        #[doc = concat!("Launches the kernel `", stringify!($op), "`.")]
        ///
        /// # Errors
        /// Returns the error that the launcher `on` returns, for example if the device rejects the launch
        /// shape.
        ///
        /// # Safety
        /// The safety conditions of the kernel's function must hold until the GPU, or the CPU executor, has
        /// finished the launch.
        pub unsafe fn $op<$T: $crate::launch::KernelElement, Site: $crate::launch::Launcher<$T>>(
            on: Site,
            $($arg: $ty),*
        ) -> Result<(), Site::Error> {
            const {
                assert!(
                    $crate::launch::has($T::ELEMENT, &[$($($crate::launch::element::<$elem>()),+),+]),
                    concat!("the kernel ", stringify!($op), " has no variant for this element type")
                );
            }
            const INDEX: usize = $crate::launch::position(NAMES, stringify!($op));
            // SAFETY: the launch requires arguments of the types that the kernel declares. The parameters of
            // this function have these types. The caller satisfies the safety conditions of the kernel.
            unsafe { on.launch(&KERNELS[INDEX], &[$((&raw const $arg).cast()),*]) }
        }
    };
    (@entry $overlap:tt $shared:tt $arch:tt $op:ident $T:ident $args:tt $($elems:tt $body:tt)+) => {
        $crate::launch::Entry::new(
            stringify!($op),
            &[$($crate::entry!(@all $overlap $shared $arch $op $T $args $elems $body)),+],
        )
    };
    (@all $overlap:tt $shared:tt $arch:tt $op:ident $T:ident $args:tt [$($elem:ident),+] $body:tt) => {
        &[$($crate::launch::Kernel {
            name: concat!(stringify!($op), "_", stringify!($elem)),
            element: $crate::launch::element::<$elem>(),
            overlap: $crate::entry!(@overlap $overlap),
            parameters: $crate::entry!(@parameters $T $elem $args),
            shared: $crate::entry!(@shared $shared $T $elem $args),
            only: $crate::entry!(@only $arch),
            run: $crate::entry!(@run $T $elem $args $body),
            cache: {
                static CACHE: $crate::launch::Cache = $crate::launch::Cache::new(::core::ptr::null_mut());
                &CACHE
            },
        }),+]
    };
    (@only []) => { None };
    (@only [$arch:ident]) => { Some(stringify!($arch)) };
    (@overlap []) => { $crate::launch::Overlap::Both };
    (@overlap [$overlap:ident]) => { $crate::launch::Overlap::$overlap };
    (@parameters $T:ident $elem:ident ($($arg:ident: $ty:ty),*)) => {{
        #[allow(dead_code)]
        type $T = $elem;
        &[$($crate::launch::Parameter::new::<$ty>(stringify!($arg), stringify!($ty))),*]
    }};
    (@shared [] $($rest:tt)*) => { None };
    (@shared [|$block:ident| $shared:expr] $T:ident $elem:ident ($($arg:ident: $ty:ty),*)) => {{
        #[allow(dead_code)]
        type $T = $elem;
        #[allow(unused_variables)]
        unsafe fn shared($block: [u32; 3], args: &[*const ::core::ffi::c_void]) -> u32 {
            let [$($arg),*] = *args else { unreachable!("the launch has checked the number of arguments") };
            // SAFETY: the read gets one kernel argument. The code that launches the kernel passes pointers to
            // values of the arguments' types.
            $(let $arg = unsafe { $arg.cast::<$ty>().read() };)*
            $shared
        }
        Some(shared)
    }};
    (@run $T:ident $elem:ident ($($arg:ident: $ty:ty),*) $body:tt) => {{
        #[allow(dead_code)]
        type $T = $elem;
        unsafe fn run(args: &[*const ::core::ffi::c_void]) {
            let [$($arg),*] = *args else { unreachable!("the launch has checked the number of arguments") };
            // SAFETY: the read gets one kernel argument, and the body runs the kernel. The code that launches
            // the kernel passes pointers to values of the arguments' types, and satisfies the safety
            // conditions of the kernel's function.
            unsafe {
                $(let $arg = $arg.cast::<$ty>().read();)*
                $body
            }
        }
        run
    }};
}

/// Exports kernels as PTX entry points. This definition is the variant of the macro for PTX targets. The
/// variant for other targets documents the syntax.
#[cfg(target_arch = "nvptx64")]
#[macro_export]
macro_rules! entry {
    ($($(@overlap($overlap:ident))? $(@shared(|$block:ident| $shared:expr))? $(@only($arch:ident))?
        $op:ident<$T:ident: [$($elem:ident),+]>($($arg:ident: $ty:ty),* $(,)?)
        => $body:expr $(, [$($other:ident),+] => $other_body:expr)*);+ $(;)?) => {
        $($crate::entry!(@entry $op $T ($($arg: $ty),*) [$($elem),+] { $body } $([$($other),+] { $other_body })*);)+
    };
    (@entry $op:ident $T:ident $args:tt $($elems:tt $body:tt)+) => {
        $($crate::entry!(@all $op $T $args $elems $body);)+
    };
    (@all $op:ident $T:ident $args:tt [$($elem:ident),+] $body:tt) => {
        $($crate::entry!(@one $op $T $elem $args $body);)+
    };
    (@one $op:ident $T:ident $elem:ident ($($arg:ident: $ty:ty),*) $body:tt) => {
        const _: () = {
            #[allow(dead_code)]
            type $T = $elem;
            // SAFETY: the exported name must be unique. It consists of the name of a declaration and an
            // element type, and each such pair occurs only once.
            #[unsafe(export_name = concat!(stringify!($op), "_", stringify!($elem)))]
            unsafe extern "ptx-kernel" fn entry($($arg: $ty),*) {
                // SAFETY: the body runs the kernel. The code that launches the kernel satisfies the safety
                // conditions of the kernel's function.
                unsafe { $body }
            }
        };
    };
}
