//! Divides the rows among the blocks in the backward pass of a norm.
use crate::Arch;
use crate::Kernels;
use crate::MAX_GRID_YZ;
use crate::launch::launch_override;
use crate::library::library;
use crate::{Device, Dtype, View};

/// Maximum number of row groups. Each group of rows has its own weight. The number of groups is the size of
/// the grid in one dimension, which CUDA limits to 65,535.
pub(super) const GROUPS: u64 = MAX_GRID_YZ as u64;
/// Maximum number of threads that run on an SM at the same time. The register file limits this number: each
/// thread needs 128 registers, for its part of two rows and for the partial sums of its columns.
const RESIDENT: u32 = 512;
/// Threads per block for short rows. Several short rows share a block.
const THREADS: u32 = 128;

/// Returns the number of SMs of the largest GPU of the architecture (T4, A100, H100 or H200).
///
/// The function assumes a constant number of SMs per architecture, and does not query the GPU. Two GPUs of
/// one architecture therefore use the same number of blocks, and add the partial sums in the same order.
/// Their results are bitwise equal.
pub(crate) fn multiprocessors(device: &Device) -> u32 {
    match library(device).ok().and_then(Kernels::arch) {
        Some(Arch::Sm75) => 40,
        Some(Arch::Sm80) => 108,
        None | Some(Arch::Sm90 | Arch::Sm90a) => 132,
    }
}

/// Returns how many blocks run at the same time on the GPU of [`multiprocessors`].
fn resident_blocks(device: &Device, threads: u32) -> u32 {
    multiprocessors(device) * launch_override(device).parallelism.unwrap_or((RESIDENT / threads).min(5))
}

/// How a kernel reads a row, and where the kernel keeps it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKernel {
    /// The kernel does not keep the row between its two passes. It reads the row in each pass.
    Streamed,
    /// The kernel keeps the row in the registers of the threads that share it. A thread keeps up to four
    /// packs (16-byte vectors), or one element if the row cannot be read in packs.
    Registers,
    /// The kernel processes two rows at a time. A thread keeps two packs (16-byte vectors) of each row in
    /// registers.
    Rows2,
    /// The kernel keeps the row in registers, with three packs (16-byte vectors) per thread.
    Registers3,
}

/// How the rows are divided among blocks and teams. A team consists of the threads of a block that share a
/// row.
#[derive(Clone, Copy)]
pub(super) struct RowSplit {
    pub form: RowKernel,
    /// Threads per row.
    pub team: u32,
    /// Teams per block.
    pub teams: u32,
    /// Blocks per group.
    pub splits: u32,
}

impl RowSplit {
    /// Plans the launch for the rows of `dims`. A team (threads that share a row) processes each row. If a
    /// team has at most 64 threads, a block of 128 threads has several teams. Exception: the LayerNorm
    /// kernels that keep two or three packs (16-byte vectors) per thread have only one team per block.
    pub fn of(device: &Device, layer: bool, wanted: bool, dims: &Dims) -> Self {
        let (over, multi_row) = (launch_override(device), dims.multi_row().filter(|_| layer));
        let (form, team) = match multi_row {
            Some(multi_row) if over.skip == 0 => multi_row,
            _ => dims.single_row(layer, over.skip > usize::from(multi_row.is_some())),
        };
        let teams = (over.threads.unwrap_or(THREADS) / team).max(1);
        let (rows, teams) = match form {
            RowKernel::Rows2 => (2, 1),
            RowKernel::Registers3 => (1, 1),
            _ => (teams, teams),
        };
        let batches = dims.rows.div_ceil(u64::from(rows));
        // Limit the number of blocks, because each block stores partial sums in the workspace. Without a
        // gradient of weight or bias, blocks store no partial sums, so there is no limit.
        let max = if wanted {
            u64::from((resident_blocks(device, team * teams) / dims.groups.max(1)).max(1))
        } else {
            i32::MAX as u64
        };
        let splits = batches.min(max) as u32;
        Self { form, team, teams, splits }
    }
}

/// The properties of the rows that determine the launch plan.
#[derive(Clone, Copy)]
pub(super) struct Dims {
    /// Rows per group. The rows of a group share a weight.
    pub rows: u64,
    /// Number of groups.
    pub groups: u32,
    /// Columns per row.
    pub cols: u32,
    /// Dtype of the rows.
    pub dtype: Dtype,
    /// Whether every operand supports 16-byte vector access.
    pub vector: bool,
}

