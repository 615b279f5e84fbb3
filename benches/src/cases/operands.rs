//! Buffers for the operands of an op, filled with pseudo-random values. On a GPU, the buffers are larger than
//! the L2 cache. For the CPU executor, the buffers contain only a few rows.
use std::cell::Cell;
use std::ops::Range;

use half::bf16;
use oxiwarp::{Buffer, Device, Result};

use super::Op;
use super::call::{INPUTS, OUTPUTS, Operands, Part, PartMut, VECTORS};

/// Number of elements of each large tensor on a GPU: 192 MB of 16-bit elements. Calls on smaller tensors use
/// consecutive slices of a large tensor.
pub const ELEMENTS: usize = 96 << 20;
/// Number of sets of tensors on a GPU.
pub const SETS: usize = 4;
/// Maximum number of columns.
pub const COLUMNS: usize = 262_144;
/// Value of every log-sum-exp and of every incoming loss gradient in the inputs of backward passes. 8 is a
/// realistic log-sum-exp: that of 3000 zeros has about this value.
const LOGARITHM: f32 = 8.0;
/// All inputs are slices of one random vector. This constant is the distance, in elements, between the starts
/// of the slices of two consecutive inputs.
const SKEW: usize = 4_099;
/// Number of classes: every target is below it.
const CLASSES: usize = 512;
/// Maximum number of vectors of partial column sums in the workspace of a norm's backward kernel. A launch
/// has up to eight blocks per SM, and an H200 has 132 SMs. Each block writes one vector for the weight
/// gradient and one for the bias gradient.
const BLOCKS: usize = 2 * 8 * 132;

/// The pseudo-random values of all inputs.
pub struct Values(Vec<bf16>);

impl Values {
    /// Makes values for tensors of `len` elements.
    pub fn new(len: usize) -> Self {
        let mut state = 0x9e37_79b9_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bf16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        Self((0..len + INPUTS * SKEW).map(|_| next()).collect())
    }

    /// Returns the values of input number `input`, elements `range`.
    fn of(&self, input: usize, range: Range<usize>) -> &[bf16] {
        &self.0[input * SKEW..][range]
    }
}

/// The tensors on a device: one or more sets of inputs and results. If there are several sets, consecutive
/// calls use different sets.
pub struct Pool {
    x: [Vec<Buffer<bf16>>; INPUTS],
    y: [Vec<Buffer<bf16>>; OUTPUTS],
    poison: Buffer<bf16>,
    vectors: [Buffer<bf16>; VECTORS],
    singles: [Buffer<f32>; 2],
    no_numbers: Buffer<f32>,
    targets: Buffer<i64>,
    logarithms: Buffer<f32>,
    dloss: Buffer<f32>,
    workspace: Buffer<f32>,
    /// Number of elements of all row tensors that calls have used so far. A test compares this count with the
    /// count that follows from the table `OPS`.
    pub(super) viewed: Cell<usize>,
}

/// The sizes of a pool.
struct Sizes {
    /// Elements of each result.
    written: usize,
    rows: Range<usize>,
    /// Maximum number of columns.
    max: usize,
    /// Number of f32 values of the workspace.
    workspace: usize,
    sets: usize,
    /// Number of results per call.
    outputs: usize,
}

