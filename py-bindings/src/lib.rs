//! `oxiwarp._native`: what the Python package needs from Rust.
//!
//! [`register`](oxiwarp_native::register) gives the operators that `oxiwarp/ops/_register.py` defined their CPU and CUDA
//! kernels, through libtorch's C shim (`shim.rs`), so one shared object serves every torch from 2.10 on. The other
//! functions answer questions: which kernels are embedded, which devices can run them, which driver there is.

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

/// Rust side of the Python package `oxiwarp`; everything public is in the package.
#[pymodule(name = "_native")]
mod oxiwarp_native {
    use super::*;
    use oxiwarp::Device;
    use pyo3::exceptions::{PyRuntimeError, PyTypeError};
    use pyo3::types::PyDict;

    /// Loads libtorch's C shim from the already loaded library at this path and registers the kernels of these operators
    /// of a namespace: schemas, each with the names of the roles of its tensors. Raises TypeError if an operator has no
    /// kernel, or one that takes other arguments.
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

    /// One dict per embedded (op, dtype, arch), with the PTX entries that serve it.
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

    /// One dict per CUDA device: index, name, ptx (the PTX that it runs), error (why it runs none). Makes no context on a
    /// device. Raises without a driver.
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

    /// Version of the CUDA driver, such as "13.0". Raises RuntimeError with the reason where there is none.
    #[pyfunction]
    fn driver() -> PyResult<String> {
        device::driver_version().map_err(PyRuntimeError::new_err)
    }
}
