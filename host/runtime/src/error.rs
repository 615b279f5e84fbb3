//! Errors of ops. An error message names the op and the argument, and states the argument's value and the
//! expected value.
use crate::Dtype;

/// The result of every fallible function here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an op failed.
///
/// An op that fails has not written its outputs, with two exceptions. After [`Error::Driver`] or
/// [`Error::Fault`], a kernel may have run in part. After [`Error::Load`] or [`Error::NoKernel`], an op of
/// several kernels may have launched its first kernel. The reason is that each kernel of
/// [`Kernels::of_library`] is loaded at its first launch. The ops of several kernels are `attention_decode`
/// and the gradients of norms and attention.
///
/// [`Kernels::of_library`]: crate::Kernels::of_library
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has a shape that the op does not support.
    #[error("{op}: {arg} has shape {got:?}, expected {expected}")]
    Shape {
        /// The op.
        op: &'static str,
        /// The argument.
        arg: &'static str,
        /// Its shape.
        got: Vec<i64>,
        /// What the op wants.
        expected: String,
    },
    /// An argument has an element type that the op does not support.
    #[error("{op}: {arg} is {got}, expected {expected}")]
    Dtype {
        /// The op.
        op: &'static str,
        /// The argument.
        arg: &'static str,
        /// Its element type.
        got: Dtype,
        /// What the op wants.
        expected: String,
    },
    /// The memory of an argument is on a different device than the device of the call.
    #[error("{op}: {arg} is on another device than {expected}")]
    Device {
        /// The op.
        op: &'static str,
        /// The argument.
        arg: &'static str,
        /// The device that the op runs on.
        expected: String,
    },
    /// Strides that the op cannot read.
    #[error("{op}: {arg} of shape {shape:?} has strides {strides:?}: {problem}")]
    Strides {
        /// The op.
        op: &'static str,
        /// The argument.
        arg: &'static str,
        /// Its shape.
        shape: Vec<i64>,
        /// Its strides, in elements.
        strides: Vec<i64>,
        /// What the op cannot do with them.
        problem: &'static str,
    },
    /// Two arguments have strides that the op supports separately, but not together in one launch.
    #[error(
        "{op}: {arg} and {other} of shape {shape:?} have strides {strides:?} and {other_strides:?}: \
         two strides must reach the rows of both in the same groups: make one of them contiguous in this shape"
    )]
    StridesOfTwo {
        /// The op.
        op: &'static str,
        /// One of the arguments.
        arg: &'static str,
        /// The other one.
        other: &'static str,
        /// The shape of both.
        shape: Vec<i64>,
        /// The strides of `arg`, in elements.
        strides: Vec<i64>,
        /// Those of `other`.
        other_strides: Vec<i64>,
    },
    /// An output that shares memory with another argument.
    #[error("{op}: {arg} overlaps {other}")]
    Overlap {
        /// The op.
        op: &'static str,
        /// The output.
        arg: &'static str,
        /// What it overlaps.
        other: &'static str,
    },
    /// A number outside its range.
    #[error("{op}: {arg} is {got}, expected {expected}")]
    Value {
        /// The op.
        op: &'static str,
        /// The argument.
        arg: &'static str,
        /// Its value.
        got: f64,
        /// Its range.
        expected: &'static str,
    },
    /// An element of an argument has a value outside its range. Ops check elements only on the CPU executor,
    /// because reading them from a GPU would block.
    #[error("{op}: {arg}[{index}] is {got}, expected {expected}")]
    Element {
        /// The op.
        op: &'static str,
        /// The argument.
        arg: &'static str,
        /// The element's index.
        index: usize,
        /// Its value.
        got: i64,
        /// Its range.
        expected: String,
    },
    /// An operation that this device or this build does not support.
    #[error("{op}: {why}")]
    Unsupported {
        /// The op, or the function.
        op: &'static str,
        /// Why not.
        why: String,
    },
    /// The NVIDIA driver cannot be used; the text says why.
    #[error("no CUDA: {0}")]
    NoDriver(String),
    /// No such GPU.
    #[error("no CUDA device {index}: there are {count}")]
    NoDevice {
        /// The index asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A GPU for which this build has no PTX.
    #[error("{device} has compute capability {}.{}, the PTX is for {available}", capability.0, capability.1)]
    Capability {
        /// The GPU's name.
        device: String,
        /// Its compute capability.
        capability: (u32, u32),
        /// The architectures there is PTX for.
        available: String,
    },
    /// A driver call that failed.
    #[error("{call} failed: {text} (CUDA error {code})")]
    Driver {
        /// The driver function.
        call: &'static str,
        /// Its result.
        code: u32,
        /// The driver's own words for it.
        text: String,
    },
    /// The driver rejects the PTX. [`Kernels::load`](crate::Kernels::load) returns this error itself. For
    /// kernels of [`Kernels::of_library`](crate::Kernels::of_library), the first launch of the kernel returns
    /// this error.
    #[error("{device} does not load {kernel} ({arch}): {text}\n{log}")]
    Load {
        /// The GPU's name.
        device: String,
        /// The kernel, or "PTX" if [`Kernels::load`](crate::Kernels::load) loads all kernels at once.
        kernel: String,
        /// The architecture of the PTX.
        arch: &'static str,
        /// The driver's error.
        text: String,
        /// What its compiler printed.
        log: String,
    },
    /// Not enough memory on the device.
    #[error("{device} is out of memory: {bytes} bytes asked for")]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// The bytes asked for.
        bytes: usize,
    },
    /// No kernel has this name, or the PTX for the device lacks the kernel. A launch returns this error.
    /// [`Kernels::load`](crate::Kernels::load) also returns this error if the PTX lacks a kernel without the
    /// mark `@only`. The mark `@only` limits a kernel to some architectures.
    #[error("there is no kernel {kernel}{}", similar.as_ref().map_or(String::new(), |name| format!(". Did you mean {name}?")))]
    NoKernel {
        /// The name.
        kernel: String,
        /// The most similar name of a kernel, if there is one.
        similar: Option<String>,
    },
    /// A launch by name passed arguments that do not fit the kernel.
    #[error("{0}")]
    Arguments(String),
    /// The CPU executor found an error in a kernel. Examples are a data race and an access outside of shared
    /// memory.
    #[error(transparent)]
    Fault(#[from] cuda_std::cpu::Fault),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_too_old_is_told_what_there_is() {
        let error = Error::Capability {
            device: "Tesla V100".into(),
            capability: (7, 0),
            available: "sm_75, sm_80, sm_90".into(),
        };
        let expected = "Tesla V100 has compute capability 7.0, the PTX is for sm_75, sm_80, sm_90";
        assert_eq!(error.to_string(), expected);
    }
}
