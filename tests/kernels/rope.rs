//! `rope`: the same bits as the formula in f32, for every kind of table, pairing, layout and dtype.
use half::{bf16, f16};
use oxiwarp::{Angles, Buffer, Device, Element, Heads, HeadsOrder, Rope, Stream, View, rope as launch};
use oxiwarp_tests::compare::{same_bits, within_ulps};
use oxiwarp_tests::tensor::{random, seed, values};
use rand::rngs::StdRng;

use crate::Test;

pub const TESTS: &[Test] = &[
    ("rope::f32", every_table::<f32>),
    ("rope::f16", every_table::<f16>),
    ("rope::bf16", every_table::<bf16>),
    ("rope::layouts", layouts),
    ("rope::frequencies", frequencies),
    ("rope::conjugate_undoes", conjugate),
    ("rope::tokens_do_not_depend_on_each_other", batch_invariance),
];

/// Heads of a tensor: `[batches, tokens, heads, dim]`, whatever the order in memory.
pub type Sizes = [usize; 4];

/// A tensor of heads in a wider buffer, and where it lies.
pub struct Tensor<T> {
    pub buffer: Buffer<T>,
    pub offset: usize,
    pub shape: [i64; 4],
    pub strides: [i64; 4],
    sizes: Sizes,
    order: HeadsOrder,
}

/// How a test lays heads out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    /// `[B, S, heads, D]`, dense.
    Dense,
    /// One of three tensors in `[B, S, 3, heads, D]`.
    Fused,
    /// Dense, from the second element of a buffer on.
    Unaligned,
    /// `[B, heads, S, D]`, dense.
    HeadsFirst,
    /// `[B, heads, S, D]`, a transposed view of `[B, S, heads, D]`.
    Transposed,
}

impl Layout {
    pub fn order(self) -> HeadsOrder {
        match self {
            Self::HeadsFirst | Self::Transposed => HeadsOrder::HeadsFirst,
            _ => HeadsOrder::TokensFirst,
        }
    }
}

impl<T: Element> Tensor<T> {
    /// `values`, token after token, laid out as asked; whatever is beside them is poison.
    pub fn upload(device: &Device, values: &[T], sizes: Sizes, layout: Layout) -> Self {
        let [b, s, h, d] = sizes.map(|size| size as i64);
        // Strides of batch, token, head.
        let (offset, [i, j, k]) = match layout {
            Layout::Dense | Layout::Transposed => (0, [s * h * d, h * d, d]),
            Layout::Fused => ((h * d) as usize, [s * 3 * h * d, 3 * h * d, d]),
            Layout::Unaligned => (1, [s * h * d, h * d, d]),
            Layout::HeadsFirst => (0, [s * h * d, d, s * d]),
        };
        let (shape, strides) = match layout.order() {
            HeadsOrder::TokensFirst => ([b, s, h, d], [i, j, k, 1]),
            HeadsOrder::HeadsFirst => ([b, h, s, d], [i, k, j, 1]),
        };
        let len = offset + ((b * i).max(b * s * j) + 1) as usize;
        let mut tensor = Self {
            buffer: device.upload(&[T::default()]).expect("memory"),
            offset,
            shape,
            strides,
            sizes,
            order: layout.order(),
        };
        let mut memory = vec![T::from_bits(u32::MAX); len];
        for (value, at) in values.iter().zip(tensor.places()) {
            memory[at] = *value;
        }
        tensor.buffer = device.upload(&memory).expect("memory");
        tensor
    }

    /// Poison to write to.
    pub fn poisoned(device: &Device, sizes: Sizes, layout: Layout) -> Self {
        Self::upload(device, &vec![T::from_bits(u32::MAX); sizes.iter().product()], sizes, layout)
    }

    /// Where the elements lie, token after token.
    fn places(&self) -> Vec<usize> {
        let [b, s, h, d] = self.sizes;
        let [i, mut j, mut k, _] = self.strides.map(|stride| stride as usize);
        if self.order == HeadsOrder::HeadsFirst {
            (j, k) = (k, j);
        }
        let mut places = Vec::with_capacity(b * s * h * d);
        for (b, s, h) in (0..b).flat_map(|b| (0..s).flat_map(move |s| (0..h).map(move |h| (b, s, h)))) {
            places.extend((0..d).map(|d| self.offset + b * i + s * j + h * k + d));
        }
        places
    }

