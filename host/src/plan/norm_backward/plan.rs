//! How the rows of a norm's gradient are shared out among blocks.
use crate::device::launch::MAX_GRID_YZ;
use crate::device::ptx::arch::Arch;
use crate::{Device, Dtype, View};

/// The most groups of rows, which are a dimension of the grid.
pub(super) const GROUPS: u64 = MAX_GRID_YZ as u64;
/// Threads that a multiprocessor has registers for: a thread holds two rows' packs and their columns' sums in
/// 128.
const RESIDENT: u32 = 512;
/// Threads of a block where rows are short: several then share one.
const THREADS: u32 = 128;

/// How many blocks an architecture's largest GPU has room for at once, by their threads. A table and no
/// question to the GPU at hand, so that the same sums come out of every GPU of the architecture: T4, A100,
/// H100 and H200.
fn resident_blocks(device: &Device, threads: u32) -> u32 {
    let multiprocessors = match device.arch() {
        Some(Arch::Sm75) => 40,
        Some(Arch::Sm80) => 108,
        None | Some(Arch::Sm90 | Arch::Sm90a) => 132,
    };
    multiprocessors * device.launch_override().parallelism.unwrap_or((RESIDENT / threads).min(5))
}

/// What a kernel does with a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKernel {
    /// Reads it again for each pass.
    Streamed,
    /// Keeps it in its threads' packs: up to four, or as many elements of one.
    Registers,
    /// Keeps two rows beside each other, each in two packs of every thread.
    Rows2,
    /// Keeps it in three packs of every thread.
    Registers3,
}

/// How the rows of a launch are shared out.
#[derive(Clone, Copy)]
pub(super) struct RowSplit {
    pub form: RowKernel,
    /// Threads of a row.
    pub team: u32,
    /// Rows of a block at a time.
    pub teams: u32,
    /// Blocks of a group.
    pub splits: u32,
    /// Bytes of shared memory.
    pub shared_bytes: u32,
}

impl RowSplit {
    /// For rows of so many columns: a team as wide as the row takes; from 128 threads on a block has one
    /// team.
    pub fn of(device: &Device, layer: bool, wanted: bool, dims: &Dims) -> Self {
        let (over, multi_row) = (device.launch_override(), dims.multi_row().filter(|_| layer));
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
        // Blocks that keep no sums need not be few.
        let max = if wanted {
            u64::from((resident_blocks(device, team * teams) / dims.groups.max(1)).max(1))
        } else {
            i32::MAX as u64
        };
        let splits = batches.min(max) as u32;
        let shared_bytes = shared_bytes(layer, form, team, teams, dims);
        Self { form, team, teams, splits, shared_bytes }
    }
}

/// Two numbers a warp for a fold, or eight where rows are beside each other, twice; LayerNorm's second sums;
/// and lanes to add up the teams of a block.
fn shared_bytes(layer: bool, form: RowKernel, team: u32, teams: u32, dims: &Dims) -> u32 {
    let (threads, lanes) = (team * teams, 16 / dims.dtype.size() as u32);
    if matches!(form, RowKernel::Rows2 | RowKernel::Registers3) {
        return threads / 32 * 64;
    }
    let dbias = if form == RowKernel::Registers && layer {
        threads * dims.packs_in_registers() * lanes * 4
    } else {
        0
    };
    let over_teams =
        if form == RowKernel::Registers && threads > team.max(32) { threads * lanes * 4 } else { 0 };
    threads / 32 * 16 + dbias + over_teams
}

/// What a plan depends on.
#[derive(Clone, Copy)]
pub(super) struct Dims {
    /// Rows of a group: those that share a weight.
    pub rows: u64,
    /// Groups.
    pub groups: u32,
    /// Columns of a row.
    pub cols: u32,
    /// Of the rows.
    pub dtype: Dtype,
    /// May every operand be accessed 16 bytes at a time?
    pub vector: bool,
}

impl Dims {
    /// Packs of a row.
    fn packs(&self) -> u64 {
        (u64::from(self.cols) * self.dtype.size() as u64).div_ceil(16)
    }

    /// How LayerNorm's rows that whole warps fill stay in registers, and the threads that it takes: in two
    /// packs each, but in three where more threads of these fit a multiprocessor and blocks of the others
    /// leave a tenth of its registers.
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

    /// How other rows are read, and the threads of one; `again`: not kept, though they could be.
    fn single_row(&self, layer: bool, again: bool) -> (RowKernel, u32) {
        // LayerNorm's second sums are in shared memory, of which every GPU grants 48 KB.
        let longest = if self.vector && layer && self.dtype.size() == 2 { 352 } else { 512 };
        match self.packs().div_ceil(u64::from(self.packs_in_registers())) {
            threads if again || threads > longest => (RowKernel::Streamed, 512),
            threads if threads <= 32 => (RowKernel::Registers, (threads as u32).next_power_of_two()),
            threads => (RowKernel::Registers, (threads as u32).next_multiple_of(32)),
        }
    }

    /// Packs of a row that a thread holds.
    fn packs_in_registers(&self) -> u32 {
        if self.vector { 4 } else { 1 }
    }
}

/// How many f32 of workspace the gradients of a norm's parameters need, each of `shape`: `[columns]`, or
/// `[groups, columns]` where so many groups of rows of `x` have parameters of their own. It depends on the
/// shape of `x`, its dtype and the architecture of the device.
///
/// `gradients` says how many are wanted: 1 or 2. Shapes that do not fit give a number that is of no use.
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
