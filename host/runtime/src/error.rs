//! Errors of ops. An error message names the op and the argument, and states the argument's value and the
//! expected value.
use crate::Dtype;

/// The result type of the functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an op failed.
///
/// An op that fails has not written its outputs, with two exceptions. After [`Error::Driver`] or
/// [`Error::Fault`], a kernel may have run in part. After [`Error::Load`] or [`Error::NoKernel`], an op that
/// launches several kernels may have launched its first kernel. The reason is that [`Kernels::of_library`]
/// loads each kernel only at the first launch of this kernel. Only `attention_decode` and the ops for
/// gradients of norms and attention launch several kernels.
///
/// [`Kernels::of_library`]: crate::Kernels::of_library
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has a shape that the op does not support.
    #[error("{op}: {arg} has shape {got:?}, expected {expected}")]
    Shape {
        /// Name of the op.
        op: &'static str,
        /// Name of the argument.
        arg: &'static str,
        /// Shape of the argument.
        got: Vec<i64>,
        /// The values that the op supports.
        expected: String,
    },
    /// An argument has an element type that the op does not support.
    #[error("{op}: {arg} is {got}, expected {expected}")]
    Dtype {
        /// Name of the op.
        op: &'static str,
        /// Name of the argument.
        arg: &'static str,
        /// Element type of the argument.
        got: Dtype,
        /// The element types that the op supports.
        expected: String,
    },
    /// The memory of an argument is on a different device than the device of the call.
    #[error("{op}: {arg} is on another device than {expected}")]
    Device {
        /// Name of the op.
        op: &'static str,
        /// Name of the argument.
        arg: &'static str,
        /// Description of the device on which the op runs.
        expected: String,
    },
    /// An argument has strides that the op does not support.
    #[error("{op}: {arg} of shape {shape:?} has strides {strides:?}: {problem}")]
    Strides {
        /// Name of the op.
        op: &'static str,
        /// Name of the argument.
        arg: &'static str,
        /// Shape of the argument.
        shape: Vec<i64>,
        /// Strides of the argument, in elements.
        strides: Vec<i64>,
        /// The reason why the op does not support these strides.
        problem: &'static str,
    },
    /// Two arguments have strides that the op supports separately, but not together in one launch.
    #[error(
        "{op}: {arg} and {other} of shape {shape:?} have strides {strides:?} and {other_strides:?}: \
         two strides must reach the rows of both in the same groups: make one of them contiguous in this shape"
    )]
    StridesOfTwo {
        /// Name of the op.
        op: &'static str,
        /// Name of the first argument.
        arg: &'static str,
        /// Name of the second argument.
        other: &'static str,
        /// Shape of both arguments.
        shape: Vec<i64>,
        /// Strides of the first argument, in elements.
        strides: Vec<i64>,
        /// Strides of the second argument, in elements.
        other_strides: Vec<i64>,
    },
    /// An output shares memory with another argument.
    #[error("{op}: {arg} overlaps {other}")]
    Overlap {
        /// Name of the op.
        op: &'static str,
        /// Name of the output.
        arg: &'static str,
        /// Name of the argument that shares memory with the output.
        other: &'static str,
    },
    /// A numeric argument is outside of its valid range.
    #[error("{op}: {arg} is {got}, expected {expected}")]
    Value {
        /// Name of the op.
        op: &'static str,
        /// Name of the argument.
        arg: &'static str,
        /// Value of the argument.
        got: f64,
        /// Valid range of the argument.
        expected: &'static str,
    },
    /// An element of an argument has a value outside of its valid range. Ops check the values of elements
    /// only on the CPU executor (which runs kernels on the host), because reading elements from a GPU would
    /// block.
    #[error("{op}: {arg}[{index}] is {got}, expected {expected}")]
    Element {
        /// Name of the op.
        op: &'static str,
        /// Name of the argument.
        arg: &'static str,
        /// Index of the element.
        index: usize,
        /// Value of the element.
        got: i64,
        /// Valid range of the element.
        expected: String,
    },
    /// An operation that this device or this build does not support.
    #[error("{op}: {why}")]
    Unsupported {
        /// Name of the op or of the function.
        op: &'static str,
        /// The reason why the operation is not supported.
        why: String,
    },
    /// The NVIDIA driver cannot be used. The text gives the reason.
    #[error("no CUDA: {0}")]
    NoDriver(String),
    /// There is no GPU with the requested index.
    #[error("no CUDA device {index}: there are {count}")]
    NoDevice {
        /// The requested index.
        index: usize,
        /// Number of GPUs.
        count: usize,
    },
    /// This build has no PTX that runs on the GPU.
    #[error("{device} has compute capability {}.{}, the PTX is for {available}", capability.0, capability.1)]
    Capability {
        /// Name of the GPU.
        device: String,
        /// Compute capability of the GPU, as `(major, minor)`.
        capability: (u32, u32),
        /// The architectures for which this build has PTX.
        available: String,
    },
    /// A call of a CUDA driver function failed.
    #[error("{call} failed: {text} (CUDA error {code})")]
    Driver {
        /// Name of the driver function that failed.
        call: &'static str,
        /// The error code that the call returned.
        code: u32,
        /// The driver's description of the error code.
        text: String,
    },
    /// The driver rejects the PTX. [`Kernels::load`](crate::Kernels::load) returns this error itself. For
    /// kernels of [`Kernels::of_library`](crate::Kernels::of_library), the first launch of the kernel returns
    /// this error.
    #[error("{device} does not load {kernel} ({arch}): {text}\n{log}")]
    Load {
        /// Name of the GPU.
        device: String,
        /// The kernel, or "PTX" if [`Kernels::load`](crate::Kernels::load) loads all kernels at once.
        kernel: String,
        /// The architecture of the PTX.
        arch: &'static str,
        /// The driver's description of the error.
        text: String,
        /// The log of the driver's PTX compiler.
        log: String,
    },
    /// The device does not have enough free memory.
    #[error("{device} is out of memory: {bytes} bytes asked for")]
    OutOfMemory {
        /// Name of the device.
        device: String,
        /// The requested number of bytes.
        bytes: usize,
    },
    /// There is no kernel with this name, or the PTX for the device lacks the kernel. A launch of the kernel
    /// returns this error. [`Kernels::load`](crate::Kernels::load) also returns this error if the PTX lacks a
    /// kernel without the mark `@only`. The mark `@only` limits a kernel to one architecture.
    #[error("there is no kernel {kernel}{}", similar.as_ref().map_or(String::new(), |name| format!(". Did you mean {name}?")))]
    NoKernel {
        /// The requested name.
        kernel: String,
        /// The most similar name of a kernel, if there is one.
        similar: Option<String>,
    },
    /// A launch by name passed arguments that do not match the kernel's declaration.
    #[error("{0}")]
    Arguments(String),
    /// The CPU executor detected an error in a kernel. Examples are a data race and an access outside of
    /// shared memory.
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
