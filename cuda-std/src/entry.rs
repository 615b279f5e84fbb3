//! The macro `entry!` exports a function that is generic over the element type. It makes one kernel per
//! element type.

/// Exports a kernel once per element type. This definition is for PTX. It ignores `@overlap`, which only the
/// host uses. The definition for the host has the documentation, because rustdoc runs for the host.
#[cfg(target_arch = "nvptx64")]
#[macro_export]
macro_rules! entry {
    ($($(@overlap($overlap:ident))? $op:ident<$T:ident: [$($elem:ident),+]>($($arg:ident: $ty:ty),* $(,)?)
        => $body:expr);+ $(;)?) => {
        $($crate::entry!(@each $op $T [$($elem),+] ($($arg: $ty),*) $body);)+
    };
    (@each $op:ident $T:ident [$($elem:ident),+] $args:tt $body:expr) => {
        $($crate::entry!(@one $op $T $elem $args $body);)+
    };
    (@one $op:ident $T:ident $elem:ident ($($arg:ident: $ty:ty),*) $body:expr) => {
        const _: () = {
            #[allow(dead_code)]
            type $T = $elem;
            // SAFETY: names of kernels are distinct, because each name contains the op and the element type.
            #[unsafe(export_name = concat!(stringify!($op), "_", stringify!($elem)))]
            unsafe extern "ptx-kernel" fn entry($($arg: $ty),*) {
                // SAFETY: the code that launches the kernel satisfies the safety conditions of the kernel's
                // function.
                unsafe { $body }
            }
        };
    };
}

/// Exports a kernel once per element type, as `<op>_<dtype>` (for example `scale_bf16`).
///
/// ```ignore
/// entry!(scale<T: [f32, f16, bf16]>(x: *const T, y: *mut T, n: u32, factor: f32)
///     => scale::<T>(x, y, n, factor));
/// entry!(norm_in_8<T: [f16, bf16]>(x: Rows) => norm::<T, 8>(x));
/// entry!(@overlap(Before) copy<T: [f32]>(x: *const T, y: *mut T, n: u32) => copy::<T>(x, y, n));
/// ```
/// For PTX, each kernel becomes an entry point with this name. For other targets, the macro defines `pub
/// static KERNELS`, which lists the kernels under the same names for the CPU executor. One `entry!` may
/// contain several declarations, separated by `;`.
///
/// `@overlap(...)` in front of a declaration names an [`Overlap`](crate::cpu::Overlap): how launches of the
/// kernel overlap with neighbouring launches on a GPU. The default is `Both`.
///
/// Arguments are `Copy` and have the same layout on host and device: numbers, pointers and `repr(C)` structs.
#[cfg(not(target_arch = "nvptx64"))]
#[macro_export]
macro_rules! entry {
    ($($(@overlap($overlap:ident))? $op:ident<$T:ident: [$($elem:ident),+]>($($arg:ident: $ty:ty),* $(,)?)
        => $body:expr);+ $(;)?) => {
        /// The kernels of this file, for the CPU executor.
        pub static KERNELS: &[&[$crate::cpu::Kernel]] =
            &[$($crate::entry!(@each [$($overlap)?] $op $T [$($elem),+] ($($arg: $ty),*) $body)),+];
    };
    (@each $overlap:tt $op:ident $T:ident [$($elem:ident),+] $args:tt $body:expr) => {
        &[$($crate::entry!(@one $overlap $op $T $elem $args $body)),+]
    };
    (@one $overlap:tt $op:ident $T:ident $elem:ident ($($arg:ident: $ty:ty),*) $body:expr) => {{
        #[allow(dead_code)]
        type $T = $elem;
        unsafe fn run(args: &[*const ::core::ffi::c_void]) {
            let [$($arg),*] = *args else {
                panic!("{} arguments, got {}", concat!($(stringify!($arg), " "),*), args.len());
            };
            // SAFETY: the code that launches the kernel passes pointers to values of the argument types. It
            // also satisfies the safety conditions of the kernel's function.
            unsafe {
                $(let $arg = $arg.cast::<$ty>().read();)*
                $body
            }
        }
        $crate::cpu::Kernel {
            name: concat!(stringify!($op), "_", stringify!($elem)),
            overlap: $crate::entry!(@policy $overlap),
            run,
        }
    }};
    (@policy []) => { $crate::cpu::Overlap::Both };
    (@policy [$overlap:ident]) => { $crate::cpu::Overlap::$overlap };
}
