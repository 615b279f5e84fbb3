//! The operands of `wgmma` in shared memory: their descriptors and layouts.
use super::history::Swizzle;
use super::tensor_core::STEP_BYTES;
use super::{Block, FaultKind};

/// A part of an operand in shared memory: the rows that one warp reads.
#[derive(Clone)]
pub(super) struct SharedOperand {
    transposed: bool,
    rows: usize,
    /// Offsets of the chunks of 16 bytes.
    pub chunks: Vec<u32>,
}

/// The layout of an operand in shared memory, from its descriptor.
#[derive(Clone, Copy)]
struct OperandLayout {
    start: u32,
    leading: u32,
    stride: u32,
    swizzle: Swizzle,
    transposed: bool,
}

impl OperandLayout {
    fn of(block: &Block, descriptor: u64, transposed: bool, element: usize) -> Self {
        let field = |at: u32| (descriptor >> at) as u32 & 0x3FFF;
        let swizzle = [Swizzle::None, Swizzle::B128, Swizzle::B64, Swizzle::B32][(descriptor >> 62) as usize];
        let (start, base) = (field(0) << 4, (descriptor >> 49) as u32 & 7);
        if base != 0 {
            block.raise(FaultKind::DescriptorOffset { offset: base });
        }
        // The hardware permutes 16-byte chunks as a function of their address bits. A tile must therefore
        // start at an address at which the pattern of the swizzle starts.
        if swizzle != Swizzle::None && start >> 7 & (swizzle.row() / 16 - 1) != 0 {
            block.raise(FaultKind::Descriptor { address: start, swizzle: swizzle.row() });
        }
        if transposed && element != 2 {
            block.raise(FaultKind::TransposedOperand { bytes: element });
        }
        Self { start, leading: field(16) << 4, stride: field(32) << 4, swizzle, transposed }
    }

    /// Returns the address of a chunk (16 bytes) of an operand that is contiguous along K. The chunk contains
    /// the bytes of row `row` from byte number `byte` on.
    fn row_chunk(&self, row: u32, byte: u32) -> u32 {
        let (group, within) = (row / 8 * self.stride, row % 8);
        match self.swizzle {
            Swizzle::None => self.start + group + within * 16 + byte / 16 * self.leading,
            _ => self.swizzle.place(self.start + group + within * self.swizzle.row() + byte),
        }
    }

    /// Returns the address of a chunk (16 bytes) of an operand that has 16-bit elements and is contiguous
    /// along its rows (M or N). The chunk contains the elements of eight rows, from `row` on, in column `k`.
    fn column_chunk(&self, row: u32, k: u32) -> u32 {
        let per_line = self.swizzle.row() / 2;
        let (line, within) = (row / per_line, row % per_line * 2);
        match self.swizzle {
            Swizzle::None => self.start + line * self.stride + k / 8 * self.leading + k % 8 * 16,
            _ => {
                let at = line * self.leading + k / 8 * self.stride + k % 8 * self.swizzle.row() + within;
                self.swizzle.place(self.start + at)
            }
        }
    }

    /// Returns the offsets in shared memory of all chunks (16 bytes each) of the rows `first` to `first +
    /// rows - 1`.
    fn chunks(&self, block: &Block, first: u32, rows: u32) -> Vec<u32> {
        let addresses: Vec<_> = if self.transposed {
            (0..16)
                .flat_map(|k| (0..rows / 8).map(move |r| (k, r)))
                .map(|(k, r)| self.column_chunk(first + 8 * r, k))
                .collect()
        } else {
            (0..rows)
                .flat_map(|r| [0, 16].map(|byte| (r, byte)))
                .map(|(r, byte)| self.row_chunk(first + r, byte))
                .collect()
        };
        addresses.into_iter().map(|address| block.own_place(address, 16, 16).offset).collect()
    }
}

impl SharedOperand {
    /// Decodes the matrix descriptor `descriptor` of a `wgmma` operand. Returns the rows `first` to `first +
    /// rows - 1` of this operand, and the swizzle that the descriptor selects. Raises a fault if the
    /// descriptor is invalid, or if one of these rows is not in shared memory. An element has `element`
    /// bytes.
    pub fn of(
        block: &Block,
        descriptor: u64,
        transposed: bool,
        element: usize,
        first: u32,
        rows: usize,
    ) -> (Self, Swizzle) {
        let layout = OperandLayout::of(block, descriptor, transposed, element);
        let chunks = layout.chunks(block, first, rows as u32);
        (Self { transposed, rows, chunks }, layout.swizzle)
    }

    /// Reads the rows from the shared memory of `block`.
    pub fn read(&self, block: &Block) -> Vec<[u8; STEP_BYTES]> {
        // SAFETY: `OperandLayout::chunks` checked that the 16 bytes are in shared memory.
        let chunk = |at: usize| unsafe {
            block.shared_base().add(self.chunks[at] as usize).cast::<[u8; 16]>().read()
        };
        let mut out = vec![[0; STEP_BYTES]; self.rows];
        if self.transposed {
            for k in 0..16 {
                for group in 0..self.rows / 8 {
                    let eight = chunk(k * (self.rows / 8) + group);
                    for r in 0..8 {
                        out[8 * group + r][2 * k..2 * k + 2].copy_from_slice(&eight[2 * r..2 * r + 2]);
                    }
                }
            }
        } else {
            for (row, out) in out.iter_mut().enumerate() {
                out[..16].copy_from_slice(&chunk(2 * row));
                out[16..].copy_from_slice(&chunk(2 * row + 1));
            }
        }
        out
    }
}
