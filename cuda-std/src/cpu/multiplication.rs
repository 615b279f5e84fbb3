//! One `wgmma` of a warpgroup: its arguments, and the arithmetic.
use super::Block;
use super::clock::Released;
use super::operands::SharedOperand;
use super::tensor_core::{DecodedA, DecodedB, OperandType, STEP_BYTES, multiply_int8, multiply_step};

/// Warps of a warpgroup.
pub(super) const WARPS: usize = 4;
/// Rows that one warp computes.
pub(super) const WARP_ROWS: usize = 16;
const ROWS: usize = WARPS * WARP_ROWS;

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
    /// Two flags. The first says whether `a` is contiguous along M instead of K. The second says whether `b`
    /// is contiguous along N instead of K.
    pub transposed: [bool; 2],
}

impl Multiplication {
    /// Compares the descriptors of the operands in shared memory. If they differ for an operand, returns the
    /// descriptor in `other`, and then the descriptor in `self`.
    pub fn other_descriptor(&self, other: &Self) -> Option<(u64, u64)> {
        let a = match (self.a, other.a) {
            (Left::Shared(before), Left::Shared(now)) => Some((now, before)),
            _ => None,
        };
        a.into_iter().chain([(other.b, self.b)]).find(|(now, before)| now != before)
    }

    /// Returns whether two threads of a warpgroup execute the same instruction, if one passes `self` and the
    /// other passes `other`.
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

/// A multiplication that a warpgroup has started.
pub(super) struct Started {
    pub multiplication: Multiplication,
    pub columns: usize,
    /// Number of its `wgmma` group.
    pub group: u32,
    /// For each thread, its elements of the left operand in registers.
    pub a: Vec<[u32; 4]>,
    /// For each thread, the address of its accumulators, or 0 if it has not started the multiplication.
    pub d: Vec<usize>,
    /// For each warp, its rows of the left operand, if this operand is in shared memory.
    pub left: [Option<RecordedOperand>; WARPS],
    pub right: Option<RecordedOperand>,
}

/// An operand in shared memory, and the vector clock of the thread that last recorded the reads of this
/// operand.
pub(super) type RecordedOperand = (Released, SharedOperand);

/// Returns the index of an accumulator element in a row-major matrix of 64 rows and `columns` columns. The
/// element is in register `register` of thread `thread` of a warpgroup.
pub(super) fn place(thread: usize, register: usize, columns: usize) -> usize {
    let (warp, lane) = (thread / 32, thread % 32);
    let row = warp * WARP_ROWS + lane / 4 + register / 2 % 2 * 8;
    row * columns + register / 4 * 8 + lane % 4 * 2 + register % 2
}

impl Started {
    pub fn new(multiplication: Multiplication, columns: usize, group: u32) -> Self {
        let threads = 32 * WARPS;
        let in_registers = matches!(multiplication.a, Left::Registers(_));
        Self {
            multiplication,
            columns,
            group,
            a: vec![[0; 4]; if in_registers { threads } else { 0 }],
            d: vec![0; threads],
            left: [const { None }; WARPS],
            right: None,
        }
    }

    /// Adds the product to `matrix`, which has 64 rows.
    pub fn multiply(&self, block: &Block, matrix: &mut [u32], a: &mut DecodedA, b: &mut DecodedB) {
        let read = |operand: &Option<RecordedOperand>| operand.as_ref().expect("was recorded").1.read(block);
        let left = match self.multiplication.a {
            Left::Shared(_) => self.left.iter().flat_map(read).collect(),
            Left::Registers(_) => self.rows_of_registers(),
        };
        let right = read(&self.right);
        match self.multiplication.elements {
            Elements::Floats(of_a, of_b) => {
                a.decode(of_a, ROWS, |row| left[row]);
                b.decode(of_b, right.len(), |row| right[row]);
                // SAFETY: `floats` covers the elements of `matrix`. f32 and u32 have the same size and
                // alignment, and every bit pattern is a valid f32.
                let floats = unsafe { &mut *(std::ptr::from_mut(matrix) as *mut [f32]) };
                multiply_step(a, b, floats);
            }
            Elements::Int8(a_signed, b_signed) => {
                // SAFETY: `integers` covers the elements of `matrix`. i32 and u32 have the same size and
                // alignment, and every bit pattern is a valid i32.
                let integers = unsafe { &mut *(std::ptr::from_mut(matrix) as *mut [i32]) };
                multiply_int8(&left, a_signed, &right, b_signed, integers);
            }
        }
    }

    /// Returns the rows of the left operand, whose elements are in the registers of the lanes.
    fn rows_of_registers(&self) -> Vec<[u8; STEP_BYTES]> {
        let mut rows = vec![[0; STEP_BYTES]; ROWS];
        for (thread, words) in self.a.iter().enumerate() {
            let (first, lane) = (thread / 32 * WARP_ROWS, thread % 32);
            for (word, bits) in words.iter().enumerate() {
                let (row, byte) = (first + lane / 4 + word % 2 * 8, lane % 4 * 4 + word / 2 * 16);
                rows[row][byte..byte + 4].copy_from_slice(&bits.to_le_bytes());
            }
        }
        rows
    }
}