    pub fn view(&self) -> View<'_> {
        self.buffer.view_strided(self.offset, &self.shape, &self.strides).expect("inside")
    }

    pub fn view_mut(&mut self) -> oxiwarp::ViewMut<'_> {
        self.buffer.view_strided_mut(self.offset, &self.shape, &self.strides).expect("inside")
    }

    /// Its elements, token after token; panics where anything beside them was written.
    pub fn download(&self) -> Vec<T> {
        let (memory, places) = (self.buffer.download().expect("a kernel that ran"), self.places());
        let mut inside = vec![false; memory.len()];
        places.iter().for_each(|&at| inside[at] = true);
        let poison = T::from_bits(u32::MAX).to_bits();
        let hit = (0..memory.len()).find(|&at| !inside[at] && memory[at].to_bits() != poison);
        assert_eq!(hit, None, "an element beside the heads was written");
        places.iter().map(|&at| memory[at]).collect()
    }
}

/// What tables a rotation has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// An entry for each column.
    Wide,
    /// An entry for each pair.
    Narrow,
    /// A complex number for each pair.
    Complex,
}

/// A rotation and the angles that it stands for.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub kind: Kind,
    pub interleaved: bool,
    /// Rotated columns.
    pub columns: usize,
    /// First rotated token; the last ones are left out as well if it is not 0.
    pub offset: usize,
    pub by_batch: bool,
    pub by_head: bool,
    /// Are the tables in f32, whatever the heads are?
    pub single: bool,
}

impl Turn {
    pub fn of(kind: Kind, interleaved: bool, columns: usize) -> Self {
        Self { kind, interleaved, columns, offset: 0, by_batch: false, by_head: false, single: true }
    }

    pub fn tokens(&self, all: usize) -> usize {
        if self.offset == 0 { all } else { all - self.offset - 1 }
    }

    /// The pair of a column, and whether the column is its second.
    fn pair(&self, column: usize) -> (usize, bool) {
        let half = self.columns / 2;
        if self.interleaved { (column / 2, column % 2 == 1) } else { (column % half, column >= half) }
    }

    pub fn partner(&self, column: usize) -> usize {
        let half = self.columns / 2;
        match (self.interleaved, column < half) {
            (true, _) => column ^ 1,
            (false, true) => column + half,
            (false, false) => column - half,
        }
    }
}

/// Tables on the device, and every cosine and sine of them.
pub struct Tables<T> {
    pub turn: Turn,
    cos: Vec<f32>,
    sin: Vec<f32>,
    sizes: Sizes,
    single: [Buffer<f32>; 2],
    same: [Buffer<T>; 2],
}

impl<T: Element> Tables<T> {
    /// Random angles for heads of `sizes`.
    pub fn random(device: &Device, rng: &mut StdRng, turn: Turn, [b, s, h, _]: Sizes) -> Self {
        let pairs = turn.columns / 2;
        let tokens = turn.tokens(s);
        let sizes = [if turn.by_batch { b } else { 1 }, tokens, if turn.by_head { h } else { 1 }, pairs];
        let angles: Vec<f32> = values(rng, sizes.iter().product());
        let round = |x: f32| if turn.single { x } else { T::from_f32(x).to_f32() };
        let (cos, sin): (Vec<_>, Vec<_>) = angles.iter().map(|a| (round(a.cos()), round(a.sin()))).unzip();
        let spread = |entries: &[f32], other: &[f32]| -> Vec<f32> {
            let rows = entries.chunks(pairs).zip(other.chunks(pairs));
            rows.flat_map(|(row, other)| match turn.kind {
                Kind::Narrow => row.to_vec(),
                Kind::Complex => row.iter().zip(other).flat_map(|(c, s)| [*c, *s]).collect(),
                Kind::Wide => (0..turn.columns).map(|column| row[turn.pair(column).0]).collect(),
            })
            .collect()
        };
        let laid = [spread(&cos, &sin), spread(&sin, &cos)];
        let single = laid.each_ref().map(|table| device.upload(table).expect("memory"));
        let same = laid.map(|table| {
            device.upload(&table.iter().map(|&x| T::from_f32(x)).collect::<Vec<_>>()).expect("memory")
        });
        Self { turn, cos, sin, sizes, single, same }
    }

