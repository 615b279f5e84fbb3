//! Element types of tensors.
use cuda_std::fp8::{E4m3, E5m2};
use cuda_std::launch::ElementType;
use half::{bf16, f16};

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit IEEE.
    F32,
    /// 16-bit IEEE.
    F16,
    /// 16-bit bfloat16: the upper half of an f32.
    Bf16,
    /// 8-bit float with 3 mantissa bits: torch's `float8_e4m3fn`.
    E4m3,
    /// 8-bit float with 2 mantissa bits: torch's `float8_e5m2`. Kernels only write it.
    E5m2,
    /// 64-bit integer, used for indices such as the class of a row.
    I64,
    /// 32-bit integer, used for indices.
    I32,
    /// A bool, stored as a byte 0 or 1.
    Bool,
}

impl Dtype {
    /// The dtypes that kernels compute with.
    pub const FLOATS: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];
    /// The 8-bit floats.
    pub const FP8: [Self; 2] = [Self::E4m3, Self::E5m2];
    /// The dtypes of indices.
    pub const INDICES: [Self; 2] = [Self::I64, Self::I32];

    /// Returns the number of bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 | Self::E5m2 | Self::Bool => 1,
        }
    }

    /// Returns the [`ElementType`] with which kernels compute for this dtype. Returns `None` for 8-bit
    /// floats, integers and bools, with which kernels do not compute.
    #[inline]
    pub const fn element(self) -> Option<ElementType> {
        match self {
            Self::F32 => Some(ElementType::F32),
            Self::F16 => Some(ElementType::F16),
            Self::Bf16 => Some(ElementType::Bf16),
            Self::E4m3 | Self::E5m2 | Self::I64 | Self::I32 | Self::Bool => None,
        }
    }

    /// Returns text for an error message that lists two permitted dtypes: `self` and f32. `like` names the
    /// argument that has the dtype `self`. For example, the text is "bf16 (as x) or f32" if `self` is bf16
    /// and `like` is "x".
    pub fn or_f32(self, like: &str) -> String {
        if self == Self::F32 { self.to_string() } else { format!("{self} (as {like}) or f32") }
    }

    /// Returns the name that kernel names and error messages use, for example `bf16`. The names of 8-bit
    /// floats are those of torch, because there are several formats with the same number of exponent bits.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::E4m3 => "float8_e4m3fn",
            Self::E5m2 => "float8_e5m2",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::Bool => "bool",
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The Rust type of an element. Other crates cannot implement this trait, because kernels assume that a type
/// with the dtype `DTYPE` has the size of this dtype.
pub trait Scalar:
    sealed::Sealed + Copy + Default + PartialEq + std::fmt::Debug + Send + Sync + 'static
{
    /// The dtype of the type.
    const DTYPE: Dtype;
    /// The value whose bytes are all 0xFF. For floats, this value is NaN. For integers, it is -1. For bools,
    /// it is invalid.
    const POISON: Self;
}
/// A [`Scalar`] that kernels compute with: f32, f16 and bf16.
pub trait Element: Scalar + cuda_std::elem::Elem {}

macro_rules! scalars {
    ($($t:ty: $dtype:ident, $poison:expr;)*) => { $(
        impl sealed::Sealed for $t {}
        impl Scalar for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            const POISON: Self = $poison;
        }
    )* };
}
scalars! {
    f32: F32, f32::from_bits(u32::MAX);
    f16: F16, f16::from_bits(u16::MAX);
    bf16: Bf16, bf16::from_bits(u16::MAX);
    E4m3: E4m3, E4m3::from_bits(u8::MAX);
    E5m2: E5m2, E5m2::from_bits(u8::MAX);
    i64: I64, -1;
    i32: I32, -1;
    u8: Bool, u8::MAX;
}
impl Element for f32 {}
impl Element for f16 {}
impl Element for bf16 {}

mod sealed {
    pub trait Sealed {}
}
