//! Checks that a program that uses the crate `cust` links and starts on machines with and without an NVIDIA
//! driver. The tests also check that `cust` returns readable errors if there is no driver.
//!
//! Linking this file is part of the test, because this file calls functions of `cust` that reference symbols
//! of the driver library. The linker would report an error if one of these symbols were not defined.

use cust::error::CudaError;
use cust::prelude::*;

#[test]
fn init_agrees_with_load() {
    let init = cust::init(CudaFlags::empty());
    match driver::load() {
        Ok(()) => assert_ne!(init, Err(CudaError::NotInitialized)),
        Err(reason) => {
            assert!(reason.starts_with("the NVIDIA driver is not available: "), "{reason}");
            assert!(reason.contains("libcuda.so.1"), "{reason}");
            assert_eq!(init, Err(CudaError::NoDevice));
        }
    }
}

#[test]
fn errors_are_readable() {
    let text = CudaError::NoDevice.to_string();
    match driver::load() {
        Ok(()) => assert!(text.contains("device"), "{text}"),
        Err(_) => assert!(text.contains("the NVIDIA driver (libcuda.so.1) is not available"), "{text}"),
    }
}

#[test]
fn without_a_driver_every_call_is_an_error() {
    if driver::load().is_ok() {
        assert_eq!(driver::missing(), [""; 0], "functions that this driver does not export");
        return;
    }
    assert!(Device::get_device(0).is_err());
    assert!(Module::from_ptx("", &[]).is_err());
    assert!(Stream::new(StreamFlags::NON_BLOCKING, None).is_err());
    assert!(DeviceBuffer::<f32>::zeroed(16).is_err());
    assert!(cust::event::Event::new(cust::event::EventFlags::DEFAULT).is_err());
    assert!(driver::missing().is_empty());
}
