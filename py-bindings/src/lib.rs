//! The extension module `oxiwarp._native`, the Rust part of the Python package.
//!
//! [`register`](oxiwarp_native::register) gives torch a CPU kernel and a CUDA kernel for each operator that
//! `oxiwarp/ops/_register.py` defines. The module calls libtorch only through libtorch's C shim (`shim.rs`),
//! so one shared object works with every torch from 2.10 on. Other functions of the module list the compiled
//! kernels and the GPUs, load a kernel, and return the driver version.

mod boundary;
mod call;
mod checks;
mod device;
mod fit;
mod handler;
mod operator;
mod ops;
mod outputs;
mod row;
mod schema;
mod shim;
mod tensor;

use pyo3::prelude::*;
use std::ffi::CString;

/// Rust part of the Python package `oxiwarp`. Use the names that the package exports instead of this module.
#[pymodule(name = "_native")]
mod oxiwarp_native {
    use super::*;
    use oxiwarp::Device;
    use pyo3::exceptions::{PyRuntimeError, PyTypeError};
    use pyo3::types::PyDict;

    /// Load libtorch's C shim and register the kernels of operators in a torch namespace.
    ///
    /// `libtorch_cpu_path` is the path of the `libtorch_cpu.so` that `import torch` loaded. Each operator is
    /// passed as a pair: its schema, and the role of each of its tensors (`oxiwarp/ops/_roles.py`).
    ///
    /// Raises TypeError if an operator has no kernel, or if the kernel's arguments differ from the schema.
    /// Raises RuntimeError if the shim cannot be loaded or torch rejects a kernel.
    #[pyfunction]
    fn register(
        libtorch_cpu_path: &str,
        namespace: CString,
        operators: Vec<(String, Vec<String>)>,
    ) -> PyResult<()> {
        shim::load(libtorch_cpu_path).map_err(PyRuntimeError::new_err)?;
        ops::register(&namespace, &operators).map_err(|wrong| match wrong {
            ops::Wrong::Operator(problem) => PyTypeError::new_err(problem),
            ops::Wrong::Torch(problem) => PyRuntimeError::new_err(problem),
        })
    }

    /// Return one dict for each combination of op, dtype and architecture that has compiled kernels. The keys
    /// of a dict are op, dtype, arch and entries (names of the PTX entry functions).
    #[pyfunction]
    fn kernel_info(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
        let row = |kernel: oxiwarp::KernelInfo| {
            let dict = PyDict::new(py);
            dict.set_item("op", kernel.op)?;
            dict.set_item("dtype", kernel.dtype.to_string())?;
            dict.set_item("arch", kernel.arch)?;
            dict.set_item("entries", kernel.entries)?;
            Ok(dict)
        };
        oxiwarp::kernel_info().into_iter().map(row).collect()
    }

    /// Return the names of the kernels that CUDA device `index` can launch.
    ///
    /// Raises RuntimeError if there is no such device, or if this build has no PTX for the device.
    #[pyfunction]
    fn kernel_names(py: Python<'_>, index: usize) -> PyResult<Vec<&'static str>> {
        py.detach(|| Device::cuda(index).and_then(|device| oxiwarp::kernel_names(&device)))
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Load a kernel on CUDA device `index` without launching it. The driver compiles the kernel's PTX and
    /// stores the machine code in the driver's cache on disk. Several threads can load kernels at the same
    /// time.
    ///
    /// Raises RuntimeError if there is no such device or kernel, or if the driver rejects the PTX.
    #[pyfunction]
    fn prepare_kernel(py: Python<'_>, index: usize, name: &str) -> PyResult<()> {
        py.detach(|| Device::cuda(index).and_then(|device| oxiwarp::prepare_kernel(&device, name)))
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Return one dict per CUDA device. The keys of a dict are index, name, ptx and error. ptx is the
    /// architecture of the PTX that the device loads. If the device can load no PTX of this build, error is
    /// the reason.
    ///
    /// Creates no CUDA context. Raises RuntimeError if there is no driver.
    #[pyfunction]
    fn devices(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
        let count = Device::count().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let row = |index: usize| {
            let dict = PyDict::new(py);
            dict.set_item("index", index)?;
            let device = Device::describe(index);
            dict.set_item("name", device.as_ref().ok().map(|(name, _)| name))?;
            dict.set_item("ptx", device.as_ref().ok().map(|(_, arch)| arch.name()))?;
            dict.set_item("error", device.err().map(|error| error.to_string()))?;
            Ok(dict)
        };
        (0..count).map(row).collect()
    }

    /// Return the newest CUDA version that the driver supports, for example "13.0".
    ///
    /// Raises RuntimeError with the reason if there is no driver.
    #[pyfunction]
    fn driver() -> PyResult<String> {
        device::driver_version().map_err(PyRuntimeError::new_err)
    }
}
