//! Launch plans. A plan says which kernel runs, and in which launch configuration.
pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod head_kernels;
pub(crate) mod heads;
mod l2_policy;
pub(crate) mod ladder;
pub(crate) mod norm_backward;
pub(crate) mod product;
pub(crate) mod product_hopper;
pub(crate) mod row_launch;
pub(crate) mod vec4_norm;
