//! Operands for tests that are broadcast against rows `x` of shape `[B, S, D]`. They are scales, shifts and
//! gates, the tables (vectors) that are added to them, weights and biases.
use oxiwarp::{Affine, Buffer, Device, Element, Modulation, ScaleShift, View};
use rand::rngs::StdRng;

use crate::tensor::values;

/// The shape and strides of an operand that is broadcast against `x` of shape `[B, S, D]`. They determine
/// which rows of `x` use the same row of the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `[D]`.
    Vector,
    /// `[B, 1, D]`.
    Batch,
    /// `[B, S, D]`.
    Token,
    /// The third of six chunks of a tensor `[B, 6 * D]`, viewed as `[B, 1, D]`.
    BatchSlice,
    /// The third of the six rows per token of a tensor `[B, S, 6, D]`, viewed as `[B, S, D]`.
    TokenSlice,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 5] = [Self::Vector, Self::Batch, Self::Token, Self::BatchSlice, Self::TokenSlice];
}

/// The shape, dtype and alignment of an operand.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The operand's shape and strides.
    pub form: Form,
    /// Whether it is in f32 independent of the dtype of `x`.
    pub single: bool,
    /// Elements before the first one: 1 gives an unaligned base.
    pub offset: usize,
}

/// One operand on a device.
pub struct Operand<T> {
    memory: Memory<T>,
    start: usize,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Number of consecutive rows of `x` that use the same row of the operand. The next field, `cols`, is the
    /// number of columns.
    each: usize,
    cols: usize,
    values: Vec<f32>,
}

enum Memory<T> {
    Same(Buffer<T>),
    F32(Buffer<f32>),
}

impl<T: Element> Operand<T> {
    /// Makes an operand with random values for an `x` of shape `[batch, tokens, cols]`.
    pub fn new(device: &Device, random: &mut StdRng, [batch, tokens, cols]: [i64; 3], kind: Kind) -> Self {
        let (rows, each, tokens_of_it) = match kind.form {
            Form::Vector => (1, usize::MAX, 1),
            Form::Batch | Form::BatchSlice => (batch, tokens.max(1) as usize, 1),
            Form::Token | Form::TokenSlice => (batch * tokens, 1, tokens),
        };
        let slice = matches!(kind.form, Form::BatchSlice | Form::TokenSlice);
        let (pitch, start) =
            if slice { (6 * cols, kind.offset + 2 * cols as usize) } else { (cols, kind.offset) };
        let shape = if kind.form == Form::Vector { vec![cols] } else { vec![batch, tokens_of_it, cols] };
        let strides = if kind.form == Form::Vector { vec![1] } else { vec![tokens_of_it * pitch, pitch, 1] };
        let (rows, pitch, cols) = (rows as usize, pitch as usize, cols as usize);
        let (memory, values) = if kind.single {
            let (buffer, values) = upload::<f32>(device, random, [rows, cols], start, pitch);
            (Memory::F32(buffer), values)
        } else {
            let (buffer, values) = upload::<T>(device, random, [rows, cols], start, pitch);
            (Memory::Same(buffer), values)
        };
        Self { memory, start, shape, strides, each, cols, values }
    }

    /// Makes a random vector of `cols` values for a weight, a bias, or a table that is added to a scale,
    /// shift or gate.
    pub fn vector(device: &Device, random: &mut StdRng, cols: i64, single: bool, offset: usize) -> Self {
        Self::new(device, random, [1, 1, cols], Kind { form: Form::Vector, single, offset })
    }

    /// Returns a view for reading.
    pub fn view(&self) -> View<'_> {
        match &self.memory {
            Memory::Same(buffer) => buffer.view_strided(self.start, &self.shape, &self.strides),
            Memory::F32(buffer) => buffer.view_strided(self.start, &self.shape, &self.strides),
        }
        .expect("inside")
    }

    /// Returns the value that applies to element `at` of `x`.
    pub fn at(&self, at: usize) -> f32 {
        self.values[at / self.cols / self.each * self.cols + at % self.cols]
    }

    /// Returns whether the operand is in f32 while `x` is in f16 or bf16.
    pub fn is_f32(&self) -> bool {
        matches!(self.memory, Memory::F32(_)) && size_of::<T>() == 2
    }
}

