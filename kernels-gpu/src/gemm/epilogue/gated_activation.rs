//! Multiplies one half of the sums by an activation function of the other half.
use cuda_std::elem::Elem;

use super::Epilogue;
use super::fragments::FragmentPlace;
use crate::elementwise::activations::ActivationParams;
use crate::elementwise::functions::{Functions, Selected};
use crate::elementwise::rounded_chain::RoundedVec;

/// The kernel argument: the activation function, and the place of the two halves.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatedActivationParams {
    /// The function of the gate.
    pub activation: ActivationParams,
    /// The rows of `w` at which the gate and the other half start. One of them is 0, and the other one is the
    /// number of columns of the result.
    pub starts: [u32; 2],
}

/// `f(gate) * up`, for the halves `gate` and `up` of the sums. In exact mode, the sums and the value of the
/// function are rounded.
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
    fn apply<T: Elem<F32Vec = [f32; 8]>>(&self, [gate, up]: [[f32; 8]; 2], (): ()) -> [u32; 4] {
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
