//! Tensors: borrowed views, and buffers for programs without a tensor library.
pub(crate) mod buffer;
mod contiguous;
pub(crate) mod view;
