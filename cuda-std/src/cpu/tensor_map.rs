//! Tensor maps of the executor. NVIDIA does not document the format of the driver's `CUtensorMap`. The
//! executor therefore uses another format of the same size, and a stricter rule for swizzles.
use half::{bf16, f16};

use super::history::Swizzle;
use crate::base::narrow::{f32_to_bf16, f32_to_f16};
use crate::base::tensor_map::TensorMap;

/// First word of a tensor map of the executor.
const MAGIC: u64 = u64::from_le_bytes(*b"oxiwmap1");
/// Largest number of dimensions.
pub(super) const MAX_RANK: usize = 5;

/// The element type of a tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TensorMapElement {
    U8,
    U16,
    U32,
    I32,
    F16,
    Bf16,
    F32,
}

impl TensorMapElement {
    const ALL: [Self; 7] = [Self::U8, Self::U16, Self::U32, Self::I32, Self::F16, Self::Bf16, Self::F32];

    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
        }
    }

    const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32)
    }
}

/// The operation of a TMA store that combines its elements with those of the tensor
/// (`cp.reduce.async.bulk.tensor`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum. The sum of two 16-bit floats is rounded to nearest even.
    Add,
    /// The smaller value.
    Min,
    /// The larger value.
    Max,
}

impl Reduction {
    /// Combines an element of the tensor in global memory with the corresponding element of the box, the part
    /// of the tensor that one TMA copy moves. Arguments and result are the bits of the elements.
    pub(super) fn apply(self, element: TensorMapElement, tensor: u32, tile: u32) -> Option<u32> {
        let float = |wide: fn(u32) -> f32, narrow: fn(f32) -> u32| {
            let (a, b) = (wide(tensor), wide(tile));
            narrow(match self {
                Self::Add => a + b,
                Self::Min => a.min(b),
                Self::Max => a.max(b),
            })
        };
        Some(match element {
            TensorMapElement::F32 if self == Self::Add => float(f32::from_bits, f32::to_bits),
            TensorMapElement::F16 => {
                float(|bits| f16::from_bits(bits as u16).to_f32(), |x| u32::from(f32_to_f16(x)))
            }
            TensorMapElement::Bf16 => {
                float(|bits| bf16::from_bits(bits as u16).to_f32(), |x| u32::from(f32_to_bf16(x)))
            }
            TensorMapElement::U32 => match self {
                Self::Add => tensor.wrapping_add(tile),
                Self::Min => tensor.min(tile),
                Self::Max => tensor.max(tile),
            },
            TensorMapElement::I32 => match self {
                Self::Add => tensor.wrapping_add(tile),
                Self::Min => tensor.cast_signed().min(tile.cast_signed()).cast_unsigned(),
                Self::Max => tensor.cast_signed().max(tile.cast_signed()).cast_unsigned(),
            },
            TensorMapElement::F32 | TensorMapElement::U8 | TensorMapElement::U16 => return None,
        })
    }
}

/// Describes a tensor in global memory and the box that one TMA copy moves, as the arguments of the driver's
/// `cuTensorMapEncodeTiled` do. The first dimension is contiguous.
#[derive(Clone, Debug)]
pub struct TensorMapShape {
    /// Address of the first element.
    pub base: *const u8,
    /// Element type.
    pub element: TensorMapElement,
    /// Number of elements of each dimension. There are one to five dimensions.
    pub sizes: Vec<u64>,
    /// Distance between neighbours in bytes, for each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of the box, for each dimension.
    pub tile: Vec<u32>,
    /// How the box lies in shared memory.
    pub swizzle: Swizzle,
    /// Whether elements outside of the tensor become NaN instead of zero, which is possible only for floats.
    pub nan_outside: bool,
}

impl TensorMapShape {
    /// Makes the tensor map, which a kernel on the CPU executor can take as an argument.
    ///
    /// # Errors
    /// Returns a message if the driver would reject the description. A box (the part of the tensor that one
    /// copy moves) with a swizzle must have rows of exactly the swizzle's span.
    pub fn encode(&self) -> Result<TensorMap, String> {
        self.check()?;
        let mut words = [0; 16];
        words[0] = MAGIC;
        words[1] = self.sizes.len() as u64
            | (self.element as u64) << 8
            | (self.swizzle as u64) << 16
            | u64::from(self.nan_outside) << 24;
        words[2] = self.base.expose_provenance() as u64;
        words[3..][..self.sizes.len()].copy_from_slice(&self.sizes);
        words[8..][..self.strides.len()].copy_from_slice(&self.strides);
        for (at, &elements) in self.tile.iter().enumerate() {
            words[12 + at / 4] |= u64::from(elements) << (16 * (at % 4));
        }
        Ok(TensorMap(words))
    }

