//! `entry!`: from a function generic over the element type to kernels that are launched by name.

/// Exports a kernel once per element type: documented on the host's side of this macro, which rustdoc shows.
/// The overlap is for the host.
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
            // SAFETY: the names are distinct: op and element type are in them.
            #[unsafe(export_name = concat!(stringify!($op), "_", stringify!($elem)))]
            unsafe extern "ptx-kernel" fn entry($($arg: $ty),*) {
                // SAFETY: whoever launches the kernel keeps the promises of its function.
                unsafe { $body }
            }
        };
    };
}

/// Exports a kernel once per element type, as `<op>_<dtype>` (`rms_norm_bf16`).
///
/// ```ignore
/// entry!(scale<T: [f32, f16, bf16]>(x: *const T, y: *mut T, n: u32, factor: f32) => scale::<T>(x, y, n, factor));
/// entry!(norm_in_8<T: [f16, bf16]>(x: Rows) => norm::<T, 8>(x));
/// entry!(@overlap(Before) copy<T: [f32]>(x: *const T, y: *mut T, n: u32) => copy::<T>(x, y, n));
/// ```
/// On PTX each becomes an entry point of that name. Elsewhere the macro defines `pub static KERNELS`, which
/// lists them for the CPU executor under the same names; several declarations go into one `entry!`, separated
/// by `;`. `@overlap(...)` in front of a declaration is one of [`Overlap`](crate::cpu::Overlap), for the host
/// that launches it on a GPU; without it, `Both`. Arguments are `Copy` and have the same layout on both sides
/// (numbers, pointers, `repr(C)` structs).
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
            // SAFETY: whoever launches the kernel passes pointers to values of these types, and keeps the
            // promises of its function.
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
