//! One `wgmma` of a warp: its arguments, and the arithmetic.
use super::Block;
use super::clock::Released;
use super::operands::SharedOperand;
use super::tensor_core::{DecodedA, DecodedB, OperandType, STEP_BYTES, multiply_int8, multiply_step};

/// Rows that one warp computes.
pub(super) const ROWS: usize = 16;

/// The operand types of a multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    /// Floats, with f32 accumulators.
    Floats(OperandType, OperandType),
    /// 8-bit integers, with i32 accumulators. The flags say whether they are signed.
    Int8(bool, bool),
}

impl Elements {
    pub fn bytes(self) -> usize {
        match self {
            Self::Floats(a, _) => a.bytes(),
            Self::Int8(..) => 1,
        }
    }
}

/// The left operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Descriptor of an operand in shared memory.
    Shared(u64),
    /// The thread's elements.
    Registers([u32; 4]),
}

/// One multiplication `d += a b`, or `d = a b` if `add` is false.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multiplication {
    pub elements: Elements,
    pub a: Left,
    /// Descriptor of `b`.
    pub b: u64,
    pub add: bool,
    /// Whether `a` and `b` are contiguous along M and N, instead of K.
    pub transposed: [bool; 2],
}

impl Multiplication {
    /// Whether the lanes of a warp that pass `self` and `other` execute the same instruction.
    pub fn meets(&self, other: &Self) -> bool {
        let same_a = match (self.a, other.a) {
            (Left::Registers(_), Left::Registers(_)) => true,
            (a, b) => a == b,
        };
        same_a
            && (self.elements, self.b, self.add, self.transposed)
                == (other.elements, other.b, other.add, other.transposed)
    }
}

/// A multiplication that a warp has started.
pub(super) struct Started {
    pub multiplication: Multiplication,
    /// Number of its `wgmma` group.
    pub group: u32,
    pub a: [[u32; 4]; 32],
    /// Address of the accumulators of each lane, or 0 if the lane has not started the multiplication.
    pub d: [usize; 32],
    /// Columns of the accumulators.
    pub columns: usize,
    /// The operands in shared memory, and the knowledge of the lane that recorded the reads of them.
    pub operands: Option<(Released, Option<SharedOperand>, SharedOperand)>,
}

/// Returns the index of an accumulator register of a lane in a matrix with 16 rows.
pub(super) fn place(lane: usize, register: usize, columns: usize) -> usize {
    let (row, column) = (lane / 4 + register / 2 % 2 * 8, register / 4 * 8 + lane % 4 * 2 + register % 2);
    row * columns + column
}

impl Started {
    /// Adds the product to `matrix`, which has 16 rows.
    pub fn multiply(&self, block: &Block, matrix: &mut [u32], a: &mut DecodedA, b: &mut DecodedB) {
        let (_, left, right) = self.operands.as_ref().expect("was recorded");
        let left = left.as_ref().map_or_else(|| self.rows_of_registers(), |left| left.read(block));
        let right = right.read(block);
        match self.multiplication.elements {
            Elements::Floats(of_a, of_b) => {
                a.decode(of_a, ROWS, |row| left[row]);
                b.decode(of_b, right.len(), |row| right[row]);
                // SAFETY: f32 and u32 have the same size and alignment, and every bit pattern is valid.
                let floats = unsafe { &mut *(std::ptr::from_mut(matrix) as *mut [f32]) };
                multiply_step(a, b, floats);
            }
            Elements::Int8(a_signed, b_signed) => {
                // SAFETY: i32 and u32 have the same size and alignment, and every bit pattern is valid.
                let integers = unsafe { &mut *(std::ptr::from_mut(matrix) as *mut [i32]) };
                multiply_int8(&left, a_signed, &right, b_signed, integers);
            }
        }
    }

    /// Returns the rows of the left operand from the registers of the lanes.
    fn rows_of_registers(&self) -> Vec<[u8; STEP_BYTES]> {
        let mut rows = vec![[0; STEP_BYTES]; ROWS];
        for (lane, words) in self.a.iter().enumerate() {
            for (word, bits) in words.iter().enumerate() {
                let (row, byte) = (lane / 4 + word % 2 * 8, lane % 4 * 4 + word / 2 * 16);
                rows[row][byte..byte + 4].copy_from_slice(&bits.to_le_bytes());
            }
        }
        rows
    }
}
