//! Defines a benchmark case: an op with a tensor size. The module also computes how many bytes a call of the
//! op reads and writes. Consecutive calls use different parts of the buffers, called slots, which this module
//! also chooses.
use oxiwarp::{Device, Result, Stream};

use super::op::BLOCK;
use super::{Op, Pool, SETS, Singles};
use crate::{FLUSH_BYTES, LAUNCHES};

/// Alignment in elements of the start of every tensor.
const ALIGN: usize = 64;

/// An op, and the size of its tensors.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// The op.
    pub op: &'a Op,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

impl Case<'_> {
    /// Returns the case's name in reports: `<op>/<rows>x<columns>`.
    pub fn id(&self) -> String {
        format!("{}/{}x{}", self.op.name, self.rows, self.cols)
    }

    /// Returns the number of bytes that a call reads and writes if it reads each input once and writes each
    /// result once. No call moves fewer bytes.
    pub fn bytes(&self) -> usize {
        let Op { reads, writes, vectors, others, .. } = self.op;
        let of_row: usize = reads.iter().chain(*writes).map(|width| width(self.cols)).sum();
        let vectors: usize = vectors.iter().map(|width| width(self.cols)).sum();
        let singles = match self.op.singles {
            Singles::OfRows(count) => self.rows * count,
            Singles::OfBlocks => self.rows * self.cols.div_ceil(BLOCK),
            Singles::OfColumns(count) => self.cols * count,
        };
        self.rows * (2 * of_row + others(self.cols)) + 2 * vectors + 4 * singles
    }

    /// Returns the number of memory slots that calls use in rotation. The pool has `sets` sets of buffers. A
    /// slot is one of these sets with an offset in its buffers. All slots together are larger than the L2
    /// cache. The data of a slot is therefore no longer in L2 when a call uses the slot again.
    pub fn places(&self, sets: usize) -> usize {
        FLUSH_BYTES.div_ceil(self.bytes()).max(sets)
    }

    /// Returns the number of calls per CUDA graph. The number is a multiple of the number of memory slots
    /// (parts of the buffers), so that the calls use each slot equally often.
    pub fn calls(&self, sets: usize) -> usize {
        LAUNCHES.next_multiple_of(self.places(sets))
    }

    /// Returns the distance in elements between two consecutive memory slots of the same buffer.
    pub fn step(&self) -> usize {
        let widths = self.op.reads.iter().chain(self.op.writes).map(|width| width(self.cols));
        (self.rows * widths.max().unwrap_or(0)).next_multiple_of(ALIGN)
    }

    /// Runs the op once, as call number `number` of a CUDA graph. Consecutive calls use different memory
    /// slots (parts of the buffers) of `pool`.
    ///
    /// # Errors
    /// Returns an error if the op refuses its operands, or if the driver fails.
    pub fn call(&self, device: &Device, pool: &mut Pool, number: usize, stream: Stream) -> Result<()> {
        let operands = pool.operands(number % self.places(SETS), self.step(), [self.rows, self.cols]);
        (self.op.call)(device, operands, stream)
    }

    /// Runs the op on the first memory slot, at the start of each buffer.
    ///
    /// # Errors
    /// Returns the errors of [`Case::call`].
    pub fn run(&self, device: &Device, pool: &mut Pool, stream: Stream) -> Result<()> {
        (self.op.call)(device, pool.operands(0, 0, [self.rows, self.cols]), stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{OPS, Values};

    /// Checks that calls use a memory slot (part of the buffers) again only after they have accessed at least
    /// 180 MB of other memory. 180 MB are three times an L2 cache of 60 MB.
    #[test]
    fn no_place_is_in_a_cache_when_its_turn_comes() {
        let (sets, layer_norm) = (4, OPS.iter().find(|op| op.name == "layer_norm").expect("it is listed"));
        for (rows, cols) in [(4_608, 128), (4_608, 640), (4_608, 5_120), (1 << 18, 128)] {
            let case = Case { op: layer_norm, rows, cols };
            let (places, calls) = (case.places(sets), case.calls(sets));
            assert!(places * case.bytes() >= FLUSH_BYTES, "{rows} x {cols}: {places}");
            assert!(calls >= LAUNCHES && calls.is_multiple_of(places), "{rows} x {cols}: {calls}");
            let last = (places - 1) / sets * case.step() + case.step();
            assert!(last <= 96 << 20, "{rows} x {cols}: {last} elements of each buffer");
        }
    }

    /// Checks that memory slots (parts of the buffers) do not overlap. The pool has two sets of buffers.
    /// Slots 0 and 1 are the first slots of the two sets, and slot 2 is the second slot of the first set.
    #[test]
    fn places_are_apart() {
        let case = Case {
            op: OPS.iter().find(|op| op.name == "layer_norm").expect("it is listed"),
            rows: 3,
            cols: 40,
        };
        let (cpu, step, len) = (Device::cpu(), case.step(), case.rows * case.cols);
        let values = Values::new(2 * step);
        let mut pool = Pool::new(&cpu, &values, 2 * step, case.cols, 2).unwrap();
        (case.op.call)(&cpu, pool.operands(2, step, [case.rows, case.cols]), Stream::default()).unwrap();
        let written =
            |pool: &Pool, range| pool.result(0, range).unwrap().iter().filter(|y| !y.is_nan()).count();
        assert_eq!(
            [0..step, step..step + len, step + len..2 * step].map(|range| written(&pool, range)),
            [0, len, 0]
        );
        let second = pool.result(0, step..step + len).unwrap();
        case.run(&cpu, &mut pool, Stream::default()).unwrap();
        assert_ne!(pool.result(0, 0..len).unwrap(), second);
    }
}
