//! Shared code of the tests of `rope` and `qk_norm_rope`: head tensors (queries or keys) in every layout, and
//! cosine and sine tables of every kind.
use oxiwarp::{Angles, Buffer, Device, Element, HeadsOrder, Rope, View};
use oxiwarp_tests::tensor::values;
use rand::Rng as _;
use rand::rngs::StdRng;

/// The sizes of a head tensor, always in the order `[batches, tokens, heads, dim]`. The tensor may have
/// another order of dimensions.
pub type Sizes = [usize; 4];

/// A head tensor inside a larger buffer, with its position.
pub struct Tensor<T> {
    pub buffer: Buffer<T>,
    pub offset: usize,
    pub shape: [i64; 4],
    pub strides: [i64; 4],
    sizes: Sizes,
    order: HeadsOrder,
}

/// The memory layout of a head tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    /// `[B, S, heads, D]`, dense.
    Dense,
    /// One of the three tensors in `[B, S, 3, heads, D]`.
    Fused,
    /// The layout is `[B, S, heads, D]`. The tensor starts at element `offset` of a buffer, and `gap` unused
    /// elements follow each head.
    At { offset: usize, gap: usize },
    /// `[B, heads, S, D]`, dense.
    HeadsFirst,
    /// The shape is `[B, heads, S, D]`. The tensor is a transposed view of a dense tensor `[B, S, heads, D]`.
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
    /// Uploads `values` with the layout `layout`. `values` has the order `[batches, tokens, heads, dim]`. All
    /// other elements of the buffer get a NaN bit pattern that no kernel writes.
    pub fn upload(device: &Device, values: &[T], sizes: Sizes, layout: Layout) -> Self {
        let [b, s, h, d] = sizes.map(|size| size as i64);
        // The strides of batch, token and head.
        let (offset, [i, j, k]) = match layout {
            Layout::Dense | Layout::Transposed => (0, [s * h * d, h * d, d]),
            Layout::Fused => ((h * d) as usize, [s * 3 * h * d, 3 * h * d, d]),
            Layout::At { offset, gap } => (offset, [s * h, h, 1].map(|heads| heads * (d + gap as i64))),
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

    /// Makes a tensor for results that contains only poison.
    pub fn poisoned(device: &Device, sizes: Sizes, layout: Layout) -> Self {
        Self::upload(device, &vec![T::from_bits(u32::MAX); sizes.iter().product()], sizes, layout)
    }

    /// Returns the buffer index of each element, ordered by token.
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

    /// Returns the elements of the tensor in the order `[batches, tokens, heads, dim]`. Panics if a kernel
    /// wrote an element of the buffer outside the tensor.
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

/// The kinds of tables that a rotation can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// One entry per column.
    Wide,
    /// One entry per pair of columns.
    Narrow,
    /// One complex number per pair of columns.
    Complex,
}

/// The positions of a rotation, which choose the rows of its tables.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// Number of rows of the tables.
    pub rows: usize,
    /// Whether the positions are i64. Otherwise they are i32.
    pub long: bool,
    /// Whether each batch has its own positions.
    pub by_batch: bool,
}

/// A rotation and its kind of tables.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    pub kind: Kind,
    pub interleaved: bool,
    /// Number of rotated columns.
    pub columns: usize,
    /// Index of the first token that is rotated. If this index is not 0, the last token is not rotated
    /// either.
    pub offset: usize,
    pub by_batch: bool,
    pub by_head: bool,
    /// Whether the tables are in f32 independent of the heads' dtype.
    pub single: bool,
    /// The positions. With positions, the tables have no batches and no heads.
    pub chosen: Option<Chosen>,
}

impl Rotation {
    pub fn of(kind: Kind, interleaved: bool, columns: usize) -> Self {
        let (by_batch, by_head, single, chosen) = (false, false, true, None);
        Self { kind, interleaved, columns, offset: 0, by_batch, by_head, single, chosen }
    }

