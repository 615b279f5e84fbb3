//! Operands that broadcast against `x`, `[B, S, D]`: scales, shifts, gates, their tables, weights and biases.
use oxiwarp::{Affine, Buffer, Device, Element, Modulation, ScaleShift, View};
use rand::rngs::StdRng;

use crate::tensor::values;

/// Which rows of `x` share one of an operand's, and how those lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `[D]`.
    Vector,
    /// `[B, 1, D]`.
    Batch,
    /// `[B, S, D]`.
    Token,
    /// The third of six chunks of `[B, 6 * D]`, as `[B, 1, D]`.
    BatchSlice,
    /// The third of `[B, S, 6, D]`.
    TokenSlice,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Vector, Self::Batch, Self::Token, Self::BatchSlice, Self::TokenSlice];
}

/// What an operand is like.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its shape and strides.
    pub form: Form,
    /// In f32 whatever `x` is in?
    pub single: bool,
    /// Elements before the first: 1 gives an unaligned base.
    pub offset: usize,
}

/// One operand on a device.
pub struct Operand<T> {
    memory: Memory<T>,
    start: usize,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Rows of `x` that share one of its rows, and columns.
    each: usize,
    cols: usize,
    values: Vec<f32>,
}

enum Memory<T> {
    Same(Buffer<T>),
    F32(Buffer<f32>),
}

impl<T: Element> Operand<T> {
    /// Random values beside an `x` of `[batch, tokens, cols]`.
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

    /// A weight, bias or table.
    pub fn vector(device: &Device, random: &mut StdRng, cols: i64, single: bool, offset: usize) -> Self {
        Self::new(device, random, [1, 1, cols], Kind { form: Form::Vector, single, offset })
    }

    /// For reading.
    pub fn view(&self) -> View<'_> {
        match &self.memory {
            Memory::Same(buffer) => buffer.view_strided(self.start, &self.shape, &self.strides),
            Memory::F32(buffer) => buffer.view_strided(self.start, &self.shape, &self.strides),
        }
        .expect("inside")
    }

    /// Its value beside the element `at` of `x`.
    pub fn at(&self, at: usize) -> f32 {
        self.values[at / self.cols / self.each * self.cols + at % self.cols]
    }

    /// Is it in f32 beside 16 bits?
    pub fn is_f32(&self) -> bool {
        matches!(self.memory, Memory::F32(_)) && size_of::<T>() == 2
    }
}

/// Rows `pitch` apart, from element `start` on, with poison around them.
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

/// A scale, shift or gate, with its table.
pub struct Side<T> {
    /// For a batch or a token.
    pub value: Operand<T>,
    /// Added to it.
    pub table: Option<Operand<T>>,
}

impl<T: Element> Side<T> {
    /// Random values; a table in f32 or not.
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

    /// As the ops take it.
    pub fn view(&self) -> Modulation<'_> {
        Modulation { value: self.value.view(), table: self.table.as_ref().map(Operand::view) }
    }

    /// Is any of it in f32 beside 16 bits?
    pub fn is_f32(&self) -> bool {
        self.value.is_f32() || self.table.as_ref().is_some_and(Operand::is_f32)
    }

    /// Its value beside the element `at` of `x`: the sum is rounded to the dtype that both have.
    pub fn at(&self, at: usize) -> f32 {
        let Some(table) = &self.table else { return self.value.at(at) };
        let sum = table.at(at % self.value.cols) + self.value.at(at);
        if self.is_f32() { sum } else { T::from_f32(sum).to_f32() }
    }
}

/// Weight and bias, and what modulates the norm.
pub struct Norming<T> {
    /// Multiplies the norm.
    pub weight: Option<Operand<T>>,
    /// Added after that.
    pub bias: Option<Operand<T>>,
    /// Its sum with 1 multiplies the norm.
    pub scale: Side<T>,
    /// Added after that.
    pub shift: Option<Side<T>>,
}

impl<T: Element> Norming<T> {
    /// As the ops take them.
    pub fn views(&self) -> (Affine<'_>, ScaleShift<'_>) {
        let (weight, bias) = (self.weight.as_ref().map(Operand::view), self.bias.as_ref().map(Operand::view));
        let by = ScaleShift { scale: self.scale.view(), shift: self.shift.as_ref().map(Side::view) };
        (Affine { weight, bias }, by)
    }

    /// Is any of them in f32 beside 16 bits, so that nothing is rounded before the end?
    pub fn is_f32(&self) -> bool {
        let vectors = [&self.weight, &self.bias].into_iter().flatten().any(Operand::is_f32);
        vectors || self.scale.is_f32() || self.shift.as_ref().is_some_and(Side::is_f32)
    }
}
