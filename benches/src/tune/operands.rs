//! What the calls of an op read and write: pseudo-random rows in more memory than stays in a cache, or a few of these rows.
use std::ops::Range;

use half::bf16;
use oxiwarp::{Buffer, Device, Result, View, ViewMut};

use super::Op;

/// Elements of a tensor for a row of so many columns.
pub type Width = fn(usize) -> usize;

/// Inputs of a call, and vectors of a row's columns.
const INPUTS: usize = 4;
/// Results.
const OUTPUTS: usize = 2;
/// Elements that an input's values lie behind those of the last.
const SKEW: usize = 4_099;
/// Targets are below this.
const CLASSES: usize = 512;
/// Blocks that keep sums of columns for two gradients, at most: eight for each multiprocessor of an H200.
const BLOCKS: usize = 2 * 8 * 132;

/// The values of all inputs.
pub struct Values(Vec<bf16>);

impl Values {
    /// For tensors of `len` elements.
    pub fn new(len: usize) -> Self {
        let mut state = 0x9e37_79b9_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bf16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        Self((0..len + INPUTS * SKEW).map(|_| next()).collect())
    }

    /// Those of an input.
    fn of(&self, input: usize, range: Range<usize>) -> &[bf16] {
        &self.0[input * SKEW..][range]
    }
}

/// Tensors on a device: several sets, which calls take in turn.
pub struct Pool {
    x: [Vec<Buffer<bf16>>; INPUTS],
    y: [Vec<Buffer<bf16>>; OUTPUTS],
    poison: Buffer<bf16>,
    vectors: [Buffer<bf16>; INPUTS],
    singles: [Buffer<f32>; 2],
    no_numbers: Buffer<f32>,
    targets: Buffer<i64>,
    workspace: Buffer<f32>,
}

/// How large a pool is.
struct Sizes {
    /// Elements of a result.
    written: usize,
    rows: Range<usize>,
    /// The most columns.
    most: usize,
    /// Numbers of the workspace.
    workspace: usize,
    sets: usize,
}

/// What a call reads of a buffer: from some element on.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    buffer: &'a Buffer<bf16>,
    offset: usize,
}

/// What a call writes.
pub struct PartMut<'a> {
    buffer: &'a mut Buffer<bf16>,
    offset: usize,
}

impl<'a> Part<'a> {
    /// The elements as a tensor of `shape`.
    ///
    /// # Errors
    /// There are not so many.
    pub fn view(self, shape: &[i64]) -> Result<View<'a>> {
        self.buffer.view_strided(self.offset, shape, &dense(shape))
    }
}

impl<'a> PartMut<'a> {
    /// The elements as a tensor of `shape`.
    ///
    /// # Errors
    /// There are not so many.
    pub fn view_mut(self, shape: &[i64]) -> Result<ViewMut<'a>> {
        self.buffer.view_strided_mut(self.offset, shape, &dense(shape))
    }
}

/// The strides of rows without gaps.
fn dense(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect()
}

