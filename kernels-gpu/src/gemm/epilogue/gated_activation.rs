//! Epilogue of a matrix product whose columns form two halves, `gate` and `up`. It computes `f(gate) * up`
//! with an activation function `f`.
use cuda_std::elem::Elem;

use super::Epilogue;
use super::fragments::FragmentPlace;
use crate::elementwise::activations::ActivationParams;
use crate::elementwise::functions::{Functions, Selected};
use crate::elementwise::rounded_chain::RoundedVec;

/// The kernel argument: the activation function, and which rows of the weight belong to which half.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatedActivationParams {
    /// The function of the gate.
    pub activation: ActivationParams,
    /// The first row of `w` (the weight) for each half: for the gate, and for the half that is multiplied by
    /// `f(gate)`. One of these numbers is 0, and the other one is the number of columns of the result.
    pub starts: [u32; 2],
}

/// Epilogue that computes `f(gate) * up` from `gate` and `up`, the two halves of the columns of `x wᵀ +
/// bias`. In exact mode, `gate`, `up` and `f(gate)` are rounded to the element type.
#[derive(Clone, Copy)]
pub(crate) struct GatedActivation(pub GatedActivationParams);

impl Epilogue for GatedActivation {
    const HALVES: bool = true;
    type Fetched = ();

    #[inline(always)]
    fn starts(&self) -> [u32; 2] {
        self.0.starts
    }

    #[inline(always)]
    unsafe fn fetch(&self, _at: FragmentPlace) {}

    #[inline(always)]
    fn apply<T: Elem<F32Vec = [f32; 8]>>(&self, [gate, up]: [[f32; 8]; 2], _: [u32; 4], (): ()) -> [u32; 4] {
        let ActivationParams { function, exact } = self.0.activation;
        if exact != 0 {
            let activated = Selected::exact(function, RoundedVec::<T>::new(gate));
            activated.times(RoundedVec::new(up)).pack().words()
        } else {
            let activated = Selected::fast::<T>(function, gate);
            T::pack(core::array::from_fn(|i| up[i] * activated[i]))
        }
    }
}
