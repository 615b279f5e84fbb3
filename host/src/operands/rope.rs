//! The parameters of a rotary position embedding (RoPE). This file checks these parameters and converts them
//! to a kernel argument.
use kernels_gpu::heads::params::{Positions, Rotary};
use kernels_gpu::layout::heads::Heads as HeadsArg;

use super::heads::{Extent, HeadsOrder};
use super::rows::Operand;
use crate::arguments::{Argument, Source};
use crate::{Device, Dtype, Error, Result, View};

/// The rotation angles of RoPE. A table of angles has the shape `[S, R]`, `[B, S, R]` or `[B, S, heads, R]`.
/// R is the number of table values per token and head. If `q` and `k` have the shape `[B, heads, S, D]`, a
/// table with four dimensions has the shape `[B, heads, S, R]`. The batches and heads of a table may have the
/// size 1.
#[derive(Clone, Copy, Debug)]
pub enum Angles<'a> {
    /// Tables of cosines and sines, in f32 or in the dtype of `q` and `k`. The size R of the last dimension
    /// is the number of rotated columns per head, or half of this number.
    Tables {
        /// Cosines.
        cos: View<'a>,
        /// Sines.
        sin: View<'a>,
    },
    /// A table of complex numbers, passed as f32 values in which cosines and sines alternate. The size R of
    /// the last dimension is the number of rotated columns per head.
    Complex(View<'a>),
    /// No table. For a pair of columns, the kernel computes the angle as the frequency of the pair times the
    /// position of the token.
    Frequencies {
        /// One frequency per pair of columns, in f32, with the shape `[columns / 2]`.
        frequencies: View<'a>,
        /// Position of each token in f32, `[S]` or `[B, S]`. By default, the positions are 0, 1, 2 and so on.
        positions: Option<View<'a>>,
    },
}

/// The parameters of a rotary position embedding (RoPE).
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// The source of the angles.
    pub angles: Angles<'a>,
    /// For each rotated token, the row of the tables with its angles: i64 or i32, `[S]` or `[B, S]`. The
    /// tables then have the shape `[rows, R]`, with any number of rows. A negative position, or one that the
    /// tables do not have, means the last row. `None` means that token `t` has row `t` of the tables.
    pub positions: Option<View<'a>>,
    /// Number of rotated columns per head. A kernel copies all other columns. With `None`, all columns are
    /// rotated.
    pub columns: Option<i64>,
    /// Whether the two columns of a rotated pair are adjacent. If false, their distance is half of the
    /// rotated columns, as in transformers' `rotate_half`.
    pub interleaved: bool,
    /// Index of the first token to rotate, or `None` to rotate all tokens. The tables, or the positions if
    /// there are any, have one entry for each rotated token. They thus determine how many tokens are rotated.
    pub offset: Option<i64>,
    /// Whether to round both products to the dtype of `q` before they are added, as the eager PyTorch modules
    /// of the models do. If false, or if the tables are f32, only the sum is rounded.
    pub exact: bool,
    /// Whether to rotate by the negative angle, as the backward pass does.
    pub conjugate: bool,
}

impl<'t> Rope<'t> {
    /// Takes the parameters of a rotation from the arguments of a call. Returns the parameters, and
    /// separately the argument `exact` (whether to round after each step, as PyTorch does). If the call has
    /// no angles, returns `None` instead of the parameters, because nothing is rotated.
    #[inline]
    pub(crate) fn take_optional<S: Source<'t>>(source: &mut S) -> Result<(Option<Self>, bool), S::Error> {
        let at = source.position();
        let tables = [source.optional()?, source.optional()?];
        let positions = source.optional()?;
        let (kind, columns, interleaved) = (source.int()?, source.int()?, source.bool()?);
        let (offset, exact, conjugate) = (source.int()?, source.bool()?, source.bool()?);
        let angles = match (kind, tables) {
            (_, [None, _]) if positions.is_some() => return Err(source.given_without(at + 2, at)),
            (_, [None, _]) => return Ok((None, exact)),
            (0, [Some(cos), Some(sin)]) => Angles::Tables { cos, sin },
            (0, [Some(_), None]) => return Err(source.missing(at + 1)),
            (1, [Some(table), _]) => Angles::Complex(table),
            (_, [Some(frequencies), positions]) => Angles::Frequencies { frequencies, positions },
        };
        let (columns, offset) = (Some(columns).filter(|&n| n > 0), Some(offset).filter(|&n| n >= 0));
        Ok((Some(Self { angles, positions, columns, interleaved, offset, exact, conjugate }), exact))
    }
}