/// What one call reads and writes.
pub struct Turn<'a> {
    /// Rows of each tensor.
    pub rows: i64,
    /// Columns.
    pub cols: i64,
    /// Inputs.
    pub x: [Part<'a>; INPUTS],
    /// Results.
    pub y: [PartMut<'a>; OUTPUTS],
    vectors: &'a [Buffer<bf16>; INPUTS],
    /// f32 results.
    pub singles: [&'a mut Buffer<f32>; 2],
    /// A class for each row.
    pub targets: &'a Buffer<i64>,
    /// Memory between launches.
    pub workspace: &'a mut Buffer<f32>,
}

impl<'a> Turn<'a> {
    /// The shape of a tensor of rows.
    pub fn shape(&self) -> [i64; 2] {
        [self.rows, self.cols]
    }

    /// A vector of `len` values: a weight, a scale.
    ///
    /// # Errors
    /// There are not so many.
    pub fn vector(&self, number: usize, len: i64) -> Result<View<'a>> {
        self.vectors[number].view(&[len])
    }
}

impl Pool {
    /// `sets` tensors of `len` elements for each input and result, for rows of up to `most` columns.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(device: &Device, values: &Values, len: usize, most: usize, sets: usize) -> Result<Self> {
        let sizes =
            Sizes { written: len, rows: 0..len / 64, most, workspace: BLOCKS * most.min(1 << 13), sets };
        let input = |input| (0..sets).map(|_| device.upload(values.of(input, 0..len))).collect();
        Self::of(device, values, sizes, input)
    }

    /// Some rows of all tensors of `op`, of `cols` columns, on the CPU.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn of_rows(values: &Values, op: &Op, cols: usize, rows: &Range<usize>) -> Result<Self> {
        let widest = op.writes.iter().map(|width| width(cols)).max().unwrap_or(0);
        let (written, workspace) = (rows.len() * widest, 2 * rows.len() * cols);
        let input = |input: usize| {
            let width = op.reads.get(input).map_or(0, |width| width(cols));
            Ok(vec![Device::cpu().upload(values.of(input, rows.start * width..rows.end * width))?])
        };
        let sizes = Sizes { written, rows: rows.clone(), most: cols, workspace, sets: 1 };
        Self::of(&Device::cpu(), values, sizes, input)
    }

    fn of(
        device: &Device,
        values: &Values,
        Sizes { written, rows, most, workspace, sets }: Sizes,
        input: impl Fn(usize) -> Result<Vec<Buffer<bf16>>>,
    ) -> Result<Self> {
        let poisoned = || (0..sets).map(|_| device.alloc(written)).collect::<Result<Vec<_>>>();
        let vector = |number: usize| device.upload(values.of(number, 0..most));
        let numbers = rows.len().max(most);
        let targets: Vec<_> = rows.map(|row| (row * 7_919 % CLASSES) as i64).collect();
        Ok(Self {
            x: [input(0)?, input(1)?, input(2)?, input(3)?],
            y: [poisoned()?, poisoned()?],
            poison: device.alloc(written)?,
            vectors: [vector(0)?, vector(1)?, vector(2)?, vector(3)?],
            singles: [device.alloc(numbers)?, device.alloc(numbers)?],
            no_numbers: device.alloc(numbers)?,
            targets: device.upload(&targets)?,
            workspace: device.alloc(workspace)?,
        })
    }

    /// The tensors at `place`, of `rows` rows of `cols` columns: the first of each set, then those `step` elements on.
    pub fn turn(&mut self, place: usize, step: usize, [rows, cols]: [usize; 2]) -> Turn<'_> {
        let (sets, offset) = (self.y[0].len(), place / self.y[0].len() * step);
        Turn {
            rows: rows as i64,
            cols: cols as i64,
            x: self.x.each_ref().map(|of| Part { buffer: &of[place % sets], offset }),
            y: self.y.each_mut().map(|of| PartMut { buffer: &mut of[place % sets], offset }),
            vectors: &self.vectors,
            singles: self.singles.each_mut(),
            targets: &self.targets,
            workspace: &mut self.workspace,
        }
    }

    /// Poisons what call number 0 writes.
    ///
    /// # Errors
    /// A driver error.
    pub fn poison(&mut self, stream: oxiwarp::Stream) -> Result<()> {
        for results in &mut self.y {
            results[0].copy_from(&self.poison, stream)?;
        }
        self.singles.iter_mut().try_for_each(|single| single.copy_from(&self.no_numbers, stream))
    }

    /// Some elements of a result of call number 0.
    ///
    /// # Errors
    /// A kernel that failed.
    pub fn result(&self, number: usize, range: Range<usize>) -> Result<Vec<f32>> {
        Ok(self.y[number][0].download_part(range)?.iter().map(|y| y.to_f32()).collect())
    }

    /// Some elements of a result in f32.
    ///
    /// # Errors
    /// As [`Pool::result`].
    pub fn single(&self, number: usize, range: Range<usize>) -> Result<Vec<f32>> {
        self.singles[number].download_part(range)
    }
}
