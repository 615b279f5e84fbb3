//! Launch configurations as data: for each op and architecture a ladder, of which the first rung that fits is taken.
use crate::rows::RowLayout;

/// The PTX that a device loads, or the CPU executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// Turing (T4): no bf16 arithmetic or conversion, 1024 threads a multiprocessor.
    Sm75,
    /// Ampere (A100) and Ada.
    Sm80,
    /// Hopper (H100, H200) and, by forward compatibility, what came after.
    Sm90,
}

impl Arch {
    /// As the PTX files are named: `sm_90`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm75 => "sm_75",
            Self::Sm80 => "sm_80",
            Self::Sm90 => "sm_90",
        }
    }
    /// Its compute capability.
    pub const fn capability(self) -> (u32, u32) {
        match self {
            Self::Sm75 => (7, 5),
            Self::Sm80 => (8, 0),
            Self::Sm90 => (9, 0),
        }
    }
}

/// One launch configuration of a row op.
#[derive(Clone, Copy, Debug)]
pub struct Rung {
    /// The longest row that it takes, in 16-byte packs.
    pub packs: u32,
    /// The kernel, without the dtype.
    pub kernel: &'static str,
    /// Threads that share a row: a power of two up to 32, or a multiple of 32.
    pub team: u32,
    /// Teams in a block.
    pub teams: u32,
}

impl Rung {
    /// For rows of any length, blocks of `threads`, `team` of them a row.
    pub const fn new(kernel: &'static str, team: u32, threads: u32) -> Self {
        rung(u32::MAX, kernel, team, threads)
    }
}

/// A rung of blocks of `threads`, `team` of them a row.
pub(crate) const fn rung(packs: u32, kernel: &'static str, team: u32, threads: u32) -> Rung {
    assert!(threads.is_multiple_of(32) && threads.is_multiple_of(team));
    assert!(team.is_multiple_of(32) || team.is_power_of_two() && team < 32);
    Rung { packs, kernel, team, teams: threads / team }
}

/// Threads a row of the kernel for any layout, which moves 8 elements (4 in f32) a thread and tile: up to so many
/// columns, so many threads.
const ANY_LAYOUT: &[(u32, u32)] =
    &[(8, 1), (16, 2), (32, 4), (64, 8), (128, 16), (512, 32), (2_048, 128), (u32::MAX, 512)];

/// The first rung that takes the rows of `layout`; for rows that are not vectors, `op`'s kernel for any layout.
pub(crate) fn pick<const N: usize>(op: &'static str, ladder: &'static [Rung], layout: &RowLayout<N>) -> Rung {
    let packs = (u64::from(layout.cols) * layout.dtype.size() as u64).div_ceil(16);
    let fits = |rung: &&Rung| layout.vector && packs <= u64::from(rung.packs);
    ladder.iter().find(fits).copied().unwrap_or_else(|| {
        let team = ANY_LAYOUT.iter().find(|(cols, _)| layout.cols <= *cols).map_or(512, |(_, team)| *team);
        rung(u32::MAX, op, team, team.max(128))
    })
}
