//! Tests of attention and of its gradients.
pub(crate) mod alignment;
pub(crate) mod backward;
pub(crate) mod decode;
pub(crate) mod forward;
pub(crate) mod input;
pub(crate) mod packed;
pub(crate) mod tiles;
