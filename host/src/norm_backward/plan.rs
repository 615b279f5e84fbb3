//! How the rows of a norm's gradient are shared out among blocks.
use crate::Dtype;
use crate::ladder::Arch;

/// Threads that a multiprocessor has registers for: a thread holds two rows' packs and their columns' sums in 128.
const RESIDENT: u32 = 512;
/// Threads of a block where rows are short: several then share one.
const THREADS: u32 = 128;

/// How many blocks an architecture's largest GPU has room for at once, by their threads. A table and no question to the
/// GPU at hand, so that the same sums come out of every GPU of the architecture: T4, A100, H100 and H200.
fn resident_blocks(arch: Option<Arch>, threads: u32) -> u32 {
    let multiprocessors = match arch {
        Some(Arch::Sm75) => 40,
        Some(Arch::Sm80) => 108,
        None | Some(Arch::Sm90 | Arch::Sm90a) => 132,
    };
    multiprocessors * (RESIDENT / threads).min(5)
}

/// How the rows of a launch are shared out.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// Does a row stay in registers?
    pub held: bool,
    /// Threads of a row.
    pub team: u32,
    /// Rows of a block at a time.
    pub teams: u32,
    /// Blocks of a group.
    pub parts: u32,
    /// Bytes of shared memory.
    pub shared_bytes: u32,
}

impl Plan {
    /// For rows of so many columns: a team as wide as the row takes; from 128 threads on a block has one team.
    pub fn of(arch: Option<Arch>, layer: bool, wanted: bool, dims: &Dims) -> Self {
        let packs = (u64::from(dims.cols) * dims.dtype.size() as u64).div_ceil(16);
        // LayerNorm's second sums are in shared memory, of which every GPU grants 48 KB.
        let longest = match (dims.vector, layer && dims.dtype.size() == 2) {
            (true, false) => 512,
            (true, true) => 352,
            (false, _) => 512,
        };
        let threads = packs.div_ceil(u64::from(dims.held_packs()));
        let held = threads <= longest;
        let team = match threads as u32 {
            _ if !held => 512,
            threads if threads <= 32 => threads.next_power_of_two(),
            threads => threads.next_multiple_of(32),
        };
        let teams = (THREADS / team).max(1);
        let batches = dims.rows.div_ceil(u64::from(teams));
        // Blocks that keep no sums need not be few.
        let most = if wanted {
            u64::from((resident_blocks(arch, team * teams) / dims.groups.max(1)).max(1))
        } else {
            i32::MAX as u64
        };
        let parts = batches.min(most) as u32;
        let shared_bytes = shared_bytes(layer, held, team, teams, dims);
        Self { held, team, teams, parts, shared_bytes }
    }
}

/// Two numbers a warp for a fold, twice; LayerNorm's second sums; and lanes to add up the teams of a block.
fn shared_bytes(layer: bool, held: bool, team: u32, teams: u32, dims: &Dims) -> u32 {
    let (threads, lanes) = (team * teams, 16 / dims.dtype.size() as u32);
    let dbias = if held && layer { threads * dims.held_packs() * lanes * 4 } else { 0 };
    let over_teams = if held && threads > team.max(32) { threads * lanes * 4 } else { 0 };
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
    /// Packs of a row that a thread holds.
    fn held_packs(&self) -> u32 {
        if self.vector { 4 } else { 1 }
    }
}
