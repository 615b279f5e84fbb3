//! Measures the GPU time of kernel launches on buffers that are not in the L2 cache.
use std::time::Duration;

use oxiwarp::{Device, Event, Graph, OwnedStream, Result, Stream};

/// Bytes of memory traffic after which no earlier data is in the L2 cache: three times 60 MB, the L2 size of
/// an H200.
pub const FLUSH_BYTES: usize = 180 << 20;
/// Minimum number of launches per captured CUDA graph. Compared with the time of so many launches, the gap
/// between two replays of the graph is negligible.
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
    /// Returns an error if there is no usable GPU. The message gives the reason.
    pub fn open() -> Result<Self> {
        let device = Device::cuda(0)?;
        let stream = OwnedStream::new(&device)?;
        Ok(Self { device, stream })
    }

    /// Calls `launch` once, so that the kernel is loaded, and then captures `calls` calls in a CUDA graph.
    /// `launch` receives the index of the call and chooses buffers by this index.
    ///
    /// # Errors
    /// Returns the error of `launch` or of the driver.
    pub fn capture(
        &self,
        calls: usize,
        mut launch: impl FnMut(usize, Stream) -> Result<()>,
    ) -> Result<Graph> {
        launch(0, self.stream.as_stream())?;
        self.stream.synchronize()?;
        self.stream.capture(|stream| (0..calls).try_for_each(|i| launch(i, stream)))
    }

    /// Returns the total GPU time of `replays` replays of `graph`.
    ///
    /// # Errors
    /// Returns an error if the driver fails.
    ///
    /// # Safety
    /// The caller keeps all memory that the graph reads or writes alive until this function returns.
    pub unsafe fn replay(&self, graph: &Graph, replays: usize) -> Result<Duration> {
        // SAFETY: the launched graph accesses only memory that the caller keeps alive until this function
        // returns. `since`, the last call, waits for all launches.
        let replay_once = || unsafe { graph.launch(&self.stream) };
        // This replay is not timed. It keeps the GPU busy while the timed replays are launched. Otherwise the
        // measured time would include the launch latency of the first replay.
        replay_once()?;
        let start = Event::record(&self.stream)?;
        (0..replays).try_for_each(|_| replay_once())?;
        Event::record(&self.stream)?.since(&start)
    }

    /// Returns the median GPU time of one call of `launch`. The function captures `calls` calls in a CUDA
    /// graph and replays the graph `replays` times after a warm-up.
    ///
    /// # Errors
    /// Returns the errors of [`Gpu::capture`].
    pub fn time(
        &self,
        calls: usize,
        replays: usize,
        mut launch: impl FnMut(usize, Stream) -> Result<()>,
    ) -> Result<Duration> {
        let graph = self.capture(calls, &mut launch)?;
        let mut times = vec![];
        for replay in 0..replays + WARM_UP {
            // SAFETY: the graph accesses only memory that `launch` borrows, and `launch` lives until this
            // function returns.
            let time = unsafe { self.replay(&graph, 1) }?;
            if replay >= WARM_UP {
                times.push(time / calls as u32);
            }
        }
        Ok(median(times))
    }

    /// Returns the median GPU time of a device-to-device copy between buffers that are not in the L2 cache.
    /// `bytes` is the number of bytes that the copy reads plus the number of bytes that it writes.
    ///
    /// The function times the copy in two ways and returns the shorter time. First it launches copies one by
    /// one. For small copies, this time is mostly launch latency. Then it replays a CUDA graph of copies. A
    /// copy engine executes these copies. For large copies, a copy engine is slower than the copy kernel of a
    /// single launch.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory, or if the driver fails.
    pub fn copy_time(&self, bytes: usize) -> Result<Duration> {
        let (len, places) = ((bytes / 8).max(1), FLUSH_BYTES.div_ceil(bytes.max(1)).max(2));
        let buffers = || (0..places).map(|_| self.device.reserve::<f32>(len)).collect::<Result<Vec<_>>>();
        let (from, mut to) = (buffers()?, buffers()?);
        let mut copy = |i: usize, stream: Stream| to[i % places].copy_from(&from[i % places], stream);
        let calls = LAUNCHES.next_multiple_of(places);
        let mut times = vec![];
        for _ in 0..COPIES {
            // These copies are not timed. They keep the GPU busy while the timed copies are launched.
            (0..WARM_UP).try_for_each(|i| copy(i, self.stream.as_stream()))?;
            let start = Event::record(&self.stream)?;
            (0..calls).try_for_each(|i| copy(i, self.stream.as_stream()))?;
            times.push(Event::record(&self.stream)?.since(&start)? / calls as u32);
        }
        Ok(median(times).min(self.time(calls, COPIES, copy)?))
    }

    /// Returns the bandwidth of a device-to-device copy of `bytes` bytes, in bytes per second. Each copied
    /// byte counts twice, because it is read and written.
    ///
    /// # Errors
    /// Returns the errors of [`Gpu::copy_time`].
    pub fn copy_bandwidth(&self, bytes: usize) -> Result<f64> {
        Ok(2.0 * bytes as f64 / self.copy_time(2 * bytes)?.as_secs_f64())
    }
}

/// Returns the median of the times. For an even count, it is the larger of the two middle values.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
