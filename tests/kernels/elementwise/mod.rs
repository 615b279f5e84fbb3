//! Tests of the activations.
pub(crate) mod activation;
pub(crate) mod activation_input;
pub(crate) mod gated_activation;
