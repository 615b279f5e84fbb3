//! A launch configuration of a row op. Which one an op takes is decided in `plan/ladder.rs`.
use cuda_std::team::Team;

/// One launch configuration of a row op.
#[derive(Clone, Copy, Debug)]
pub struct Rung {
    /// The longest row that it takes, in 16-byte packs.
    pub packs: u32,
    /// Packs that a thread holds in registers, which names the kernel; 0: the kernel for any layout.
    pub held: u32,
    /// Threads that share a row: a power of two up to 32, or a multiple of 32.
    pub team: u32,
    /// Teams in a block.
    pub teams: u32,
    /// Blocks that share a row, each with such a team: 8 for sm_90, and 1 for all else, in the kernels for clusters; 0 in
    /// the others.
    pub cluster: u32,
}

impl Rung {
    /// Its kernel among those of an op: for any layout, for 2, 4 and 8 packs held, for 8 and for 7 in a cluster.
    pub(crate) fn kernel(&self, kernels: &[&'static str]) -> &'static str {
        kernels[self.number()]
    }

    /// The index of its kernel in [`Rung::kernel`].
    pub(crate) fn number(&self) -> usize {
        match (self.cluster, self.held) {
            (0, 0) => 0,
            (0, held) => held.ilog2() as usize,
            (_, held) => 12 - held as usize,
        }
    }

    /// Whether a block can have its teams: what [`rung`] asserts, for rungs that are not made by it.
    pub(crate) fn is_block(&self) -> bool {
        let team = self.team.is_multiple_of(32) || self.team.is_power_of_two() && self.team < 32;
        let threads = self.team.saturating_mul(self.teams);
        team && threads.is_multiple_of(32) && (32..=1_024).contains(&threads)
    }
}

/// A rung of blocks of `threads`, `team` of them a row.
pub const fn rung(packs: u32, held: u32, team: u32, threads: u32) -> Rung {
    assert!(threads.is_multiple_of(32) && threads.is_multiple_of(team));
    assert!(team.is_multiple_of(32) || team.is_power_of_two() && team < 32);
    assert!(held == 0 || held * team >= packs);
    Rung { packs, held, team, teams: threads / team, cluster: 0 }
}

/// A rung of clusters of 8 blocks of `threads`, whose threads hold 8 packs.
pub const fn cluster(packs: u32, threads: u32) -> Rung {
    cluster_of(packs, 8, threads)
}

/// A rung of clusters of 8 blocks of `threads`, whose threads hold 7 or 8 packs.
pub const fn cluster_of(packs: u32, held: u32, threads: u32) -> Rung {
    assert!(8 * held * threads >= packs && threads <= 1_024 && (held == 7 || held == 8));
    Rung { packs, cluster: Team::CLUSTER, ..rung(0, held, threads, threads) }
}
