//! Code that several tests share: the type of a test, test cases, references, tensors and operands. A test
//! may import from this folder and from its own folder, but not from the folders of other tests.
pub(crate) mod activation_case;
pub(crate) mod ada_norm_case;
pub(crate) mod add_rms_norm_case;
pub(crate) mod attention_case;
pub(crate) mod cross_entropy_case;
pub(crate) mod epilogue_case;
pub(crate) mod errors;
pub(crate) mod fp8_case;
pub(crate) mod heads;
pub(crate) mod layer_norm_case;
pub(crate) mod linear_case;
pub(crate) mod modulations;
pub(crate) mod norm_backward_case;
pub(crate) mod rms_norm_case;
pub(crate) mod softmax_case;
pub(crate) mod test;