impl Dims {
    /// Returns the number of packs (16-byte vectors) per row.
    fn packs(&self) -> u64 {
        (u64::from(self.cols) * self.dtype.size() as u64).div_ceil(16)
    }

    /// Returns a LayerNorm kernel that keeps two or three packs (16-byte vectors) per thread, and its number
    /// of threads per row. The packs of a row must fill all threads of whole warps. Returns `None` if the row
    /// length does not permit this.
    ///
    /// Two packs per thread are preferred. An SM has registers for [`RESIDENT`] threads, which whole blocks
    /// rarely use completely. Three packs are used if two packs leave more than a tenth of these threads
    /// unused, and three packs leave fewer.
    fn multi_row(&self) -> Option<(RowKernel, u32)> {
        let few = self.vector && self.rows.saturating_mul(u64::from(self.groups)) < 1 << 31;
        let fill = |packs: u64| {
            let threads = (self.packs() / packs) as u32;
            let whole = self.packs().is_multiple_of(packs * 32) && (64..=RESIDENT).contains(&threads);
            (few && whole).then_some(threads)
        };
        let resident = |threads: u32| RESIDENT / threads * threads;
        match (fill(2), fill(3)) {
            (Some(two), Some(three))
                if resident(two) < resident(three) && resident(two) < RESIDENT / 10 * 9 =>
            {
                Some((RowKernel::Registers3, three))
            }
            (Some(two), _) => Some((RowKernel::Rows2, two)),
            (None, three) => three.map(|threads| (RowKernel::Registers3, threads)),
        }
    }

    /// Returns the kernel and the threads per row for rows of any length. This kernel processes one row at a
    /// time. If `again` is true, the function returns a kernel that reads each row twice, even if the row
    /// fits in registers.
    fn single_row(&self, layer: bool, again: bool) -> (RowKernel, u32) {
        // LayerNorm keeps partial sums for the gradient of the bias in shared memory. Without opt-in, a block
        // has 48 KB of shared memory on every GPU. For 16-bit rows, 48 KB are enough for 352 threads.
        let longest = if self.vector && layer && self.dtype.size() == 2 { 352 } else { 512 };
        match self.packs().div_ceil(u64::from(self.packs_in_registers())) {
            threads if again || threads > longest => (RowKernel::Streamed, 512),
            threads if threads <= 32 => (RowKernel::Registers, (threads as u32).next_power_of_two()),
            threads => (RowKernel::Registers, (threads as u32).next_multiple_of(32)),
        }
    }

    /// Returns how many packs (16-byte vectors) a thread can keep in registers. If the row cannot be read in
    /// packs, returns how many elements a thread can keep.
    fn packs_in_registers(&self) -> u32 {
        if self.vector { 4 } else { 1 }
    }
}

/// Returns how many f32 elements of workspace the gradients of a norm's weight and bias need.
///
/// `shape` is the shape of each gradient: `[columns]`, or `[groups, columns]` if each group of rows of `x`
/// has its own weight. `gradients` is the number of requested gradients, 1 or 2. The result also depends on
/// the shape and dtype of `x` and on the architecture of the device.
///
/// This function does not check `shape`. If the gradients of `x` cannot have this shape, the result is
/// meaningless.
pub fn norm_backward_workspace(device: &Device, x: &View, shape: &[i64], gradients: usize) -> usize {
    let (Some(&cols), [groups @ .., _]) = (x.shape().last(), shape) else { return 0 };
    let rows: i64 = x.shape()[..x.shape().len() - 1].iter().product();
    let groups = groups.iter().product::<i64>().clamp(1, GROUPS as i64) as u64;
    let dims = Dims {
        rows: rows as u64 / groups,
        groups: groups as u32,
        cols: cols as u32,
        dtype: x.dtype(),
        vector: true,
    };
    let splits = [false, true]
        .into_iter()
        .flat_map(|layer| [true, false].map(|vector| (layer, vector)))
        .map(|(layer, vector)| RowSplit::of(device, layer, true, &Dims { vector, ..dims }).splits);
    gradients * (groups * u64::from(splits.max().unwrap_or(0))) as usize * cols as usize
}
