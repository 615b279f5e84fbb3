//! Tests of GPU features: streams, graphs, and PTX that fails to load.
use cust::context::Context;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::StreamFlags;
use half::bf16;
use oxiwarp::{
    Arch, Buffer, Device, Dtype, Error, Event, Kernels, Launch, OwnedStream, Result, RmsNorm, Stream, View,
    ViewMut, rms_norm,
};
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::{random, values};

use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("gpu::first_launch_inside_a_capture", capture),
    ("gpu::first_launch_in_several_threads", threads),
    ("gpu::two_streams", two_streams),
    ("gpu::ptx_that_does_not_load", broken_ptx),
    ("gpu::memory_of_another_device", other_device),
    ("gpu::more_memory_than_there_is", out_of_memory),
    ("gpu::memory_freed_inside_a_capture", free_in_capture),
    ("gpu::events_in_any_order", events),
    ("gpu::a_description_makes_no_context", description),
    ("gpu::memory_and_streams_of_cust", of_cust),
    ("gpu::a_kernel_that_the_ptx_lacks", absent_kernel),
];

const SHAPE: [i64; 2] = [257, 3072];

fn input(device: &Device) -> Buffer<bf16> {
    let x: Vec<bf16> = values(&mut random(seed()), (SHAPE[0] * SHAPE[1]) as usize);
    device.upload(&x).unwrap()
}

fn run(device: &Device, x: &Buffer<bf16>, y: &mut Buffer<bf16>, stream: Stream) -> Result<()> {
    rms_norm(device, x.view(&SHAPE)?, None, y.view_mut(&SHAPE)?, RmsNorm::default(), stream)
}

/// Captures the first launch on a new `Device` into a CUDA graph. The `Device` must therefore load the kernel
/// during the capture. In the default capture mode, the driver would not allow this.
fn capture(device: &Device) {
    let fresh = Device::cuda_as(0, device.arch().unwrap()).unwrap();
    let x = input(&fresh);
    let mut y = fresh.alloc::<bf16>(x.len()).unwrap();
    let stream = OwnedStream::new(&fresh).unwrap();
    let graph = stream.capture(|stream| run(&fresh, &x, &mut y, stream)).unwrap();
    assert!(y.download().unwrap().iter().all(|y| y.is_nan()), "a captured launch ran");
    // SAFETY: the graph accesses only `x` and `y`. Both stay alive until the stream has been synchronized.
    unsafe { graph.launch(&stream) }.unwrap();
    stream.synchronize().unwrap();
    let replayed = y.download().unwrap();
    run(&fresh, &x, &mut y, Stream::default()).unwrap();
    same_bits(&replayed, &y.download().unwrap());
}

/// Lets several host threads launch the same kernel at the same time, before this kernel is loaded. Each
/// thread may load the kernel, but the `Device` keeps only one loaded copy.
fn threads(device: &Device) {
    let fresh = Device::cuda_as(0, device.arch().unwrap()).unwrap();
    let x = input(&fresh);
    let one = || {
        let mut y = fresh.alloc::<bf16>(x.len()).unwrap();
        run(&fresh, &x, &mut y, Stream::default()).unwrap();
        y.download().unwrap()
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(one));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert!(results[0].iter().all(|y| !y.is_nan()));
    results[1..].iter().for_each(|result| same_bits(result, &results[0]));
}