    /// The op's argument.
    pub fn rope(&self, order: HeadsOrder) -> Rope<'_> {
        let [b, s, h, pairs] = self.sizes.map(|size| size as i64);
        let width = if self.turn.kind == Kind::Narrow { pairs } else { 2 * pairs };
        let (shape, strides) = match order {
            HeadsOrder::TokensFirst => ([b, s, h, width], [s * h * width, h * width, width, 1]),
            HeadsOrder::HeadsFirst => ([b, h, s, width], [s * h * width, width, h * width, 1]),
        };
        let view = |i: usize| match self.turn.single {
            true => self.single[i].view_strided(0, &shape, &strides).expect("inside"),
            false => self.same[i].view_strided(0, &shape, &strides).expect("inside"),
        };
        let angles = match self.turn.kind {
            Kind::Complex => Angles::Complex(view(0)),
            _ => Angles::Tables { cos: view(0), sin: view(1) },
        };
        let offset = (self.turn.offset != 0).then_some(self.turn.offset as i64);
        Rope { columns: Some(self.turn.columns as i64), offset, ..Rope::new(angles, self.turn.interleaved) }
    }

    /// Cosine and sine of a column, whether it is the second of its pair, and its partner; `None` where nothing turns.
    pub fn at(&self, [b, s, h]: [usize; 3], column: usize) -> Option<(f32, f32, bool, usize)> {
        let Turn { offset, columns, by_batch, by_head, .. } = self.turn;
        let [_, tokens, heads, pairs] = self.sizes;
        if column >= columns || s < offset || s - offset >= tokens {
            return None;
        }
        let (pair, second) = self.turn.pair(column);
        let (b, h) = (if by_batch { b } else { 0 }, if by_head { h } else { 0 });
        let at = ((b * tokens + s - offset) * heads + h) * pairs + pair;
        Some((self.cos[at], self.sin[at], second, self.turn.partner(column)))
    }

    /// What the op makes of `x`, bit for bit.
    fn apply(&self, x: &[T], [_, s, h, d]: Sizes) -> Vec<T> {
        let each = !self.turn.single && size_of::<T>() == 2;
        let round = |x: f32| if each { T::from_f32(x).to_f32() } else { x };
        let of = |at: usize| {
            let (row, column) = (at / d, at % d);
            let Some((cos, sin, second, partner)) = self.at([row / h / s, row / h % s, row % h], column)
            else {
                return x[at];
            };
            let (own, other) = (x[at].to_f32(), x[row * d + partner].to_f32());
            let other = if second { other } else { -other };
            T::from_f32(match (self.turn.kind, second) {
                (Kind::Complex, false) => own.mul_add(cos, other * sin),
                (Kind::Complex, true) => other.mul_add(sin, own * cos),
                _ => round(own * cos) + round(other * sin),
            })
        };
        (0..x.len()).map(of).collect()
    }
}

