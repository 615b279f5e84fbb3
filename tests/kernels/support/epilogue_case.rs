//! Test cases of ops that combine a matrix product and an epilogue. A case can call the op, and also `linear`
//! followed by a separate op.
use oxiwarp::{
    Activation, Device, Element, Gate, GatedActivation, GatedResidual, Roundings, Stream, View, activation,
    gated_activation, gated_residual, linear, linear_activation, linear_gated_activation,
    linear_gated_residual,
};
use oxiwarp_tests::tensor::{Layout, Matrix};

use super::linear_case::{LinearCase, LinearInputs};

/// An epilogue and its operands. The residual has the rows and columns of the result.
pub enum Epilogue<'a, T> {
    Activation(Activation),
    Gated(Activation, Gate),
    Residual { residual: &'a Matrix<T>, gate: Option<View<'a>>, batches: i64 },
}

impl<T: Element> Epilogue<'_, T> {
    /// Returns the number of columns of the result.
    fn columns(&self, p: &LinearCase) -> i64 {
        if let Self::Gated(..) = self { p.n / 2 } else { p.n }
    }

    /// Runs the op with the epilogue, and returns its result.
    pub fn run(
        &self,
        device: &Device,
        inputs: &LinearInputs<T>,
        p: &LinearCase,
        rounds: Roundings,
    ) -> Vec<T> {
        let columns = self.columns(p);
        let layout = Layout { offset: p.y.offset, stride: columns + p.y.gap };
        let mut y = Matrix::<T>::poisoned(device, [p.m, columns], layout);
        let (weight, stream) = (inputs.weight.view(), Stream::default());
        let bias = inputs.bias.view_strided(p.bias_offset, &[p.n], &[1]).expect("inside");
        let bias = p.bias.then_some(bias);
        match *self {
            Self::Activation(f) => {
                let x = inputs.x.view();
                linear_activation(device, x, weight, bias, y.view_mut(), f, rounds, stream)
            }
            Self::Gated(activation, gate) => {
                let params = GatedActivation { activation, gate, roundings: rounds };
                let x = inputs.x.view();
                linear_gated_activation(device, x, weight, bias, y.view_mut(), params, stream)
            }
            Self::Residual { residual, gate, batches } => {
                let (x, residual) = (inputs.x.view_batches(batches), residual.view_batches(batches));
                let y = y.view_batches_mut(batches);
                linear_gated_residual(device, x, weight, bias, residual, gate, y, rounds, stream)
            }
        }
        .expect("a launch");
        y.download()
    }

    /// Applies the epilogue to `product`, the result of `linear`, by a call of the separate op.
    pub fn apply(&self, device: &Device, product: &[T], p: &LinearCase) -> Vec<T> {
        let (columns, stream) = (self.columns(p), Stream::default());
        let product = Matrix::upload(device, product, [p.m, p.n], Layout::dense(p.n));
        let mut y = Matrix::<T>::poisoned(device, [p.m, columns], Layout::dense(columns));
        match *self {
            Self::Activation(f) => {
                activation(device, product.view(), None, y.view_mut(), f, Roundings::Exact, stream)
            }
            Self::Gated(activation, gate) => {
                let params = GatedActivation { activation, gate, roundings: Roundings::Exact };
                gated_activation(device, product.view(), None, None, y.view_mut(), params, stream)
            }
            Self::Residual { residual, gate, batches } => {
                let ones = device.upload(&[T::from_f32(1.0)]).expect("memory");
                let gate = gate.unwrap_or(ones.view(&[1]).expect("inside"));
                let views = (residual.view_batches(batches), product.view_batches(batches));
                let (params, y) = (GatedResidual::default(), y.view_batches_mut(batches));
                gated_residual(device, views.0, views.1, gate.into(), None, y, params, stream)
            }
        }
        .expect("a launch");
        y.download()
    }
}

/// Runs `linear` and returns its result, with the tensors of `inputs`.
pub fn product<T: Element>(device: &Device, inputs: &LinearInputs<T>, p: &LinearCase) -> Vec<T> {
    let mut y = Matrix::<T>::poisoned(device, [p.m, p.n], Layout::dense(p.n));
    let bias = inputs.bias.view_strided(p.bias_offset, &[p.n], &[1]).expect("inside");
    let (x, weight) = (inputs.x.view(), inputs.weight.view());
    linear(device, x, weight, p.bias.then_some(bias), y.view_mut(), Stream::default()).expect("a launch");
    y.download()
}