fn two_streams(device: &Device) {
    let x = input(device);
    let streams = [OwnedStream::new(device).unwrap(), OwnedStream::new(device).unwrap()];
    let mut results = [(); 2].map(|()| device.alloc::<bf16>(x.len()).unwrap());
    for (stream, y) in streams.iter().zip(&mut results) {
        run(device, &x, y, stream.as_stream()).unwrap();
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    let [a, b] = results.map(|y| y.download().unwrap());
    assert!(a.iter().all(|y| !y.is_nan()));
    same_bits(&a, &b);
}

fn broken_ptx(device: &Device) {
    let mut text = String::from(".version 7.4\n.target sm_75\n.address_size 64\n");
    for entry in oxiwarp::kernel_info().iter().flat_map(|kernel| &kernel.entries) {
        text += &format!(".visible .entry {entry}(\n)\n{{\n\tfrobnicate.u32 %r1;\n}}\n");
    }
    // SAFETY: the text does not assemble, so nothing is launched.
    let broken = unsafe { oxiwarp::cuda_with_ptx(0, device.arch().unwrap(), text.leak()) }.unwrap();
    let x = input(&broken);
    let mut y = broken.alloc::<bf16>(x.len()).unwrap();
    let error = run(&broken, &x, &mut y, Stream::default()).expect_err("it does not load");
    let Error::Load { log, .. } = &error else { panic!("another error: {error}") };
    assert!(log.contains("frobnicate"), "the log names what is wrong: {error}");
    run(device, &x, &mut y, Stream::default()).expect("other devices still work");
}

fn out_of_memory(device: &Device) {
    let Err(error) = device.reserve::<f32>(1 << 46) else { panic!("256 TB were there") };
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    let x = input(device);
    let mut y = device.alloc::<bf16>(x.len()).unwrap();
    run(device, &x, &mut y, Stream::default()).expect("it still works");
}

/// Checks that an op rejects memory of another device. Without this check, a GPU kernel could read a host
/// pointer. The resulting error would destroy the CUDA context, which torch also uses. If the CPU executor
/// read a device pointer, the process would crash.
fn other_device(device: &Device) {
    let (here, there) = (input(device), input(&Device::cpu()));
    let mut y = device.alloc::<bf16>(here.len()).unwrap();
    for (x, device) in [(&there, device), (&here, &Device::cpu())] {
        let error = run(device, x, &mut y, Stream::default()).expect_err("another memory").to_string();
        assert!(error.contains("is on another device than"), "{error}");
    }
    for result in
        [y.copy_from(&there, Stream::default()), input(&Device::cpu()).copy_from(&here, Stream::default())]
    {
        let error = result.expect_err("another memory").to_string();
        assert!(error.starts_with("Buffer::copy_from: from is on another device than"), "{error}");
    }
    y.copy_from(&here, Stream::default()).expect("it still works");
    run(device, &here, &mut y, Stream::default()).expect("it still works");
}

/// Tests that scratch memory can be allocated and freed while a stream is captured into a CUDA graph.
fn free_in_capture(device: &Device) {
    let x = input(device);
    let mut y = device.alloc::<bf16>(x.len()).unwrap();
    run(device, &x, &mut y, Stream::default()).unwrap();
    let stream = OwnedStream::new(device).unwrap();
    let graph = stream.capture(|stream| {
        let scratch = device.reserve::<bf16>(1 << 20)?;
        run(device, &x, &mut y, stream)?;
        drop(scratch);
        Ok(())
    });
    // SAFETY: the graph accesses only `x` and `y`. Both stay alive until the stream has been synchronized.
    unsafe { graph.expect("a capture").launch(&stream) }.unwrap();
    stream.synchronize().unwrap();
    assert!(y.download().unwrap().iter().all(|y| !y.is_nan()));
}

/// Tests `Event::since`, which returns the time between two events. A negative time is an error. If the start
/// event was recorded on another stream, `since` waits for this event.
fn events(device: &Device) {
    let x = input(device);
    let mut y = device.alloc::<bf16>(x.len()).unwrap();
    let [stream, other] = [(); 2].map(|()| OwnedStream::new(device).unwrap());
    let first = Event::record(&stream).unwrap();
    for _ in 0..100 {
        run(device, &x, &mut y, stream.as_stream()).unwrap();
    }
    let second = Event::record(&stream).unwrap();
    let elsewhere = Event::record(&other).unwrap();
    let _ = elsewhere.since(&second).map_err(|error| error.to_string());
    assert!(second.since(&first).unwrap() > std::time::Duration::ZERO);
    let error = first.since(&second).expect_err("the start is later").to_string();
    assert!(error.starts_with("Event::since: the start was recorded"), "{error}");
}

fn description(device: &Device) {
    let (name, arch) = Device::describe(0).unwrap();
    assert_eq!(name, device.name());
    assert!(arch >= device.arch().unwrap(), "{arch:?}");
    assert!(matches!(Device::describe(999), Err(Error::NoDevice { index: 999, .. })));
}

/// Runs an op on memory, a stream and a context of the crate `cust`. The result must have the same bits as
/// the result with memory and stream of this library.
fn of_cust(device: &Device) {
    let x = input(device);
    let mut y = device.alloc::<bf16>(x.len()).unwrap();
    run(device, &x, &mut y, Stream::default()).unwrap();
    let expected = y.download().unwrap();

    let context = Context::new(cust::device::Device::get_device(0).unwrap()).unwrap();
    let gpu = Device::from_context(&context).unwrap();
    assert_eq!(gpu.name(), device.name());
    let bits: Vec<u16> = x.download().unwrap().iter().map(|x| x.to_bits()).collect();
    let x = DeviceBuffer::from_slice(&bits).unwrap();
    let mut y = DeviceBuffer::from_slice(&vec![u16::MAX; bits.len()]).unwrap();
    // The upload from pageable host memory runs on the legacy default stream. The new stream waits for this
    // upload, because it is a blocking stream.
    let stream = cust::stream::Stream::new(StreamFlags::DEFAULT, None).unwrap();
    let from = View::of_cust(&x, Dtype::Bf16, &SHAPE).unwrap();
    let to = ViewMut::of_cust(&mut y, Dtype::Bf16, &SHAPE).unwrap();
    rms_norm(device, from, None, to, RmsNorm::default(), Stream::from(&stream)).unwrap();
    stream.synchronize().unwrap();
    let mut bits = vec![0; bits.len()];
    y.copy_to(&mut bits).unwrap();
    let got: Vec<_> = bits.into_iter().map(bf16::from_bits).collect();
    same_bits(&got, &expected);

    let error = View::of_cust(&x, Dtype::F32, &SHAPE).expect_err("the memory has half of the bytes");
    assert!(error.to_string().contains("expected a tensor of at most"), "{error}");
}

mod fill {
    use cuda_std::prelude::*;

    /// # Safety
    /// `x` points to one f32 element that may be written, and the launch has one thread.
    unsafe fn fill<T: Elem>(x: *mut T) {
        // SAFETY: the caller passes a pointer to an element.
        unsafe { *x = T::from_f32(2.0) }
    }

    entry! {
        fill<T: [f32]>(x: *mut T) => fill::<T>(x);
        @only(sm_90a) fill_native<T: [f32]>(x: *mut T) => ()
    }
}

/// Tests a kernel with the attribute `@only`, which is compiled only for the named architecture. The test's
/// PTX is for another architecture and lacks the kernel. A launch of this kernel returns an error, and other
/// kernels run.
fn absent_kernel(device: &Device) {
    const PTX: &str = ".version 7.0
.target sm_75
.address_size 64
.visible .entry fill_f32(.param .u64 x)
{
    .reg .b64 %rd<3>;
    .reg .f32 %f<2>;
    ld.param.u64 %rd1, [x];
    cvta.to.global.u64 %rd2, %rd1;
    mov.f32 %f1, 0f40000000;
    st.global.f32 [%rd2], %f1;
    ret;
}
";
    let kernels = Kernels::load(device, &[(Arch::Sm75, PTX)], fill::KERNELS).unwrap();
    assert_eq!(kernels.names(), ["fill_f32"]);
    let mut x = device.upload(&[1.0_f32]).unwrap();
    let site = kernels.on(Stream::default(), Launch::of([1; 3], [1; 3]));
    // SAFETY: the kernel `fill` writes one element of `x` per thread. `x` has one element, and the launch has
    // one thread. The second launch runs no kernel, because the PTX lacks `fill_native`.
    let error = unsafe {
        fill::launch::fill(site, x.as_mut_ptr()).unwrap();
        fill::launch::fill_native(site, x.as_mut_ptr()).unwrap_err()
    };
    assert!(matches!(error, Error::NoKernel { similar: None, .. }), "{error}");
    assert_eq!(error.to_string(), "there is no kernel fill_native_f32");
    assert_eq!(x.download().unwrap(), [2.0]);
}