/// Queries and keys with so many heads, through the op and through the formula.
fn check<T: Element>(
    device: &Device,
    rng: &mut StdRng,
    [b, s, d]: [usize; 3],
    heads: [usize; 2],
    turn: Turn,
    layout: Layout,
) {
    let tables = Tables::<T>::random(device, rng, turn, [b, s, heads[0].max(heads[1]), d]);
    let make = |rng: &mut StdRng, h: usize| -> Option<(Vec<T>, Tensor<T>, Tensor<T>)> {
        let x = values(rng, b * s * h * d);
        let (from, to) = (
            Tensor::upload(device, &x, [b, s, h, d], layout),
            Tensor::poisoned(device, [b, s, h, d], layout),
        );
        (h > 0).then_some((x, from, to))
    };
    let (mut q, mut k) = (make(rng, heads[0]), make(rng, heads[1]));
    fn arg<T: Element>(side: &mut Option<(Vec<T>, Tensor<T>, Tensor<T>)>) -> Option<Heads<'_>> {
        side.as_mut().map(|(_, x, y)| Heads { x: x.view(), affine: Default::default(), y: y.view_mut() })
    }
    let (order, rope) = (layout.order(), tables.rope(layout.order()));
    launch(device, arg(&mut q), arg(&mut k), rope, order, None, Stream::default()).expect("valid arguments");
    for ((x, _, y), h) in [q, k].iter().zip(heads).filter_map(|(side, h)| Some((side.as_ref()?, h))) {
        same_bits(&y.download(), &tables.apply(x, [b, s, h, d]));
    }
}

fn every_table<T: Element>(device: &Device) {
    let (seed, rng) = (seed(), &mut random(seed()));
    for (d, columns) in [
        (2, 2),
        (6, 6),
        (7, 6),
        (8, 8),
        (64, 64),
        (72, 72),
        (96, 32),
        (128, 128),
        (130, 18),
        (256, 64),
        (520, 520),
    ] {
        for kind in [Kind::Wide, Kind::Narrow, Kind::Complex] {
            for interleaved in [true, false].into_iter().filter(|i| *i || kind != Kind::Complex) {
                for (single, by_head, by_batch, offset) in [
                    (true, false, false, 0),
                    (true, true, true, 0),
                    (false, false, true, 2),
                    (false, true, false, 0),
                ] {
                    let single = single || kind == Kind::Complex;
                    let turn =
                        Turn { offset, by_batch, by_head, single, ..Turn::of(kind, interleaved, columns) };
                    eprintln!("{d} columns, {turn:?}, OXIWARP_SEED={seed}");
                    check::<T>(device, rng, [2, 5, d], [3, 3], turn, Layout::Dense);
                }
            }
        }
    }
}

fn layouts(device: &Device) {
    let (seed, rng) = (seed(), &mut random(seed()));
    for layout in [Layout::Dense, Layout::Fused, Layout::Unaligned, Layout::HeadsFirst, Layout::Transposed] {
        for heads in [[1, 1], [5, 5], [8, 2], [9, 1], [0, 4], [7, 0], [33, 11]] {
            for d in [40, 64, 128, 192] {
                eprintln!("{layout:?}, {heads:?} heads of {d}, OXIWARP_SEED={seed}");
                check::<bf16>(device, rng, [2, 3, d], heads, Turn::of(Kind::Wide, true, d), layout);
                check::<bf16>(device, rng, [1, 3, d], heads, Turn::of(Kind::Narrow, false, d), layout);
            }
        }
    }
    check::<f32>(device, rng, [2, 0, 64], [4, 4], Turn::of(Kind::Wide, true, 64), Layout::Dense);
}