    /// Returns the index of the pair that contains `column`, and whether `column` is the second column of
    /// this pair.
    pub fn pair(&self, column: usize) -> (usize, bool) {
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

/// The cosine table and the sine table of a rotation. On the device, they have the layout that the op reads.
/// On the host, they have one value per pair of columns.
pub struct Tables<T> {
    pub rotation: Rotation,
    cos: Vec<f32>,
    sin: Vec<f32>,
    sizes: Sizes,
    pub single: [Buffer<f32>; 2],
    same: [Buffer<T>; 2],
    /// The positions, of shape `[batches, tokens]`, if there are any.
    positions: Vec<i64>,
    position_sizes: [usize; 2],
    long: Buffer<i64>,
    short: Buffer<i32>,
}

impl<T: Element> Tables<T> {
    /// Makes tables of random angles for heads of `sizes`.
    pub fn random(device: &Device, rng: &mut StdRng, rotation: Rotation, [b, s, h, _]: Sizes) -> Self {
        let pairs = rotation.columns / 2;
        let tokens = if rotation.offset == 0 { s } else { s - rotation.offset - 1 };
        let sizes = match rotation.chosen {
            Some(Chosen { rows, .. }) => [1, rows, 1, pairs],
            None => {
                [if rotation.by_batch { b } else { 1 }, tokens, if rotation.by_head { h } else { 1 }, pairs]
            }
        };
        let position_sizes =
            [if rotation.chosen.is_some_and(|chosen| chosen.by_batch) { b } else { 1 }, tokens];
        // Every fifth position is not a row of the tables, so it names the last row.
        let position = |at: usize, rng: &mut StdRng, rows: i64| match at % 10 {
            3 => rows + rng.random_range(0..1_000),
            8 => -1 - rng.random_range(0..1_000),
            _ => rng.random_range(0..rows),
        };
        let positions: Vec<i64> =
            (0..position_sizes[0] * tokens).map(|at| position(at, rng, sizes[1].max(1) as i64)).collect();
        let angles: Vec<f32> = values(rng, sizes.iter().product());
        let round = |x: f32| if rotation.single { x } else { T::from_f32(x).to_f32() };
        let (cos, sin): (Vec<_>, Vec<_>) = angles.iter().map(|a| (round(a.cos()), round(a.sin()))).unzip();
        let spread = |entries: &[f32], other: &[f32]| -> Vec<f32> {
            let rows = entries.chunks(pairs).zip(other.chunks(pairs));
            rows.flat_map(|(row, other)| match rotation.kind {
                Kind::Narrow => row.to_vec(),
                Kind::Complex => row.iter().zip(other).flat_map(|(c, s)| [*c, *s]).collect(),
                Kind::Wide => (0..rotation.columns).map(|column| row[rotation.pair(column).0]).collect(),
            })
            .collect()
        };
        let laid = [spread(&cos, &sin), spread(&sin, &cos)];
        let single = laid.each_ref().map(|table| device.upload(table).expect("memory"));
        let same = laid.map(|table| {
            device.upload(&table.iter().map(|&x| T::from_f32(x)).collect::<Vec<_>>()).expect("memory")
        });
        let long = device.upload(&positions).expect("memory");
        let short: Vec<i32> = positions.iter().map(|&position| position as i32).collect();
        let short = device.upload(&short).expect("memory");
        Self { rotation, cos, sin, sizes, single, same, positions, position_sizes, long, short }
    }

    /// Returns the op's argument.
    pub fn rope(&self, order: HeadsOrder) -> Rope<'_> {
        let [b, s, h, pairs] = self.sizes.map(|size| size as i64);
        let width = if self.rotation.kind == Kind::Narrow { pairs } else { 2 * pairs };
        let (shape, strides) = match order {
            HeadsOrder::TokensFirst => ([b, s, h, width], [s * h * width, h * width, width, 1]),
            HeadsOrder::HeadsFirst => ([b, h, s, width], [s * h * width, width, h * width, 1]),
        };
        // With positions, the tables have the shape `[rows, width]`.
        let (shape, strides) = match self.rotation.chosen {
            Some(_) => (&[s, width][..], &[width, 1][..]),
            None => (&shape[..], &strides[..]),
        };
        let view = |i: usize| match self.rotation.single {
            true => self.single[i].view_strided(0, shape, strides).expect("inside"),
            false => self.same[i].view_strided(0, shape, strides).expect("inside"),
        };
        let positions = self.rotation.chosen.map(|chosen| {
            let shape = self.position_sizes.map(|size| size as i64);
            let shape = if chosen.by_batch { &shape[..] } else { &shape[1..] };
            if chosen.long { self.long.view(shape) } else { self.short.view(shape) }.expect("inside")
        });
        let angles = match self.rotation.kind {
            Kind::Complex => Angles::Complex(view(0)),
            _ => Angles::Tables { cos: view(0), sin: view(1) },
        };
        let offset = (self.rotation.offset != 0).then_some(self.rotation.offset as i64);
        Rope {
            columns: Some(self.rotation.columns as i64),
            positions,
            offset,
            ..Rope::new(angles, self.rotation.interleaved)
        }
    }

    /// Returns the rotation of `column` of a head: the cosine, the sine, whether `column` is the second
    /// column of its pair, and the index of the other column. Returns `None` if the column or the token is
    /// not rotated.
    pub fn at(&self, [b, s, h]: [usize; 3], column: usize) -> Option<(f32, f32, bool, usize)> {
        let Rotation { offset, columns, by_batch, by_head, .. } = self.rotation;
        let [_, rows, heads, pairs] = self.sizes;
        let tokens = self.position_sizes[1];
        if column >= columns || s < offset || s - offset >= tokens {
            return None;
        }
        let (pair, second) = self.rotation.pair(column);
        let h = if by_head { h } else { 0 };
        let row = match self.rotation.chosen {
            Some(chosen) => {
                let position = self.positions[(if chosen.by_batch { b * tokens } else { 0 }) + s - offset];
                usize::try_from(position).map_or(rows - 1, |position| position.min(rows - 1))
            }
            None => (if by_batch { b * tokens } else { 0 }) + s - offset,
        };
        let at = (row * heads + h) * pairs + pair;
        Some((self.cos[at], self.sin[at], second, self.rotation.partner(column)))
    }

    /// Returns the op's expected result for `x`, bit for bit.
    pub fn apply(&self, x: &[T], [_, s, h, d]: Sizes) -> Vec<T> {
        let each = !self.rotation.single && size_of::<T>() == 2;
        let round = |x: f32| if each { T::from_f32(x).to_f32() } else { x };
        let of = |at: usize| {
            let (row, column) = (at / d, at % d);
            let Some((cos, sin, second, partner)) = self.at([row / h / s, row / h % s, row % h], column)
            else {
                return x[at];
            };
            let (own, other) = (x[at].to_f32(), x[row * d + partner].to_f32());
            let other = if second { other } else { -other };
            T::from_f32(match (self.rotation.kind, second) {
                (Kind::Complex, false) => own.mul_add(cos, other * sin),
                (Kind::Complex, true) => other.mul_add(sin, own * cos),
                _ => round(own * cos) + round(other * sin),
            })
        };
        (0..x.len()).map(of).collect()
    }
}