/// Takes a required rotation from the arguments of a call.
impl<'t> Argument<'t> for Rope<'t> {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        let at = source.position();
        let (rope, _) = Self::take_optional(source)?;
        rope.ok_or_else(|| source.missing(at))
    }
}

/// Takes the number of columns per head from the arguments of a call. If the number in the call is 0 or
/// negative, the result is `None`.
impl<'t> Argument<'t> for Option<i64> {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        Ok(Some(source.int()?).filter(|&columns| columns > 0))
    }
}

impl<'a> Rope<'a> {
    /// Returns a `Rope` that rotates all columns of all tokens. The kernel then rounds after the same steps
    /// as the eager PyTorch modules of the models.
    pub fn new(angles: Angles<'a>, interleaved: bool) -> Self {
        let (positions, columns, offset) = (None, None, None);
        Self { angles, positions, columns, interleaved, offset, exact: true, conjugate: false }
    }

    /// Returns the operands that an output must not overlap.
    pub(crate) fn operands(&self) -> [Option<Operand<'_, 'a>>; 3] {
        let [first, second] = match &self.angles {
            Angles::Tables { cos, sin } => [Some(("cos", cos)), Some(("sin", sin))],
            Angles::Complex(table) => [Some(("cos", table)), None],
            Angles::Frequencies { frequencies, positions } => {
                [Some(("frequencies", frequencies)), positions.as_ref().map(|view| ("positions", view))]
            }
        };
        [first, second, self.positions.as_ref().map(|view| ("positions", view))]
    }

    /// Checks the parameters of the rotation, and returns them as kernel arguments. Sets `vec4s` to false if
    /// a kernel cannot read the tables, or cannot access the rotated columns, four elements at a time.
    pub(crate) fn check(
        &self,
        op: &'static str,
        device: &Device,
        extent: &Extent,
        vec4s: &mut bool,
    ) -> Result<(Rotary, Positions)> {
        let columns = self.columns.unwrap_or(extent.dim);
        if columns < 2 || columns % 2 != 0 || columns > extent.dim {
            let expected = "an even number of columns, at most a head's";
            return Err(Error::Value { op, arg: "rotary_dim", got: columns as f64, expected });
        }
        let chosen = self.positions.is_some();
        let tables = Tables { op, device, extent, columns, offset: self.offset, chosen };
        let (angles, [cos, sin], tokens, single) = match &self.angles {
            Angles::Tables { cos, sin } => tables.real(cos, sin, vec4s)?,
            Angles::Complex(table) => {
                if !self.interleaved {
                    let expected = "true for complex tables";
                    return Err(Error::Value { op, arg: "interleaved", got: 0.0, expected });
                }
                table.expect_dtype(op, "cos", Dtype::F32)?;
                let (cos, tokens) = tables.table("cos", table, &[columns], vec4s)?;
                (Rotary::COMPLEX, [cos, HeadsArg::ABSENT], tokens, true)
            }
            Angles::Frequencies { .. } if chosen => {
                let why = "positions is given, expected none for frequencies".into();
                return Err(Error::Unsupported { op, why });
            }
            Angles::Frequencies { frequencies, positions } => {
                tables.frequencies(frequencies, positions.as_ref(), vec4s)?
            }
        };
        *vec4s &= columns % 4 == 0 && (self.interleaved && angles == Rotary::WIDE || columns % 8 == 0);
        // With positions, `tokens` is the number of rows of the tables.
        let (positions, tokens) = match &self.positions {
            Some(positions) => tables.positions(positions, tokens)?,
            None => (Positions::NONE, tokens),
        };
        let rotary = Rotary {
            cos,
            sin,
            first: self.offset.unwrap_or(0) as u32,
            tokens: tokens as u32,
            dim: columns as u32,
            angles,
            halves: u32::from(!self.interleaved),
            single: u32::from(single),
            round_each: u32::from(self.exact && !single),
            conjugate: u32::from(self.conjugate),
        };
        Ok((rotary, positions))
    }
}

/// Checked rotation angles, as a tuple of four elements:
///
/// - a constant of [`Rotary`] that tells the kernel the source of the angles, for example complex numbers;
/// - two tensors, such as cosines and sines;
/// - the number of tokens;
/// - whether the angles are f32.
type CheckedAngles = (u32, [HeadsArg; 2], i64, bool);