/// Uploads random rows whose starts are `pitch` elements apart. The first row starts at element `start` of
/// the buffer. Elements outside the rows are NaN, so that a kernel that reads one gives a wrong result.
fn upload<E: Element>(
    device: &Device,
    random: &mut StdRng,
    [rows, cols]: [usize; 2],
    start: usize,
    pitch: usize,
) -> (Buffer<E>, Vec<f32>) {
    let values: Vec<E> = values(random, rows * cols);
    let mut memory = vec![E::from_bits(u32::MAX); start + rows * pitch];
    for (row, values) in values.chunks(cols).enumerate() {
        memory[start + row * pitch..][..cols].copy_from_slice(values);
    }
    let wide = values.iter().map(|value| value.to_f32()).collect();
    (device.upload(&memory).expect("device memory"), wide)
}

/// A scale, shift or gate, with its optional table.
pub struct Side<T> {
    /// The values per batch or per token.
    pub value: Operand<T>,
    /// The table, which is added to `value`.
    pub table: Option<Operand<T>>,
}

impl<T: Element> Side<T> {
    /// Makes a scale, shift or gate with random values. `table` says whether the table, a vector that is
    /// added to it, is in f32. `None` means that there is no table.
    pub fn new(
        device: &Device,
        random: &mut StdRng,
        shape: [i64; 3],
        kind: Kind,
        table: Option<bool>,
    ) -> Self {
        let value = Operand::new(device, random, shape, kind);
        let table = table.map(|single| Operand::vector(device, random, shape[2], single, kind.offset));
        Self { value, table }
    }

    /// Returns the argument for an op.
    pub fn view(&self) -> Modulation<'_> {
        Modulation { value: self.value.view(), table: self.table.as_ref().map(Operand::view) }
    }

    /// Returns whether the operand, or the table (a vector) that is added to it, is in f32 while `x` is in
    /// f16 or bf16.
    pub fn is_f32(&self) -> bool {
        self.value.is_f32() || self.table.as_ref().is_some_and(Operand::is_f32)
    }

    /// Returns the sum of the operand and the table that is added to it, for element `at` of `x`. The sum is
    /// rounded to the dtype of `x`, unless one of the two is in f32.
    pub fn at(&self, at: usize) -> f32 {
        let Some(table) = &self.table else { return self.value.at(at) };
        let sum = table.at(at % self.value.cols) + self.value.at(at);
        if self.is_f32() { sum } else { T::from_f32(sum).to_f32() }
    }
}

/// The operands of a modulated norm: weight, bias, scale and shift.
pub struct Norming<T> {
    /// Multiplies the normalised row.
    pub weight: Option<Operand<T>>,
    /// Is added after the product with `weight`.
    pub bias: Option<Operand<T>>,
    /// The norm is multiplied by `1 + scale`.
    pub scale: Side<T>,
    /// Is added after the product with `1 + scale`.
    pub shift: Option<Side<T>>,
}

impl<T: Element> Norming<T> {
    /// Returns the arguments for an op.
    pub fn views(&self) -> (Affine<'_>, ScaleShift<'_>) {
        let (weight, bias) = (self.weight.as_ref().map(Operand::view), self.bias.as_ref().map(Operand::view));
        let by = ScaleShift { scale: self.scale.view(), shift: self.shift.as_ref().map(Side::view) };
        (Affine { weight, bias }, by)
    }

    /// Returns whether one of these operands is in f32 while `x` is in f16 or bf16. The op then rounds only
    /// its final result.
    pub fn is_f32(&self) -> bool {
        let vectors = [&self.weight, &self.bias].into_iter().flatten().any(Operand::is_f32);
        vectors || self.scale.is_f32() || self.shift.as_ref().is_some_and(Side::is_f32)
    }
}
