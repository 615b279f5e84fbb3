//! What the Rust benchmarks share: a GPU, and its time for launches over buffers that do not stay in its cache.
pub mod tune;

use std::time::Duration;

use oxiwarp::{Buffer, Device, Element, Event, OwnedStream, Result, Stream};

/// Bytes over which buffers rotate: 3 times the 60 MB of an H200's L2, and more.
const ROTATED_BYTES: usize = 400 << 20;
/// Three times the 60 MB of an H200's L2: when so much was touched, nothing of what came before is left.
pub const FORGOTTEN_BYTES: usize = 180 << 20;
/// Launches in a captured graph: enough that the gaps between graphs do not count.
pub const LAUNCHES: usize = 20;

/// Rows and columns that every benchmark measures, as benches/python does.
pub const SHAPES: &[(usize, usize)] = &[
    (1024, 2048),
    (4096, 2048),
    (512, 3072),
    (2048, 3072),
    (8192, 3072),
    (16384, 3072),
    (32768, 3072),
    (16384, 4096),
    (16384, 8192),
    (4096, 32768),
];

/// The GPU to measure on, with its stream.
pub struct Gpu {
    /// The GPU.
    pub device: Device,
    /// The stream of all launches.
    pub stream: OwnedStream,
}

impl Gpu {
    /// The first GPU.
    ///
    /// # Errors
    /// There is none: says why.
    pub fn open() -> Result<Self> {
        let device = Device::cuda(0)?;
        let stream = OwnedStream::new(&device)?;
        Ok(Self { device, stream })
    }

    /// The median GPU time of one call of `launch`, whose argument counts from 0 and picks the buffers: a graph of so
    /// many calls, replayed `replays` times after 3 for warming up.
    ///
    /// # Errors
    /// Those of `launch`, or of the driver.
    pub fn time(
        &self,
        calls: usize,
        replays: usize,
        mut launch: impl FnMut(usize, Stream) -> Result<()>,
    ) -> Result<Duration> {
        launch(0, self.stream.as_stream())?;
        self.stream.synchronize()?;
        let graph = self.stream.capture(|stream| (0..calls).try_for_each(|i| launch(i, stream)))?;
        let mut times = Vec::with_capacity(replays);
        for replay in 0..replays + 3 {
            // SAFETY: `launch` borrows what the graph reads and writes, and `since` waits for it.
            let replay_once = || unsafe { graph.launch(&self.stream) };
            // While this one runs, the next is launched: on an idle stream its way to the GPU would count.
            replay_once()?;
            let start = Event::record(&self.stream)?;
            replay_once()?;
            let time = Event::record(&self.stream)?.since(&start)?;
            if replay >= 3 {
                times.push(time / calls as u32);
            }
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }

    /// Buffers of `len` pseudo-random values, as many as leave the cache behind.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn rotated<T: Element>(&self, len: usize) -> Result<Vec<Buffer<T>>> {
        let count = ROTATED_BYTES.div_ceil(len * size_of::<T>()).clamp(2, LAUNCHES);
        let mut state = 0x9e37_79b9_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            T::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        let values: Vec<T> = (0..len).map(|_| next()).collect();
        (0..count).map(|_| self.device.upload(&values)).collect()
    }

    /// Bytes a second, read and written, of a device-to-device copy of `bytes`.
    ///
    /// # Errors
    /// Not enough memory; a driver error.
    pub fn copy_bandwidth(&self, bytes: usize) -> Result<f64> {
        let from = self.device.upload(&vec![1.0_f32; bytes / 4])?;
        let mut to = self.device.alloc::<f32>(bytes / 4)?;
        // Outside a graph: a captured copy runs on a copy engine, at two thirds of this.
        let mut rates = vec![];
        for _ in 0..10 {
            let start = Event::record(&self.stream)?;
            (0..LAUNCHES).try_for_each(|_| to.copy_from(&from, self.stream.as_stream()))?;
            let time = Event::record(&self.stream)?.since(&start)?;
            rates.push(2.0 * (bytes * LAUNCHES) as f64 / time.as_secs_f64());
        }
        rates.sort_unstable_by(f64::total_cmp);
        Ok(rates[rates.len() / 2])
    }
}