/// Angles made in the kernel: positions up to a million, counted or given.
fn frequencies(device: &Device) {
    let (b, s, h, d) = (2, 6, 3, 64);
    for (interleaved, given, columns) in
        [(true, false, 64), (false, true, 64), (true, true, 24), (false, false, 12)]
    {
        let x: Vec<f32> = values(&mut random(seed()), b * s * h * d);
        let frequencies: Vec<f32> =
            (0..columns / 2).map(|i| 1e4_f32.powf(-2.0 * i as f32 / columns as f32)).collect();
        let positions: Vec<f32> =
            (0..b * s).map(|i| [0.0, 1.0, 17.5, 4_095.0, 123_456.0, 999_999.0][i % 6] + i as f32).collect();
        let (tensor, mut y) = (
            Tensor::upload(device, &x, [b, s, h, d], Layout::Dense),
            Tensor::<f32>::poisoned(device, [b, s, h, d], Layout::Dense),
        );
        let (f, p) = (device.upload(&frequencies).unwrap(), device.upload(&positions).unwrap());
        let angles = Angles::Frequencies {
            frequencies: f.view(&[columns as i64 / 2]).unwrap(),
            positions: given.then(|| p.view(&[b as i64, s as i64]).unwrap()),
        };
        let rope = Rope { columns: Some(columns as i64), ..Rope::new(angles, interleaved) };
        let heads = Heads { x: tensor.view(), affine: Default::default(), y: y.view_mut() };
        launch(device, Some(heads), None, rope, HeadsOrder::TokensFirst, None, Stream::default()).unwrap();
        let turn = Turn::of(Kind::Wide, interleaved, columns);
        let expected: Vec<f64> = (0..x.len())
            .map(|at| {
                let (row, column) = (at / d, at % d);
                let token = row / h;
                if column >= columns {
                    return f64::from(x[at]);
                }
                let (pair, second) = turn.pair(column);
                let position = if given { positions[token] } else { (token % s) as f32 };
                let angle = f64::from(position * frequencies[pair]);
                let other = f64::from(x[row * d + turn.partner(column)]);
                f64::from(x[at]) * angle.cos() + if second { other } else { -other } * angle.sin()
            })
            .collect();
        // Sine and cosine are off by 2^-23 at most, the numbers below 4: not relative to the sum.
        let shifted = |v: f64| v + 64.0;
        let got: Vec<f32> = y.download().iter().map(|v| v + 64.0).collect();
        within_ulps(&got, &expected.into_iter().map(shifted).collect::<Vec<_>>(), d, 1.0);
    }
}

/// Rotation by the negative angle gives the input back, up to rounding.
fn conjugate(device: &Device) {
    for interleaved in [true, false] {
        let (sizes, rng) = ([1, 4, 2, 64], &mut random(seed()));
        let x: Vec<f32> = values(rng, sizes.iter().product());
        let tables = Tables::<f32>::random(device, rng, Turn::of(Kind::Narrow, interleaved, 64), sizes);
        let there = Tensor::upload(device, &x, sizes, Layout::Dense);
        let (mut turned, mut back) =
            (Tensor::poisoned(device, sizes, Layout::Dense), Tensor::poisoned(device, sizes, Layout::Dense));
        let run = |from: &Tensor<f32>, to: &mut Tensor<f32>, conjugate: bool| {
            let rope = Rope { conjugate, ..tables.rope(HeadsOrder::TokensFirst) };
            let heads = Heads { x: from.view(), affine: Default::default(), y: to.view_mut() };
            launch(device, Some(heads), None, rope, HeadsOrder::TokensFirst, None, Stream::default())
                .unwrap();
        };
        run(&there, &mut turned, false);
        run(&turned, &mut back, true);
        assert_ne!(turned.download(), x);
        for (got, wanted) in back.download().iter().zip(&x) {
            assert!((got - wanted).abs() < 2e-6, "{got} is not {wanted}");
        }
    }
}

fn batch_invariance(device: &Device) {
    let (d, h, s, rng) = (64, 5, 300, &mut random(seed()));
    let x: Vec<f16> = values(rng, s * h * d);
    let tables = Tables::<f16>::random(device, rng, Turn::of(Kind::Wide, false, d), [1, s, h, d]);
    let run = |x: &[f16], tokens: std::ops::Range<usize>| {
        let sizes = [1, tokens.len(), h, d];
        let (from, mut to) = (
            Tensor::upload(device, x, sizes, Layout::Dense),
            Tensor::<f16>::poisoned(device, sizes, Layout::Dense),
        );
        let table = |i: usize| {
            let width = d as i64;
            tables.single[i]
                .view_strided(tokens.start * d, &[tokens.len() as i64, width], &[width, 1])
                .unwrap()
        };
        let rope = Rope::new(Angles::Tables { cos: table(0), sin: table(1) }, false);
        let heads = Heads { x: from.view(), affine: Default::default(), y: to.view_mut() };
        launch(device, Some(heads), None, rope, HeadsOrder::TokensFirst, None, Stream::default()).unwrap();
        to.download()
    };
    let all = run(&x, 0..s);
    for token in [0, 1, 150, s - 1] {
        let part = token * h * d..(token + 1) * h * d;
        same_bits(&run(&x[part.clone()], token..token + 1), &all[part]);
    }
}
