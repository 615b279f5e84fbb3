//! What there is to choose, for each kind of op.
use oxiwarp::{Arch, Device, LaunchOverride, Rung, rung};

const TEAMS: &[u32] = &[1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1_024];
/// Threads of a block of several teams.
const BLOCKS: &[u32] = &[64, 128];
/// Threads of a cluster's blocks.
const CLUSTERS: &[u32] = &[64, 96, 128, 192, 256, 288, 320, 352, 384, 416, 512, 768, 1_024];

/// What an op leaves to choose.
#[derive(Clone, Copy, Debug)]
pub enum Choices {
    /// A rung for kernels that hold so many packs in so many threads at most, in a block or in the eighth of a cluster.
    Rungs {
        /// In a block.
        in_registers: &'static [(u32, u32)],
        /// In each of a cluster's.
        clusters: &'static [(u32, u32)],
    },
    /// A rung of a kernel that holds no row and takes four packs a step.
    Passes,
    /// Kernel, warps and carveout of a norm over quads.
    Vec4s,
    /// Kernel, warps and shares of heads.
    Heads,
    /// Threads of an element-wise op's blocks, up to as many.
    Threads(u32),
    /// Kernel, threads and blocks of a norm's gradient.
    Gradient,
    /// Are keys shared out among blocks?
    Decode,
    /// Nothing: `tune` leaves the op out.
    Nothing,
}

impl Choices {
    /// Those for rows of so many columns of 16 bits; the op's own is the first.
    pub fn list(self, device: &Device, cols: usize) -> Vec<LaunchOverride> {
        let own = LaunchOverride::default();
        let mut list = vec![own];
        let threads = |all: &[u32]| {
            all.iter().map(|&threads| LaunchOverride { threads: Some(threads), ..own }).collect::<Vec<_>>()
        };
        let kernels = |choices: &[LaunchOverride], max: usize| {
            let of_kernel = |skip| choices.iter().map(move |choice| LaunchOverride { skip, ..*choice });
            (0..=max).flat_map(of_kernel).collect::<Vec<_>>()
        };
        let parallelism = |all: &[u32]| {
            all.iter()
                .map(|&parallelism| LaunchOverride { parallelism: Some(parallelism), ..own })
                .collect::<Vec<_>>()
        };
        match self {
            Self::Rungs { in_registers, clusters } => {
                let rungs = of_rows(device, (cols / 8) as u32, in_registers, clusters);
                list.extend(rungs.into_iter().map(|rung| LaunchOverride { rung: Some(rung), ..own }));
            }
            Self::Passes => {
                let packs = (cols / 8) as u32;
                let fits = |team: &&u32| {
                    let team = **team;
                    team <= 512 && (packs > 1_024 || 32 * team >= packs && 2 * team < packs)
                };
                let rungs = TEAMS
                    .iter()
                    .filter(fits)
                    .flat_map(|&team| blocks_of(team).map(move |of| rung(packs, 0, team, of)));
                list.extend(rungs.map(|rung| LaunchOverride { rung: Some(rung), ..own }));
            }
            Self::Vec4s => {
                list.extend(kernels(&[vec![own], threads(&[32, 64, 128])].concat(), 3));
                let carveouts = [15, 30, 44, 57, 72, 86, 100];
                list.extend(carveouts.map(|percent| LaunchOverride { carveout: Some(percent), ..own }));
            }
            Self::Heads => {
                list.extend(kernels(&[vec![own], threads(&[64, 128, 256])].concat(), 5));
                list.extend(parallelism(&[2 << 10, 4 << 10, 8 << 10, 32 << 10, 64 << 10, 256 << 10]));
            }
            Self::Threads(max) => {
                list.extend(
                    threads(&[32, 64, 96, 128, 192, 256]).into_iter().filter(|c| c.threads <= Some(max)),
                );
            }
            Self::Gradient => {
                // A LayerNorm's has rows beside each other, held alone, and read twice.
                let blocks = [vec![own], parallelism(&[1, 2, 3, 4, 5, 6, 8]), threads(&[64, 256])].concat();
                list.extend(kernels(&blocks, 2));
            }
            Self::Decode => list.extend(kernels(&[own], 1)),
            Self::Nothing => {}
        }
        list
    }
}

/// Do so many threads' packs hold a row, and less than half of them in vain?
fn fills(packs: u32, in_registers: u32) -> bool {
    (packs..packs * 2).contains(&in_registers)
}

/// The rungs that can take a row of `packs` packs and waste less than half of their threads.
fn of_rows(device: &Device, packs: u32, kernels: &[(u32, u32)], clusters: &[(u32, u32)]) -> Vec<Rung> {
    let mut rungs = vec![];
    for &(in_registers, max) in kernels {
        for &team in TEAMS.iter().filter(|&&team| team <= max && fills(packs, in_registers * team)) {
            rungs.extend(blocks_of(team).map(|threads| rung(packs, in_registers, team, threads)));
        }
    }
    if packs > 2_048 {
        rungs.extend([256, 512].map(|team| rung(packs, 0, team, team)));
    }
    // On other architectures, and on the executor, a cluster is one block.
    let blocks = if device.arch() == Some(Arch::Sm90) { 8 } else { 1 };
    if packs > 4_096 || blocks == 1 {
        for &(in_registers, max) in clusters {
            let fitting =
                CLUSTERS.iter().filter(|&&team| team <= max && fills(packs, blocks * in_registers * team));
            rungs.extend(fitting.map(|&team| Rung {
                max_packs: packs,
                packs_per_thread: in_registers,
                cluster: blocks,
                ..rung(0, 8, team, team)
            }));
        }
    }
    rungs
}

/// The sizes of block in which teams of `team` threads are tried.
fn blocks_of(team: u32) -> impl Iterator<Item = u32> {
    let alone = team.is_multiple_of(32).then_some(team);
    let more = BLOCKS.iter().copied().filter(move |&threads| threads > team && threads.is_multiple_of(team));
    alone.into_iter().chain(more)
}