/// The properties of a call against which its tables of angles are checked.
struct Tables<'v> {
    op: &'static str,
    device: &'v Device,
    extent: &'v Extent,
    columns: i64,
    offset: Option<i64>,
    /// Whether positions choose the rows of the tables.
    chosen: bool,
}

impl Tables<'_> {
    fn real(&self, cos: &View, sin: &View, vec4s: &mut bool) -> Result<CheckedAngles> {
        if ![self.extent.dtype, Dtype::F32].contains(&cos.dtype()) {
            let expected = self.extent.dtype.or_f32("the heads");
            return Err(Error::Dtype { op: self.op, arg: "cos", got: cos.dtype(), expected });
        }
        sin.expect_dtype(self.op, "sin", cos.dtype())?;
        sin.expect_shape(self.op, "sin", cos.shape())?;
        let widths = [self.columns, self.columns / 2];
        let (cos_arg, tokens) = self.table("cos", cos, &widths, vec4s)?;
        let (sin_arg, _) = self.table("sin", sin, &widths, vec4s)?;
        let wide = cos.shape().last() == Some(&self.columns);
        let angles = if wide { Rotary::WIDE } else { Rotary::NARROW };
        // The last element of the returned tuple says whether the tables of angles are f32. It has no effect
        // if `q` and `k` are also f32.
        Ok((angles, [cos_arg, sin_arg], tokens, cos.dtype() == Dtype::F32))
    }

    fn frequencies(
        &self,
        frequencies: &View,
        positions: Option<&View>,
        vec4s: &mut bool,
    ) -> Result<CheckedAngles> {
        let (op, pairs) = (self.op, self.columns / 2);
        frequencies.expect_on(op, "frequencies", self.device)?;
        frequencies.expect_dtype(op, "frequencies", Dtype::F32)?;
        frequencies.expect_shape(op, "frequencies", &[pairs])?;
        if frequencies.strides()[0] != 1 && pairs > 1 {
            return Err(frequencies.bad_strides(op, "frequencies", "it must be contiguous"));
        }
        let cos = HeadsArg { base: frequencies.ptr().cast_mut().cast(), ..HeadsArg::ABSENT };
        *vec4s &= cos.is_vec4s(4);
        let Some(positions) = positions else {
            let tokens =
                self.tokens("frequencies", frequencies, self.extent.tokens - self.offset.unwrap_or(0))?;
            return Ok((Rotary::COUNTED, [cos, HeadsArg::ABSENT], tokens, true));
        };
        positions.expect_dtype(op, "positions", Dtype::F32)?;
        positions.expect_on(op, "positions", self.device)?;
        let sin = self.of_tokens("positions", positions)?;
        let tokens = positions.shape()[positions.shape().len() - 1];
        Ok((Rotary::POSITIONED, [cos, sin], tokens, true))
    }

    /// Checks a table of angles. The size of the table's last dimension must be one of `widths`. Returns the
    /// kernel argument for the table, and the table's number of tokens.
    fn table(
        &self,
        arg: &'static str,
        table: &View,
        widths: &[i64],
        vec4s: &mut bool,
    ) -> Result<(HeadsArg, i64)> {
        table.expect_on(self.op, arg, self.device)?;
        let (shape, strides) = (table.shape(), table.strides());
        let rank = shape.len();
        let of = |dim: Option<usize>| dim.map_or((1, 0), |dim| (shape[dim], strides[dim]));
        let dims = match (rank, self.extent.order) {
            (2, _) => [None, Some(0), None],
            _ if self.chosen => {
                let expected = "two dimensions, because there are positions";
                return Err(self.bad_shape(arg, table, expected));
            }
            (3, _) => [Some(0), Some(1), None],
            (4, HeadsOrder::TokensFirst) => [Some(0), Some(1), Some(2)],
            (4, HeadsOrder::HeadsFirst) => [Some(0), Some(2), Some(1)],
            _ => return Err(self.bad_shape(arg, table, "two to four dimensions")),
        };
        if !widths.contains(&shape[rank - 1]) {
            return Err(self.bad_shape(arg, table, &format!("a last dimension of one of {widths:?}")));
        }
        if strides[rank - 1] != 1 && shape[rank - 1] > 1 {
            return Err(table.bad_strides(self.op, arg, "its last dimension must be contiguous"));
        }
        let [(batches, batch), (tokens, token), (heads, head)] = dims.map(of);
        let heads_arg = self.broadcast(arg, table, [batches, tokens, heads], [batch, token, head])?;
        if !self.chosen {
            self.tokens(arg, table, tokens)?;
        } else if tokens < 1 || tokens > i64::from(i32::MAX) {
            return Err(self.bad_shape(arg, table, "between 1 and 2^31 - 1 rows"));
        }
        *vec4s &= heads_arg.is_vec4s(table.dtype().size());
        Ok((heads_arg, tokens))
    }

    /// Checks the positions that choose the rows of tables with `rows` rows. Returns the kernel argument for
    /// the positions, and their number per batch.
    fn positions(&self, positions: &View, rows: i64) -> Result<(Positions, i64)> {
        let (op, arg) = (self.op, "positions");
        positions.expect_on(op, arg, self.device)?;
        if !Dtype::INDICES.contains(&positions.dtype()) {
            return Err(Error::Dtype { op, arg, got: positions.dtype(), expected: "i64 or i32".into() });
        }
        let HeadsArg { base, batch_stride, token_stride, .. } = self.of_tokens(arg, positions)?;
        let tokens = positions.shape()[positions.shape().len() - 1];
        let bytes = positions.dtype().size() as u32;
        Ok((
            Positions { base: base.cast_const(), batch_stride, token_stride, bytes, rows: rows as u32 },
            tokens,
        ))
    }

    /// Returns the kernel argument for a tensor with one number per token, of shape `[S]` or `[B, S]`.
    fn of_tokens(&self, arg: &'static str, view: &View) -> Result<HeadsArg> {
        let (sizes, strides) = match (view.shape(), view.strides()) {
            (&[tokens], &[stride]) => ([1, tokens, 1], [0, stride, 0]),
            (&[batches, tokens], &[batch, stride]) => ([batches, tokens, 1], [batch, stride, 0]),
            _ => return Err(self.bad_shape(arg, view, "[S] or [B, S]")),
        };
        let of_tokens = self.broadcast(arg, view, sizes, strides)?;
        self.tokens(arg, view, sizes[1])?;
        Ok(of_tokens)
    }

    /// Returns the kernel argument for a table of angles. The table's number of batches must be 1, or equal
    /// to the number of batches of `q` and `k`. Its number of heads must be 1, or equal to the number of
    /// heads of `q` and `k`.
    fn broadcast(
        &self,
        arg: &'static str,
        table: &View,
        [batches, tokens, heads]: [i64; 3],
        strides: [i64; 3],
    ) -> Result<HeadsArg> {
        let Extent { batches: all_batches, heads: all_heads, .. } = *self.extent;
        if ![1, all_batches].contains(&batches) || ![1, all_heads].contains(&heads) {
            let expected = format!("one for {all_batches} batches and {all_heads} heads, or for all of them");
            return Err(self.bad_shape(arg, table, &expected));
        }
        let stride = |size: i64, stride: i64| if size == 1 { 0 } else { stride };
        Ok(HeadsArg {
            base: table.ptr().cast_mut().cast(),
            batch_stride: stride(batches, strides[0]),
            token_stride: stride(tokens, strides[1]),
            head_stride: stride(heads, strides[2]),
        })
    }

    /// Checks `tokens`, the number of tokens in a table of angles, and returns it. Without an offset, `q` and
    /// `k` must have exactly `tokens` tokens. With an offset, they must have at least `offset + tokens`
    /// tokens.
    fn tokens(&self, arg: &'static str, table: &View, tokens: i64) -> Result<i64> {
        let (all, op) = (self.extent.tokens, self.op);
        match self.offset {
            None if tokens != all => Err(self.bad_shape(arg, table, &format!("{all} tokens"))),
            Some(offset) if offset < 0 || offset > all || tokens < 0 || tokens > all - offset => {
                let expected = "the number of a token, with those of the tables behind it";
                Err(Error::Value { op, arg: "offset", got: offset as f64, expected })
            }
            _ => Ok(tokens),
        }
    }

    fn bad_shape(&self, arg: &'static str, view: &View, expected: &str) -> Error {
        Error::Shape { op: self.op, arg, got: view.shape().to_vec(), expected: expected.into() }
    }
}
