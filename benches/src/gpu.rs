//! Measures the GPU time of launches on buffers that are not in the L2 cache.
use std::time::Duration;

use oxiwarp::{Device, Event, Graph, OwnedStream, Result, Stream};

/// Bytes of traffic that evict all earlier data from L2: three times the 60 MB of an H200.
pub const FLUSH_BYTES: usize = 180 << 20;
/// Launches per captured graph: enough to make the gap between two graphs negligible.
pub const LAUNCHES: usize = 20;
/// Number of untimed replays of a graph before the timed ones.
const WARM_UP: usize = 3;
/// Number of measurements of a copy.
const COPIES: usize = 10;

/// The GPU to measure on, with its stream.
pub struct Gpu {
    /// The GPU.
    pub device: Device,
    /// The stream of all launches.
    pub stream: OwnedStream,
}

impl Gpu {
    /// Opens the first GPU and creates a stream on it.
    ///
    /// # Errors
    /// If there is no GPU: the message says why.
    pub fn open() -> Result<Self> {
        let device = Device::cuda(0)?;
        let stream = OwnedStream::new(&device)?;
        Ok(Self { device, stream })
    }

    /// Captures `calls` calls of `launch` in a graph, after one call that loads the kernel. The argument of
    /// `launch` counts from 0. It selects the buffers.
    ///
    /// # Errors
    /// An error of `launch` or of the driver.
    pub fn capture(
        &self,
        calls: usize,
        mut launch: impl FnMut(usize, Stream) -> Result<()>,
    ) -> Result<Graph> {
        launch(0, self.stream.as_stream())?;
        self.stream.synchronize()?;
        self.stream.capture(|stream| (0..calls).try_for_each(|i| launch(i, stream)))
    }

    /// Returns the GPU time of `replays` replays of `graph`.
    ///
    /// # Errors
    /// A driver error.
    ///
    /// # Safety
    /// The caller keeps all memory that the graph reads or writes alive until this function returns.
    pub unsafe fn replay(&self, graph: &Graph, replays: usize) -> Result<Duration> {
        // SAFETY: the caller keeps the graph's memory alive, and `since` waits until all launches have
        // finished.
        let replay_once = || unsafe { graph.launch(&self.stream) };
        // The first timed replay is launched while this replay runs. On an idle stream, its launch latency
        // would be measured.
        replay_once()?;
        let start = Event::record(&self.stream)?;
        (0..replays).try_for_each(|_| replay_once())?;
        Event::record(&self.stream)?.since(&start)
    }

    /// Returns the median GPU time of one call of `launch`. A graph of `calls` calls is replayed `replays`
    /// times after a warm-up.
    ///
    /// # Errors
    /// As [`Gpu::capture`].
    pub fn time(
        &self,
        calls: usize,
        replays: usize,
        mut launch: impl FnMut(usize, Stream) -> Result<()>,
    ) -> Result<Duration> {
        let graph = self.capture(calls, &mut launch)?;
        let mut times = vec![];
        for replay in 0..replays + WARM_UP {
            // SAFETY: `launch` borrows the memory of the graph until this function returns.
            let time = unsafe { self.replay(&graph, 1) }?;
            if replay >= WARM_UP {
                times.push(time / calls as u32);
            }
        }
        Ok(median(times))
    }

    /// Returns the median GPU time of a device-to-device copy between buffers that are not in the cache.
    /// `bytes` counts the bytes read plus the bytes written.
    ///
    /// Two ways of copying are measured, and the faster one counts. Copies launched one by one are limited by
    /// their launch latency if they are short. Copies in a graph run on a copy engine.
    ///
    /// # Errors
    /// There is not enough memory, or the driver fails.
    pub fn copy_time(&self, bytes: usize) -> Result<Duration> {
        let (len, places) = ((bytes / 8).max(1), FLUSH_BYTES.div_ceil(bytes.max(1)).max(2));
        let buffers = || (0..places).map(|_| self.device.reserve::<f32>(len)).collect::<Result<Vec<_>>>();
        let (from, mut to) = (buffers()?, buffers()?);
        let mut copy = |i: usize, stream: Stream| to[i % places].copy_from(&from[i % places], stream);
        let calls = LAUNCHES.next_multiple_of(places);
        let mut times = vec![];
        for _ in 0..COPIES {
            // These copies keep the GPU busy while the timed copies are launched.
            (0..WARM_UP).try_for_each(|i| copy(i, self.stream.as_stream()))?;
            let start = Event::record(&self.stream)?;
            (0..calls).try_for_each(|i| copy(i, self.stream.as_stream()))?;
            times.push(Event::record(&self.stream)?.since(&start)? / calls as u32);
        }
        Ok(median(times).min(self.time(calls, COPIES, copy)?))
    }

    /// Returns the bandwidth of a device-to-device copy of `bytes` bytes: bytes read plus bytes written per
    /// second.
    ///
    /// # Errors
    /// As [`Gpu::copy_time`].
    pub fn copy_bandwidth(&self, bytes: usize) -> Result<f64> {
        Ok(2.0 * bytes as f64 / self.copy_time(2 * bytes)?.as_secs_f64())
    }
}

/// Returns the median. If the number of times is even, it is the upper one of the two middle values.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
