//! `entry!`: exports a function that is generic over the element type as kernels, one per element type.

/// Exports a kernel once per element type. rustdoc shows the definition for the host, which has the
/// documentation. This definition for PTX ignores `@overlap`, which only the host uses.
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
            // SAFETY: export names are distinct, because they contain the op and the element type.
            #[unsafe(export_name = concat!(stringify!($op), "_", stringify!($elem)))]
            unsafe extern "ptx-kernel" fn entry($($arg: $ty),*) {
                // SAFETY: the code that launches the kernel satisfies the safety conditions of its function.
                unsafe { $body }
            }
        };
    };
}

/// Exports a kernel once per element type, as `<op>_<dtype>` (`rms_norm_bf16`).
///
/// ```ignore
/// entry!(scale<T: [f32, f16, bf16]>(x: *const T, y: *mut T, n: u32, factor: f32)
///     => scale::<T>(x, y, n, factor));
/// entry!(norm_in_8<T: [f16, bf16]>(x: Rows) => norm::<T, 8>(x));
/// entry!(@overlap(Before) copy<T: [f32]>(x: *const T, y: *mut T, n: u32) => copy::<T>(x, y, n));
/// ```
/// On PTX, each becomes an entry point of that name. On other targets, the macro defines `pub static
/// KERNELS`, which lists the kernels under the same names for the CPU executor. Several declarations go into
/// one `entry!`, separated by `;`.
///
/// `@overlap(...)` in front of a declaration names an [`Overlap`](crate::cpu::Overlap). The host uses it for
/// launches on a GPU. The default is `Both`.
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
            // SAFETY: the code that launches the kernel passes pointers to values of these types. It also
            // satisfies the safety conditions of the kernel's function.
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
