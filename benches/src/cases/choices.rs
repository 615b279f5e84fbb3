//! Lists the launch configurations of an op. Which settings a configuration has depends on the op's kernels.
use oxiwarp::{Arch, Device, LaunchOverride, Rung, rung};

const TEAMS: &[u32] = &[1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1_024];
/// Threads per block, for blocks that process several rows. The threads that process one row are a team.
const BLOCKS: &[u32] = &[64, 128];
/// Threads per block in a cluster.
const CLUSTERS: &[u32] = &[64, 96, 128, 192, 256, 288, 320, 352, 384, 416, 512, 768, 1_024];

/// The kinds of launch configurations that an op can have.
#[derive(Clone, Copy, Debug)]
pub enum Choices {
    /// The configuration is a `Rung`: the threads per row and the 16-byte vectors (packs) per thread. The
    /// threads that process one row are a team. Each field lists kernels as pairs of two numbers: the packs
    /// that a thread keeps in registers, and the maximum number of threads per team. For clusters, the second
    /// number is the maximum number of threads per block.
    Rungs {
        /// Kernels in which a team is at most one block.
        in_registers: &'static [(u32, u32)],
        /// Kernels in which a thread block cluster processes one row. Each block of the cluster processes a
        /// part of the row.
        clusters: &'static [(u32, u32)],
    },
    /// The configuration of a kernel that reads a row again instead of keeping it in registers. In each loop
    /// iteration, a thread reads four packs (16-byte vectors).
    Passes,
    /// Configurations of norms whose threads load four elements at a time. They differ in the kernel, the
    /// threads per block and the shared memory carveout.
    Vec4s,
    /// Configurations of RoPE and of norms of heads. They differ in the kernel, the threads per block, and
    /// the target number of warps per launch.
    Heads,
    /// Configurations of an element-wise op. They differ only in the threads per block. The number in this
    /// variant is the maximum.
    Threads(u32),
    /// Configurations of the gradient of a norm. They differ in the kernel, the threads per block, and the
    /// blocks per SM.
    Gradient,
    /// Configurations of decoding attention. They differ in whether the keys are split among blocks
    /// (split-KV).
    Decode,
    /// The op has only one configuration, so the program `tune` skips the op.
    Nothing,
}

impl Choices {
    /// Returns the launch configurations to try for rows of `cols` 16-bit columns. The op's default
    /// configuration comes first.
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
                // The gradient of LayerNorm has three kernels. The first processes several rows at a time,
                // the second keeps one row in registers, and the third reads each row twice.
                let blocks = [vec![own], parallelism(&[1, 2, 3, 4, 5, 6, 8]), threads(&[64, 256])].concat();
                list.extend(kernels(&blocks, 2));
            }
            Self::Decode => list.extend(kernels(&[own], 1)),
            Self::Nothing => {}
        }
        list
    }
}

/// Returns whether a row of `packs` 16-byte vectors fits in registers for `in_registers` vectors, and uses
/// more than half of these registers.
fn fills(packs: u32, in_registers: u32) -> bool {
    (packs..packs * 2).contains(&in_registers)
}

/// Returns the `Rung` launch configurations for a row of `packs` 16-byte vectors. A kernel that keeps the row
/// in registers is listed only if the row fills more than half of these registers.
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
    // A cluster has eight blocks on Hopper. On other GPUs and on the CPU executor, it has one block.
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

/// Returns the block sizes to try for teams of `team` threads.
fn blocks_of(team: u32) -> impl Iterator<Item = u32> {
    let alone = team.is_multiple_of(32).then_some(team);
    let more = BLOCKS.iter().copied().filter(move |&threads| threads > team && threads.is_multiple_of(team));
    alone.into_iter().chain(more)
}
