//! Describes kernels to the host: their names, their parameters, and the functions that launch them.
//!
//! The macro [`entry!`](crate::entry!) declares kernels. For each declaration, it defines an [`Entry`] and a
//! launch function. The launch function takes a [`Launcher`], which says where the kernel runs. The launcher
//! of this crate, [`cpu::Launch`](crate::cpu::Launch), runs kernels on the CPU executor. The host crate has a
//! launcher that also runs kernels on a GPU.
use core::ffi::c_void;
use core::marker::PhantomData;
use core::sync::atomic::AtomicPtr;
use std::fmt::Write;

use half::{bf16, f16};

/// Says whether a launch may run at the same time as the previous and the next launch of the same stream.
/// GPUs from sm_90 on do this with programmatic dependent launch (PDL). The CPU executor and older GPUs
/// ignore this value: they run the launches of a stream one after the other.
///
/// The host inserts two PTX instructions for PDL when it loads the kernel. `griddepcontrol.wait` waits until
/// all earlier launches of the stream have finished and their results are visible.
/// `griddepcontrol.launch_dependents` lets the next launch start before the current launch has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// The launch may start before the previous launch ends. The next launch starts only after this launch
    /// ends.
    ///
    /// The kernel executes `griddepcontrol.wait`, but not `griddepcontrol.launch_dependents`. With the second
    /// instruction, the GPU starts fewer blocks per microsecond. Choose this variant if a measurement shows
    /// that the kernel is slower with `Both`.
    Before,
    /// Does the same as `Before`, for kernels without the instruction `ld.global.nc` (load through the
    /// read-only cache).
    ///
    /// ptxas may move an `ld.global.nc` before `griddepcontrol.wait`. The load could then read an address
    /// before the previous launch has written it. To prevent this move, `Before` and `Both` insert a block
    /// barrier and a conditional `exit` after the wait. `Plain` omits the barrier and the `exit`. Use `Plain`
    /// for kernels whose blocks run so briefly that the barrier costs measurable time.
    Plain,
    /// The launch may start before the previous launch ends, and the next launch may start before this launch
    /// ends. This variant is the default of [`entry!`](crate::entry!).
    Both,
}

/// The result of one declaration of the macro [`entry!`](crate::entry!): kernels with the same name and
/// parameters, one kernel per element type.
#[derive(Debug)]
pub struct Entry {
    /// The name without the element type, such as `rms_norm_block2`.
    pub name: &'static str,
    /// The kernels of this declaration, which has one or more function bodies. Each inner slice lists the
    /// kernels of one body, one kernel per element type.
    kernels: &'static [&'static [Kernel]],
    /// A table of the kernels, indexed by [`ElementType`]. With this table, a launch finds its kernel without
    /// a search.
    by_element: [Option<&'static Kernel>; ElementType::COUNT],
}

impl Entry {
    /// Used by [`entry!`](crate::entry!).
    #[doc(hidden)]
    pub const fn new(name: &'static str, kernels: &'static [&'static [Kernel]]) -> Self {
        let mut by_element = [None; ElementType::COUNT];
        let mut group = 0;
        while group < kernels.len() {
            let mut at = 0;
            while at < kernels[group].len() {
                let kernel = &kernels[group][at];
                by_element[kernel.element as usize] = Some(kernel);
                at += 1;
            }
            group += 1;
        }
        Self { name, kernels, by_element }
    }

    /// Returns all kernels of the entry.
    pub fn kernels(&self) -> impl Iterator<Item = &'static Kernel> + use<> {
        self.kernels.iter().copied().flatten()
    }

    /// Returns the kernel for an element type.
    #[inline]
    pub fn kernel(&self, element: ElementType) -> Option<&'static Kernel> {
        self.by_element[element as usize]
    }
}

/// The element type of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit IEEE.
    F32,
    /// 16-bit IEEE.
    F16,
    /// bfloat16.
    Bf16,
}

impl ElementType {
    const COUNT: usize = 3;
}

/// A function that runs the kernel body for one GPU thread. Its argument is a list of pointers to the
/// kernel's arguments, as in the parameter `kernelParams` of `cuLaunchKernel`.
pub type Run = unsafe fn(&[*const c_void]);
/// A function that returns the number of bytes of dynamic shared memory that a launch needs. The first
/// argument is the block size. The second argument is a list with one pointer to each kernel argument.
pub type SharedBytes = unsafe fn([u32; 3], &[*const c_void]) -> u32;

