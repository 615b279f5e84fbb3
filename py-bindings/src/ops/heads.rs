//! What the operators on queries and keys share: their arguments, their outputs, the call of the host.

use crate::boundary::Args;
use crate::tensor::Tensor;
use oxiwarp::{Affine, Angles, Dtype, Heads, HeadsOrder, QkNormRope, Rope, View};

/// Queries or keys with the parameters of their norm.
pub struct Side {
    pub x: Tensor,
    pub weight: Option<Tensor>,
    pub bias: Option<Tensor>,
}

impl Side {
    /// Queries or keys without a norm.
    pub fn plain(x: Tensor) -> Self {
        Self { x, weight: None, bias: None }
    }

    /// The host's argument, with the result in `out`.
    fn heads<'a>(&'a self, out: &'a Tensor) -> Result<Heads<'a>, String> {
        let x = self.x.view()?;
        let parameter = |tensor: &'a Option<Tensor>| {
            tensor.as_ref().map(|tensor| tensor.view_or_f32(x.dtype(), "q")).transpose()
        };
        let affine = Affine { weight: parameter(&self.weight)?, bias: parameter(&self.bias)? };
        Ok(Heads { x, affine, y: out.view_mut_like(&x)? })
    }
}

/// `Tensor? cos, Tensor? sin, int angles, int rotary_dim, bool interleaved, int offset, bool exact, bool conjugate,
/// bool heads_first, int head_dim`, as every operator here has them.
pub struct Rotation {
    cos: Option<Tensor>,
    sin: Option<Tensor>,
    angles: i64,
    columns: i64,
    interleaved: bool,
    offset: i64,
    exact: bool,
    conjugate: bool,
    heads_first: bool,
    head_dim: i64,
}

impl Rotation {
    pub fn read(args: &mut Args) -> Self {
        Self {
            cos: args.optional_tensor("cos"),
            sin: args.optional_tensor("sin"),
            angles: args.int(),
            columns: args.int(),
            interleaved: args.bool(),
            offset: args.int(),
            exact: args.bool(),
            conjugate: args.bool(),
            heads_first: args.bool(),
            head_dim: args.int(),
        }
    }

    /// An error without tables of angles, which only a norm can do without.
    pub fn expect_tables(&self, op: &str) -> Result<(), String> {
        if self.cos.is_none() { Err(format!("{op}: cos is missing")) } else { Ok(()) }
    }

    /// How the tensors are laid out and rounded, with the norm of `params`.
    pub fn params(&self, params: QkNormRope) -> QkNormRope {
        let order = if self.heads_first { HeadsOrder::HeadsFirst } else { HeadsOrder::TokensFirst };
        let head_dim = (self.head_dim > 0).then_some(self.head_dim);
        QkNormRope { order, head_dim, exact: self.exact, ..params }
    }

    /// The host's argument, over the views of both tensors.
    fn rope<'a>(
        &self,
        cos: Option<View<'a>>,
        sin: Option<View<'a>>,
        op: &str,
    ) -> Result<Option<Rope<'a>>, String> {
        let Some(cos) = cos else { return Ok(None) };
        let angles = match (self.angles, sin) {
            (0, Some(sin)) => Angles::Tables { cos, sin },
            (0, None) => return Err(format!("{op}: sin is missing")),
            (1, _) => Angles::Complex(cos),
            (_, positions) => Angles::Frequencies { frequencies: cos, positions },
        };
        Ok(Some(Rope {
            angles,
            columns: (self.columns > 0).then_some(self.columns),
            interleaved: self.interleaved,
            offset: (self.offset >= 0).then_some(self.offset),
            exact: self.exact,
            conjugate: self.conjugate,
        }))
    }

    /// Calls `host` with the views of everything, after a check that all is on one device.
    pub fn call<'t>(
        &'t self,
        op: &str,
        sides: [Option<(&Side, &Tensor)>; 2],
        host: impl FnOnce(Call<'_>) -> oxiwarp::Result<()>,
    ) -> Result<(), String> {
        let Some((first, _)) = sides[0] else { return Err(format!("{op}: q is missing")) };
        let place = first.x.location()?;
        let of_sides = sides
            .iter()
            .flatten()
            .flat_map(|(side, out)| [Some(&side.x), side.weight.as_ref(), side.bias.as_ref(), Some(*out)]);
        for tensor in of_sides.chain([self.cos.as_ref(), self.sin.as_ref()]).flatten() {
            tensor.expect_on(place)?;
        }
        // Frequencies and positions are float32.
        let dtype = if self.angles < 2 { first.x.view()?.dtype() } else { Dtype::F32 };
        let table = |tensor: Option<&'t Tensor>| {
            tensor.map(|tensor| tensor.view_or_f32(dtype, "the heads")).transpose()
        };
        let (cos, sin) = (table(self.cos.as_ref())?, table(self.sin.as_ref())?);
        let (device, stream) = place.device_and_stream()?;
        let rope = self.rope(cos, sin, op)?;
        let [q, k] = sides.map(|side| side.map(|(side, out)| side.heads(out)).transpose());
        let call = Call { device: &device, q: q?, k: k?, rope, stream };
        host(call).map_err(|error| error.to_string())
    }
}

/// The host's arguments.
pub struct Call<'a> {
    pub device: &'a oxiwarp::Device,
    pub q: Option<Heads<'a>>,
    pub k: Option<Heads<'a>>,
    pub rope: Option<Rope<'a>>,
    pub stream: oxiwarp::Stream<'static>,
}