    fn check(&self) -> Result<(), String> {
        let rank = self.sizes.len();
        if rank == 0 || rank > MAX_RANK || self.strides.len() + 1 != rank || self.tile.len() != rank {
            return Err(format!(
                "{rank} sizes, {} strides and {} box sizes, expected 1 to 5 sizes, one stride less, and as many box sizes",
                self.strides.len(),
                self.tile.len()
            ));
        }
        if !self.base.addr().is_multiple_of(16) {
            return Err(format!("base {:?}, expected a multiple of 16", self.base));
        }
        if let Some(size) = self.sizes.iter().find(|&&size| size == 0 || size > 1 << 32) {
            return Err(format!("size {size}, expected 1 to 2^32"));
        }
        if let Some(stride) = self.strides.iter().find(|&stride| *stride % 16 != 0 || *stride >= 1 << 40) {
            return Err(format!("stride {stride}, expected a multiple of 16 below 2^40"));
        }
        if let Some(size) = self.tile.iter().find(|&&size| size == 0 || size > 256) {
            return Err(format!("box size {size}, expected 1 to 256"));
        }
        if self.nan_outside && !self.element.is_float() {
            return Err(format!("NaN outside of a tensor of {:?}, expected a float type", self.element));
        }
        let row = self.tile[0] * self.element.bytes();
        match self.swizzle {
            Swizzle::None if row % 16 != 0 => Err(format!("rows of {row} bytes, expected a multiple of 16")),
            Swizzle::B32 | Swizzle::B64 | Swizzle::B128 if row != self.swizzle.row() => {
                Err(format!("rows of {row} bytes, expected the {} bytes of the swizzle", self.swizzle.row()))
            }
            _ => Ok(()),
        }
    }

    /// Reads a tensor map. Returns `None` if [`TensorMapShape::encode`] did not make it.
    pub(super) fn decode(&TensorMap(words): &TensorMap) -> Option<Self> {
        if words[0] != MAGIC {
            return None;
        }
        let rank = words[1] as usize & 0xFF;
        let swizzles = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];
        Some(Self {
            base: std::ptr::with_exposed_provenance(words[2] as usize),
            element: TensorMapElement::ALL[(words[1] >> 8 & 0xFF) as usize],
            sizes: words[3..][..rank].to_vec(),
            strides: words[8..][..rank - 1].to_vec(),
            tile: (0..rank).map(|at| (words[12 + at / 4] >> (16 * (at % 4))) as u32 & 0xFFFF).collect(),
            swizzle: swizzles[(words[1] >> 16 & 3) as usize],
            nan_outside: words[1] >> 24 & 1 == 1,
        })
    }

    /// Bytes of the box, which one TMA copy moves. A number that is too large becomes `u32::MAX`, which does
    /// not fit in shared memory.
    pub(super) fn bytes(&self) -> u32 {
        let elements: u64 = self.tile.iter().map(|&size| u64::from(size)).product();
        u32::try_from(elements * u64::from(self.element.bytes())).unwrap_or(u32::MAX)
    }

    /// Calls `f` for each row of the box (the part of the tensor that one TMA copy moves) that starts at the
    /// coordinates `origin`. The arguments of `f` are the offset of the row in the box, the address of the
    /// row's first element in the tensor, and the range of elements that lie inside the tensor. An address
    /// outside the tensor may have wrapped around.
    pub(super) fn rows(&self, origin: &[i32], mut f: impl FnMut(u32, *const u8, std::ops::Range<u32>)) {
        let (width, bytes) = (self.tile[0], self.element.bytes());
        let rows: u32 = self.tile[1..].iter().product();
        for row in 0..rows {
            let (mut left, mut inside, mut offset) = (row, true, 0_i64);
            for at in 1..self.tile.len() {
                let index = i64::from(origin[at]) + i64::from(left % self.tile[at]);
                left /= self.tile[at];
                inside &= index >= 0 && index.cast_unsigned() < self.sizes[at];
                offset = offset.wrapping_add(index.wrapping_mul(self.strides[at - 1].cast_signed()));
            }
            let first = i64::from(origin[0]);
            let from = (-first).clamp(0, i64::from(width)) as u32;
            let to = (self.sizes[0].cast_signed() - first).clamp(i64::from(from), i64::from(width)) as u32;
            let address = self.base.wrapping_offset(offset.wrapping_add(first * i64::from(bytes)) as isize);
            f(row * width * bytes, address, if inside { from..to } else { 0..0 });
        }
    }
}
