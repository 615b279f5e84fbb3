//! Kernels as the host sees them: their names, their parameters, and the functions that launch them.
//!
//! [`entry!`](crate::entry!) makes an [`Entry`] for each declaration, and a function that launches it on a
//! [`Launcher`]. This crate has one launcher: [`cpu::Launch`](crate::cpu::Launch) runs the kernel on the CPU
//! executor. The host crate has another one, which also runs kernels on a GPU.
use core::ffi::c_void;
use core::marker::PhantomData;
use std::fmt::Write;

use half::{bf16, f16};

/// Which neighbouring launches of the same stream a launch may overlap with (programmatic dependent launch,
/// from sm_90 on). The executor ignores this value and runs launches one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// The launch may start before the previous one ends, but the next launch starts only after this one
    /// ends.
    ///
    /// The kernel does not execute `griddepcontrol.launch_dependents`. This variant is for kernels that take
    /// longer with this instruction, because the GPU then starts their blocks more slowly.
    Before,
    /// The launch may start before the previous one ends, as with `Before`. The kernel lacks the compiler
    /// barrier that keeps `ld.global.nc` loads after `griddepcontrol.wait`.
    ///
    /// This variant is for kernels that have no such loads. Their blocks are so short that the barrier costs
    /// measurable time.
    Plain,
    /// The launch may start before the previous one ends, and the next launch may start before this one ends.
    Both,
}

/// A declaration of [`entry!`](crate::entry!): kernels that differ only in their element type.
#[derive(Debug)]
pub struct Entry {
    /// The name without the element type, such as `rms_norm_block2`.
    pub name: &'static str,
    /// The kernels. Those of one inner slice have the same body in the source code.
    pub kernels: &'static [&'static [Kernel]],
}

impl Entry {
    /// Returns all kernels of the entry.
    pub fn kernels(&self) -> impl Iterator<Item = &'static Kernel> + use<> {
        self.kernels.iter().copied().flatten()
    }

    /// Returns the kernel for an element type, such as `"bf16"`.
    #[inline]
    pub fn kernel(&self, element: &str) -> Option<&'static Kernel> {
        self.kernels().find(|kernel| kernel.element == element)
    }
}

/// A kernel for one element type.
#[derive(Debug)]
pub struct Kernel {
    /// Name of the kernel in PTX and in the executor, such as `rms_norm_block2_bf16`.
    pub name: &'static str,
    /// The element type, such as `bf16`.
    pub element: &'static str,
    /// How launches of the kernel overlap on a GPU.
    pub overlap: Overlap,
    /// The parameters of the kernel.
    pub parameters: &'static [Parameter],
    /// Returns the bytes of dynamic shared memory of a launch. The arguments are the block size, and a pointer
    /// to each kernel argument. `None` means that the code which launches the kernel chooses the bytes.
    pub shared: Option<unsafe fn([u32; 3], &[*const c_void]) -> u32>,
    /// Runs the body of one thread on the CPU executor. The argument is a list of pointers to the values of
    /// the kernel arguments, like `kernelParams` of `cuLaunchKernel`. `None` means that the kernel has
    /// instructions that the executor does not have.
    pub run: Option<unsafe fn(&[*const c_void])>,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The name, such as `rows`.
    pub name: &'static str,
    /// The type as the kernel declares it, such as `u64` or `*const T`.
    pub type_name: &'static str,
    /// The size in bytes.
    pub size: usize,
}

impl Parameter {
    /// Describes the parameter `name` of type `T`. Used by [`entry!`](crate::entry!).
    pub const fn new<T: Copy>(name: &'static str, type_name: &'static str) -> Self {
        Self { name, type_name, size: size_of::<T>() }
    }
}

/// An argument of a launch by name. The macro `args!` of the host crate makes a list of arguments.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a> {
    value: *const c_void,
    size: usize,
    type_name: &'static str,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> Argument<'a> {
    /// Borrows the value of an argument.
    pub fn of<T: Copy>(value: &'a T) -> Self {
        let type_name = std::any::type_name::<T>();
        Self { value: (&raw const *value).cast(), size: size_of::<T>(), type_name, lifetime: PhantomData }
    }

    /// Returns the address of the value.
    pub fn as_ptr(&self) -> *const c_void {
        self.value
    }
}

impl Kernel {
    /// Checks the number of arguments and the size of each argument.
    ///
    /// # Errors
    /// Returns a text that names the kernel and lists its parameters.
    pub fn check(&self, args: &[Argument]) -> Result<(), String> {
        let signature = || {
            let mut list = String::new();
            for (at, Parameter { name, type_name, .. }) in self.parameters.iter().enumerate() {
                let comma = if at > 0 { ", " } else { "" };
                let _ = write!(list, "{comma}{name}: {type_name}");
            }
            list
        };
        if args.len() != self.parameters.len() {
            let (takes, got) = (self.parameters.len(), args.len());
            return Err(format!("{} takes {takes} arguments ({}), got {got}", self.name, signature()));
        }
        let wrong = |(parameter, arg): &(&Parameter, &Argument)| parameter.size != arg.size;
        let Some((parameter, arg)) = self.parameters.iter().zip(args).find(wrong) else { return Ok(()) };
        Err(format!(
            "{}: argument {} is {} ({} bytes), expected {} ({} bytes) as in ({})",
            self.name,
            parameter.name,
            arg.type_name,
            arg.size,
            parameter.type_name,
            parameter.size,
            signature()
        ))
    }
}

/// The element type that selects one of an entry's kernels: f32, f16, bf16, or [`AnyElement`].
pub trait KernelElement {
    /// The name of the type. `None` means that the launcher selects the kernel at run time.
    const NAME: Option<&'static str>;
}

/// Stands for an element type that is known only at run time. A launcher for it selects the kernel.
#[derive(Clone, Copy, Debug)]
pub enum AnyElement {}

macro_rules! elements {
    ($($t:ident)*) => { $(
        impl KernelElement for $t {
            const NAME: Option<&'static str> = Some(stringify!($t));
        }
    )* };
}
elements! { f32 f16 bf16 }

impl KernelElement for AnyElement {
    const NAME: Option<&'static str> = None;
}

/// A device with everything else that a launch needs, except the kernel and its arguments: grid, block and
/// stream. `T` is the element type of the kernels that it can launch.
pub trait Launcher<T> {
    /// The error of a launch.
    type Error;

    /// Launches the kernel of `entry` for the element type `T`. The functions that
    /// [`entry!`](crate::entry!) makes call this function.
    ///
    /// # Errors
    /// The launcher documents its errors.
    ///
    /// # Safety
    /// `args` has a pointer to a value of each parameter's type. The safety conditions of the kernel hold until
    /// the launch is done.
    unsafe fn launch(self, entry: &'static Entry, args: &[*const c_void]) -> Result<(), Self::Error>;
}

/// Returns whether `name` is in `names`, or is `None`. Used by [`entry!`](crate::entry!).
#[doc(hidden)]
pub const fn has(name: Option<&str>, names: &[&str]) -> bool {
    match name {
        Some(name) => find(names, name) < names.len(),
        None => true,
    }
}

/// Returns the index of `name` in `names`, which contains it. Used by [`entry!`](crate::entry!).
#[doc(hidden)]
pub const fn position(names: &[&str], name: &str) -> usize {
    let at = find(names, name);
    assert!(at < names.len(), "the macro lists every name");
    at
}

const fn find(names: &[&str], name: &str) -> usize {
    let mut at = 0;
    while at < names.len() && !same(names[at].as_bytes(), name.as_bytes()) {
        at += 1;
    }
    at
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}
