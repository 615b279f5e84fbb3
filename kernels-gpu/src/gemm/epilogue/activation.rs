//! Applies an activation function to the sums.
use cuda_std::elem::Elem;

use super::Epilogue;
use super::fragments::FragmentPlace;
use crate::elementwise::activations::ActivationParams;
use crate::elementwise::functions::{Functions, Selected};
use crate::elementwise::rounded_chain::RoundedVec;

/// `f(sum)`. In exact mode, the sum is rounded before the function.
#[derive(Clone, Copy)]
pub(crate) struct Activation(pub ActivationParams);

impl Epilogue for Activation {
    type Fetched = ();

    #[inline(always)]
    unsafe fn fetch(&self, _at: FragmentPlace) {}

    #[inline(always)]
    fn apply<T: Elem<F32Vec = [f32; 8]>>(&self, [sums, _]: [[f32; 8]; 2], _: [u32; 4], (): ()) -> [u32; 4] {
        if self.0.exact != 0 {
            Selected::exact(self.0.function, RoundedVec::<T>::new(sums)).pack().words()
        } else {
            T::pack(Selected::fast::<T>(self.0.function, sums))
        }
    }
}
