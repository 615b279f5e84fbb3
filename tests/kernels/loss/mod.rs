//! Tests of softmax and cross-entropy.
pub(crate) mod cross_entropy;
pub(crate) mod cross_entropy_backward;
pub(crate) mod softmax;
pub(crate) mod softmax_backward;
