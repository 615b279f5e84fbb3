//! Quantization to 8-bit floats: the definition of scale, rounding and saturation.
pub mod scale;
