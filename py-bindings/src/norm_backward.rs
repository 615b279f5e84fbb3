//! What the gradients of norms have in common: their arguments, results and workspace.

use crate::boundary::Args;
use crate::device::Location;
use crate::tensor::Tensor;
use oxiwarp::{Device, ParameterGradients, Stream, View, ViewMut, norm_backward_workspace};

/// `Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor? dsum`; an RMSNorm has no bias.
pub struct Operands {
    op: &'static str,
    dy: Tensor,
    x: Tensor,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    dsum: Option<Tensor>,
}

/// The views of a call, and where it runs.
pub struct Call<'a> {
    pub device: Device,
    pub stream: Stream<'static>,
    pub dy: View<'a>,
    pub x: View<'a>,
    pub weight: Option<View<'a>>,
    pub dsum: Option<View<'a>>,
    pub dx: ViewMut<'a>,
    pub gradients: ParameterGradients<'a>,
}

/// dx, dweight, dbias; without elements where one is not wanted.
pub struct Results(pub [Tensor; 3]);

impl Operands {
    pub fn read(op: &'static str, args: &mut Args, with_bias: bool) -> Self {
        let (dy, x, weight) = (args.tensor("dy"), args.tensor("x"), args.optional_tensor("weight"));
        let bias = if with_bias { args.optional_tensor("bias") } else { None };
        Operands { op, dy, x, weight, bias, dsum: args.optional_tensor("dsum") }
    }

    /// Allocates, and hands everything to `launch`.
    pub fn run(
        &self,
        [dweight, dbias]: [bool; 2],
        launch: impl FnOnce(Call) -> oxiwarp::Result<()>,
    ) -> Result<Results, String> {
        let place = self.x.location()?;
        for tensor in [Some(&self.dy), self.weight.as_ref(), self.bias.as_ref(), self.dsum.as_ref()] {
            tensor.map_or(Ok(()), |tensor| tensor.expect_on(place))?;
        }
        let dx = self.x.empty_like("dx")?;
        let dweight_out = self.parameter("dweight", self.weight.as_ref(), dweight)?;
        let dbias_out = self.parameter("dbias", self.bias.as_ref().or(self.weight.as_ref()), dbias)?;
        self.launch(place, [&dx, &dweight_out, &dbias_out], [dweight, dbias], launch)?;
        Ok(Results([dx, dweight_out, dbias_out]))
    }

    fn launch(
        &self,
        place: Location,
        [dx, dweight, dbias]: [&Tensor; 3],
        wanted: [bool; 2],
        launch: impl FnOnce(Call) -> oxiwarp::Result<()>,
    ) -> Result<(), String> {
        let (device, stream) = place.device_and_stream()?;
        let (x, count) = (self.x.view()?, wanted.iter().filter(|&&wanted| wanted).count());
        let shape = if wanted[0] { dweight.sizes()? } else { dbias.sizes()? };
        let workspace = match count {
            0 => None,
            _ => Some(
                self.x
                    .empty_f32("workspace", &[norm_backward_workspace(&device, &x, shape, count) as i64])?,
            ),
        };
        let gradients = ParameterGradients {
            dweight: output(wanted[0], dweight)?,
            dbias: output(wanted[1], dbias)?,
            workspace: workspace.as_ref().map(Tensor::view_mut).transpose()?,
        };
        let call = Call {
            device,
            stream,
            dy: self.dy.view_like(&x)?,
            x,
            weight: self.weight.as_ref().map(|weight| weight.parameter_view(&x)).transpose()?,
            dsum: self.dsum.as_ref().map(|dsum| dsum.view_like(&x)).transpose()?,
            dx: dx.view_mut()?,
            gradients,
        };
        launch(call).map_err(|error| error.to_string())
    }

    /// The gradient of a parameter, of its shape and dtype.
    fn parameter(&self, name: &'static str, like: Option<&Tensor>, wanted: bool) -> Result<Tensor, String> {
        match like {
            _ if !wanted => self.x.empty(name, &[0]),
            Some(parameter) => parameter.empty_like(name),
            None => {
                Err(format!("{}: {name} is wanted, and there is no parameter that says its shape", self.op))
            }
        }
    }
}

fn output(wanted: bool, tensor: &Tensor) -> Result<Option<ViewMut<'_>>, String> {
    wanted.then(|| tensor.view_mut()).transpose()
}

impl Results {
    /// Gives them away, the first `count` of them.
    ///
    /// # Safety
    /// `stack` has places for so many results.
    pub unsafe fn into_stack(self, stack: *mut u64, count: usize) {
        for (at, result) in self.0.into_iter().take(count).enumerate() {
            // SAFETY: as the caller promises.
            unsafe { *stack.add(at) = result.into_raw() };
        }
    }
}