impl Pool {
    /// Makes a pool of tensors on a GPU. The pool is large enough for every case (tensor size) of `ops`.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn of_ops(device: &Device, values: &Values, ops: &[&Op]) -> Result<Self> {
        let max = |count: fn(&Op) -> usize| ops.iter().map(|op| count(op)).max().unwrap_or(0);
        let operands = [max(|op| op.reads.len()), max(|op| op.writes.len())];
        Self::with(device, values, (ELEMENTS, COLUMNS, SETS), operands)
    }

    /// Makes a pool with `sets` tensors for each input and each result. A tensor has `len` elements, and a
    /// parameter vector has `max` elements.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn new(device: &Device, values: &Values, len: usize, max: usize, sets: usize) -> Result<Self> {
        Self::with(device, values, (len, max, sets), [INPUTS, OUTPUTS])
    }

    fn with(
        device: &Device,
        values: &Values,
        (len, max, sets): (usize, usize, usize),
        [inputs, outputs]: [usize; 2],
    ) -> Result<Self> {
        let workspace = BLOCKS * max.min(1 << 13);
        let sizes = Sizes { written: len, rows: 0..len / 64, max, workspace, sets, outputs };
        // If no op has this input, its tensor has one element.
        let input = |input| {
            let len = if input < inputs { len } else { 1 };
            (0..sets).map(|_| device.upload(values.of(input, 0..len))).collect()
        };
        Self::of(device, values, sizes, input)
    }

    /// Makes a pool of CPU tensors for one call of `op`. Its inputs contain only the rows `rows` of the
    /// inputs that the GPU pool for the same `values` has. A row has `cols` columns.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn of_rows(values: &Values, op: &Op, cols: usize, rows: &Range<usize>) -> Result<Self> {
        let widest = op.writes.iter().map(|width| width(cols)).max().unwrap_or(0);
        let (written, workspace) = (rows.len() * widest, 2 * rows.len() * cols);
        let input = |input: usize| {
            let width = op.reads.get(input).map_or(0, |width| width(cols));
            Ok(vec![Device::cpu().upload(values.of(input, rows.start * width..rows.end * width))?])
        };
        let max = op.vectors.iter().map(|width| width(cols)).max().unwrap_or(0).max(cols);
        let sizes = Sizes { written, rows: rows.clone(), max, workspace, sets: 1, outputs: OUTPUTS };
        Self::of(&Device::cpu(), values, sizes, input)
    }

    fn of(
        device: &Device,
        values: &Values,
        Sizes { written, rows, max, workspace, sets, outputs }: Sizes,
        input: impl Fn(usize) -> Result<Vec<Buffer<bf16>>>,
    ) -> Result<Self> {
        let poisoned = |output| {
            let len = if output < outputs { written } else { 1 };
            (0..sets).map(|_| device.alloc(len)).collect::<Result<Vec<_>>>()
        };
        let vector = |number: usize| device.upload(values.of(number, 0..max));
        let numbers = rows.len().max(max);
        let targets: Vec<_> = rows.map(|row| (row * 7_919 % CLASSES) as i64).collect();
        Ok(Self {
            x: [input(0)?, input(1)?, input(2)?, input(3)?, input(4)?],
            y: [poisoned(0)?, poisoned(1)?, poisoned(2)?],
            poison: device.alloc(written)?,
            vectors: [vector(0)?, vector(1)?, vector(2)?, vector(3)?],
            singles: [device.alloc(numbers)?, device.alloc(numbers)?],
            no_numbers: device.alloc(numbers)?,
            targets: device.upload(&targets)?,
            logarithms: device.upload(&vec![LOGARITHM; numbers])?,
            dloss: device.upload(&vec![LOGARITHM; numbers])?,
            workspace: device.alloc(workspace)?,
            viewed: Cell::new(0),
        })
    }

    /// Returns operands of `rows` rows and `cols` columns in the memory slot with index `place`. A slot is a
    /// set of tensors and an offset in its buffers. Consecutive slots are in different sets. The slot after
    /// the last set is in the first set again, `step` elements further.
    pub fn operands(&mut self, place: usize, step: usize, [rows, cols]: [usize; 2]) -> Operands<'_> {
        let (sets, offset) = (self.y[0].len(), place / self.y[0].len() * step);
        let viewed = &self.viewed;
        Operands {
            rows: rows as i64,
            cols: cols as i64,
            x: self.x.each_ref().map(|of| Part { buffer: &of[place % sets], offset, viewed }),
            y: self.y.each_mut().map(|of| PartMut { buffer: &mut of[place % sets], offset, viewed }),
            vectors: &self.vectors,
            singles: self.singles.each_mut(),
            targets: &self.targets,
            logarithms: &self.logarithms,
            dloss: &self.dloss,
            workspace: &mut self.workspace,
        }
    }

    /// Fills the results of the first set of tensors, which the next check uses, with NaN. The check can then
    /// find elements that a kernel does not write.
    ///
    /// # Errors
    /// Returns an error if the driver fails.
    pub fn poison(&mut self, stream: oxiwarp::Stream) -> Result<()> {
        for results in self.y.iter_mut().filter(|results| results[0].len() == self.poison.len()) {
            results[0].copy_from(&self.poison, stream)?;
        }
        self.singles.iter_mut().try_for_each(|single| single.copy_from(&self.no_numbers, stream))
    }

    /// Returns the elements `range` of the bf16 result with index `number` in the first set of tensors.
    ///
    /// # Errors
    /// Returns an error if a kernel failed.
    pub fn result(&self, number: usize, range: Range<usize>) -> Result<Vec<f32>> {
        Ok(self.y[number][0].download_part(range)?.iter().map(|y| y.to_f32()).collect())
    }

    /// Returns the elements `range` of the f32 result with index `number`.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::result`].
    pub fn single(&self, number: usize, range: Range<usize>) -> Result<Vec<f32>> {
        self.singles[number].download_part(range)
    }
}
