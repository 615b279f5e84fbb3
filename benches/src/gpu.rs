//! A GPU and its time for launches on buffers that are not in its cache.
use std::time::Duration;

use oxiwarp::{Device, Event, Graph, OwnedStream, Result, Stream};

/// Bytes after which no earlier data is left in L2: three times the 60 MB of an H200.
pub const FLUSH_BYTES: usize = 180 << 20;
/// Launches in a captured graph: enough to make the gap between two graphs negligible.
pub const LAUNCHES: usize = 20;
/// Replays of a graph before the timed ones.
const WARM_UP: usize = 3;
/// Repeated measurements of a copy.
const COPIES: usize = 10;

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

    /// Captures `calls` calls of `launch` in a graph, after one call that loads the kernel. The argument of `launch` counts
    /// from 0 and selects the buffers.
    ///
    /// # Errors
    /// Those of `launch`, or of the driver.
    pub fn capture(
        &self,
        calls: usize,
        mut launch: impl FnMut(usize, Stream) -> Result<()>,
    ) -> Result<Graph> {
        launch(0, self.stream.as_stream())?;
        self.stream.synchronize()?;
        self.stream.capture(|stream| (0..calls).try_for_each(|i| launch(i, stream)))
    }

    /// The time of `replays` replays of `graph`.
    ///
    /// # Errors
    /// A driver error.
    ///
    /// # Safety
    /// What the graph reads and writes is alive.
    pub unsafe fn replay(&self, graph: &Graph, replays: usize) -> Result<Duration> {
        // SAFETY: the caller keeps the memory alive, and `since` waits for the launches.
        let replay_once = || unsafe { graph.launch(&self.stream) };
        // The first timed replay is launched while this one runs: on an idle stream its launch latency would count.
        replay_once()?;
        let start = Event::record(&self.stream)?;
        (0..replays).try_for_each(|_| replay_once())?;
        Event::record(&self.stream)?.since(&start)
    }

    /// The median GPU time of one call of `launch`: a graph of `calls` calls, replayed `replays` times after a warm-up.
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
            // SAFETY: `launch` borrows what the graph reads and writes.
            let time = unsafe { self.replay(&graph, 1) }?;
            if replay >= WARM_UP {
                times.push(time / calls as u32);
            }
        }
        Ok(median(times))
    }

    /// The median GPU time of a device-to-device copy that reads and writes `bytes` together, between buffers that are not
    /// in the cache. The faster of two ways counts: copies launched one by one, which are limited by their launches if
    /// they are short, and copies in a graph, which run on a copy engine.
    ///
    /// # Errors
    /// Not enough memory; a driver error.
    pub fn copy_time(&self, bytes: usize) -> Result<Duration> {
        let (len, places) = ((bytes / 8).max(1), FLUSH_BYTES.div_ceil(bytes.max(1)).max(2));
        let buffers = || (0..places).map(|_| self.device.reserve::<f32>(len)).collect::<Result<Vec<_>>>();
        let (from, mut to) = (buffers()?, buffers()?);
        let mut copy = |i: usize, stream: Stream| to[i % places].copy_from(&from[i % places], stream);
        let calls = LAUNCHES.next_multiple_of(places);
        let mut times = vec![];
        for _ in 0..COPIES {
            // The GPU is busy with these while the timed copies are launched.
            (0..WARM_UP).try_for_each(|i| copy(i, self.stream.as_stream()))?;
            let start = Event::record(&self.stream)?;
            (0..calls).try_for_each(|i| copy(i, self.stream.as_stream()))?;
            times.push(Event::record(&self.stream)?.since(&start)? / calls as u32);
        }
        Ok(median(times).min(self.time(calls, COPIES, copy)?))
    }

    /// Bytes per second, read and written, of a device-to-device copy of `bytes`.
    ///
    /// # Errors
    /// As [`Gpu::copy_time`].
    pub fn copy_bandwidth(&self, bytes: usize) -> Result<f64> {
        Ok(2.0 * bytes as f64 / self.copy_time(2 * bytes)?.as_secs_f64())
    }
}

/// The middle one of some times.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