/// A kernel for one element type.
#[derive(Debug)]
pub struct Kernel {
    /// Name of the kernel in PTX and in the executor, such as `rms_norm_block2_bf16`.
    pub name: &'static str,
    /// The element type.
    pub element: ElementType,
    /// How launches of the kernel overlap on a GPU.
    pub overlap: Overlap,
    /// The parameters of the kernel.
    pub parameters: &'static [Parameter],
    /// Computes the bytes of dynamic shared memory of a launch. If it is `None`, the code that launches the
    /// kernel chooses the number of bytes.
    pub shared: Option<SharedBytes>,
    /// The only architecture whose PTX contains the kernel (`@only`). `None` if every PTX contains it.
    pub only: Option<&'static str>,
    /// Runs the kernel body for one thread on the CPU executor.
    pub run: Run,
    /// A variable in which the host crate can store a pointer to the loaded kernel, so that later launches
    /// are faster.
    pub cache: &'static Cache,
}

/// A variable that belongs to one kernel and is null at first. After the host crate has loaded the kernel
/// onto a GPU, it can store a pointer to the kernel in this variable. Later launches then need not search for
/// the kernel by name.
pub type Cache = AtomicPtr<c_void>;

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

/// An argument of a launch: the address, size and type name of a value. The macro `args!` of the host crate
/// creates a list of such arguments.
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
    /// Returns how many bytes of dynamic shared memory the kernel declares for a launch with this block size
    /// and these arguments. Returns `None` if the code that launches the kernel chooses this number.
    ///
    /// # Safety
    /// `args` has one pointer per kernel parameter. Each pointer points to a value of the parameter's type.
    #[inline]
    pub unsafe fn shared_bytes(&self, block: [u32; 3], args: &[*const c_void]) -> Option<u32> {
        // SAFETY: the caller passes the arguments that the kernel declares.
        self.shared.map(|shared| unsafe { shared(block, args) })
    }

    /// Checks that the number and the sizes of the arguments match the kernel's parameters.
    ///
    /// # Errors
    /// Returns a message that names the kernel, the mismatch and the kernel's parameters.
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

/// A Rust type that selects one kernel of an [`Entry`]. f32, f16 and bf16 select the kernel for this element
/// type at compile time. With [`AnyElement`], the launcher selects the kernel at run time.
pub trait KernelElement {
    /// The element type of the selected kernel, or `None` if the launcher selects the kernel at run time.
    const ELEMENT: Option<ElementType>;
}

/// Stands for an element type that is known only at run time, for example the dtype of a tensor. A launcher
/// that implements `Launcher<AnyElement>` stores this dtype and selects the kernel for it.
#[derive(Clone, Copy, Debug)]
pub enum AnyElement {}

macro_rules! elements {
    ($($t:ident: $element:ident)*) => {
        $(
            impl KernelElement for $t {
                const ELEMENT: Option<ElementType> = Some(ElementType::$element);
            }
        )*
    };
}
elements! { f32: F32 f16: F16 bf16: Bf16 }

impl KernelElement for AnyElement {
    const ELEMENT: Option<ElementType> = None;
}

/// Specifies where and how a kernel is launched: the device, the stream, and the sizes of grid and block. The
/// kernel and its arguments are not part of the launcher. `T` is the kernel's element type: f32, f16, bf16,
/// or [`AnyElement`] for a type that is known only at run time.
pub trait Launcher<T> {
    /// The error of a launch.
    type Error;

    /// Launches the kernel of `entry` for the element type `T`. If `T` is [`AnyElement`], the launcher
    /// selects the kernel. The launch functions that the macro [`entry!`](crate::entry!) defines call this
    /// function.
    ///
    /// # Errors
    /// Returns the error that the launch causes on the device. Each launcher type documents its errors.
    ///
    /// # Safety
    /// `args` must have one pointer per parameter of the kernel, in the same order. Each pointer must point
    /// to a value of the parameter's type. The kernel's own safety conditions must hold until the launch is
    /// done.
    unsafe fn launch(self, entry: &'static Entry, args: &[*const c_void]) -> Result<(), Self::Error>;
}

/// Returns the element type of `T`. Used by [`entry!`](crate::entry!).
#[doc(hidden)]
pub const fn element<T: KernelElement>() -> ElementType {
    T::ELEMENT.expect("a type with kernels")
}

/// Returns true if `element` is `None` or its value is in the list `elements`. The macro
/// [`entry!`](crate::entry!) uses this function.
#[doc(hidden)]
pub const fn has(element: Option<ElementType>, elements: &[ElementType]) -> bool {
    let Some(element) = element else { return true };
    let mut at = 0;
    while at < elements.len() && elements[at] as usize != element as usize {
        at += 1;
    }
    at < elements.len()
}

/// Returns the index of `name` in the list `names`. The list must contain `name`. The macro
/// [`entry!`](crate::entry!) uses this function.
#[doc(hidden)]
pub const fn position(names: &[&str], name: &str) -> usize {
    let mut at = 0;
    while !same(names[at].as_bytes(), name.as_bytes()) {
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
