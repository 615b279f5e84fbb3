//! Launch configurations as data: for each op and architecture a ladder, of which the first rung that fits is
//! taken.
use cuda_std::team::Team;

use crate::device::launch::{RowKernels, Rung, cluster, rung};
use crate::device::ptx::arch::Arch;
use crate::operands::rows::RowLayout;
use crate::{Device, Error, Result};

/// Rows of up to 128 packs, of every op that holds rows: a thread has 2 packs where time is latency. Two rows
/// of 64 packs a block are so little that placing blocks is what takes time (`rms_norm` of 196,608: 119 us,
/// with four of them 96).
const FEW_PACKS: &[Rung] = &[
    rung(2, 2, 1, 64),
    rung(4, 2, 2, 64),
    rung(8, 2, 4, 64),
    rung(16, 2, 8, 64),
    rung(32, 2, 16, 64),
    rung(64, 2, 32, 128),
    rung(128, 4, 32, 64),
];

/// Rows of more, up to 2048 packs, for ops that reduce a row once or twice; longer ones are each op's own.
///
/// A thread holds 4 packs, for the sake of bytes in flight, and at the models' lengths none of them in vain:
/// 384 packs by 96 threads and not 128, 512 by 128 and not 160 are 1 to 3 % faster. Chosen on sm_90 by `tune`
/// and `bench.py` (benches/results/latest/nvidia-h200); why sm_75 and sm_80 take the same: docs/ladders.md.
///
/// The number of threads decides in which order a row is summed. Ops that share this ladder give the same
/// bits for the same row, fused or not.
pub(crate) const SHORT_ROWS: &[Rung] = &[
    rung(192, 4, 64, 64),
    rung(256, 2, 128, 128),
    rung(384, 4, 96, 96),
    rung(512, 4, 128, 128),
    rung(640, 4, 160, 160),
    rung(768, 4, 192, 192),
    rung(1_024, 4, 256, 256),
    rung(1_280, 4, 320, 320),
    rung(1_536, 4, 384, 384),
    rung(2_048, 4, 512, 512),
];

/// Threads a row of the kernel for any layout, which moves 8 elements (4 in f32) a thread and tile: up to so
/// many columns, so many threads.
const ANY_LAYOUT: &[(u32, u32)] =
    &[(8, 1), (16, 2), (32, 4), (64, 8), (128, 16), (512, 32), (2_048, 128), (u32::MAX, 512)];

/// The rungs beyond `SHORT_ROWS` of blocks that hold a row, for each architecture.
pub(crate) struct RegisterRungs {
    /// A Turing multiprocessor has 1024 threads: a block of more than half of them leaves none to load
    /// another row while it reduces.
    pub sm75: &'static [Rung],
    /// Everything newer, and the CPU executor.
    pub sm80: &'static [Rung],
    /// Clusters, which sm_90 and newer have beside those of `sm80`.
    pub sm90: &'static [Rung],
}

/// Of ops that read one operand: rows that no 512 threads hold 4 packs of; clusters hold up to 1 MiB.
pub(crate) const ONE_OPERAND: RegisterRungs = RegisterRungs {
    sm75: &[rung(3_072, 8, 384, 384), rung(4_096, 8, 512, 512)],
    sm80: &[
        rung(3_072, 8, 384, 384),
        rung(4_096, 8, 512, 512),
        rung(6_144, 8, 768, 768),
        rung(8_192, 8, 1_024, 1_024),
    ],
    sm90: &[
        cluster(8_192, 128),
        cluster(12_288, 192),
        cluster(16_384, 256),
        cluster(20_480, 320),
        cluster(24_576, 384),
        cluster(32_768, 512),
        cluster(49_152, 768),
        cluster(65_536, 1_024),
    ],
};

/// Of ops that read two: 4 packs a thread of each are the bytes in flight that 8 of one are. Blocks of up to
/// 512 threads hold no more than the ladder of short rows has.
pub(crate) const TWO_OPERANDS: RegisterRungs =
    RegisterRungs { sm75: &[], sm80: &[rung(3_072, 4, 768, 768), rung(4_096, 4, 1_024, 1_024)], sm90: &[] };

/// The launch configurations of an op whose blocks or clusters hold rows.
pub(crate) struct Ladder {
    /// For rows of more than 128 and up to 2048 packs.
    pub short: &'static [Rung],
    /// The blocks that hold a longer one.
    pub in_registers: RegisterRungs,
    /// On architectures that have them, clusters hold rows of more packs than this.
    pub blocks_up_to: u32,
    /// Threads of the blocks for rows that none holds: they are read twice.
    pub reread: u32,
}

impl Ladder {
    /// The first rung that takes the rows of `layout`, or the device's choice.
    pub fn pick<const N: usize>(
        &self,
        op: &'static str,
        device: &Device,
        kernels: &RowKernels,
        layout: &RowLayout<N>,
    ) -> Result<Rung> {
        match device.launch_override().rung {
            Some(rung) => expect_holds(rung, op, device.arch(), kernels, layout),
            None => Ok(self.first(device.arch(), layout)),
        }
    }

    /// The first rung that takes the rows of `layout`; for rows that are not vectors, that
    /// of the kernel for any layout.
    fn first<const N: usize>(&self, arch: Option<Arch>, layout: &RowLayout<N>) -> Rung {
        if !layout.vector {
            let team =
                ANY_LAYOUT.iter().find(|(cols, _)| layout.cols <= *cols).map_or(512, |(_, team)| *team);
            return rung(u32::MAX, 0, team, team.max(128));
        }
        let (in_registers, clusters): (&[Rung], &[Rung]) = match arch {
            Some(Arch::Sm75) => (self.in_registers.sm75, &[]),
            None | Some(Arch::Sm80) => (self.in_registers.sm80, &[]),
            Some(Arch::Sm90 | Arch::Sm90a) => (self.in_registers.sm80, self.in_registers.sm90),
        };
        let packs = layout.packs();
        let too_long = !clusters.is_empty() && packs > u64::from(self.blocks_up_to);
        let fits = |rung: &&Rung| packs <= u64::from(rung.max_packs) && (rung.cluster > 0 || !too_long);
        let reread = rung(u32::MAX, 0, self.reread, self.reread);
        FEW_PACKS
            .iter()
            .chain(self.short)
            .chain(in_registers)
            .chain(clusters)
            .find(fits)
            .copied()
            .unwrap_or(reread)
    }
}

/// `rung`, if its threads hold the rows of `layout` on this architecture. Only a rung that no ladder chose
/// can fail.
fn expect_holds<const N: usize>(
    rung: Rung,
    op: &'static str,
    arch: Option<Arch>,
    kernels: &RowKernels,
    layout: &RowLayout<N>,
) -> Result<Rung> {
    let blocks = if arch == Some(Arch::Sm90) { Team::CLUSTER } else { 1 };
    let is_cluster =
        rung.cluster == blocks && [7, 8].contains(&rung.packs_per_thread) && rung.rows_per_block == 1;
    let in_registers =
        u64::from(rung.packs_per_thread) * u64::from(rung.threads_per_row) * u64::from(rung.cluster.max(1));
    let fits = rung.packs_per_thread == 0 || layout.vector && layout.packs() <= in_registers;
    if fits && rung.is_block() && (rung.cluster == 0 || is_cluster) && kernels.find(&rung).is_some() {
        return Ok(rung);
    }
    let (got, expected) = (f64::from(rung.packs_per_thread), "packs that hold an aligned row");
    Err(Error::Value { op, arg: "rung", got, expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    fn pick(ladder: &Ladder, arch: Option<Arch>, packs: u32, vector: bool) -> Rung {
        let layout = RowLayout::<0> {
            rows: 1,
            inner: 0,
            cols: packs * 4,
            dtype: Dtype::F32,
            vector,
            vec4s: vector,
            operands: [],
        };
        ladder.first(arch, &layout)
    }

    #[test]
    fn clusters_hold_what_no_block_does_or_should() {
        let ladder =
            Ladder { short: SHORT_ROWS, in_registers: ONE_OPERAND, blocks_up_to: 6_144, reread: 512 };
        let kind = |arch, packs| {
            let Rung { packs_per_thread, threads_per_row, cluster, .. } = pick(&ladder, arch, packs, true);
            (packs_per_thread, threads_per_row, cluster)
        };
        for arch in [None, Some(Arch::Sm80), Some(Arch::Sm90)] {
            assert_eq!(kind(arch, 6_144), (8, 768, 0), "{arch:?}");
        }
        assert_eq!(kind(Some(Arch::Sm80), 6_145), (8, 1_024, 0));
        assert_eq!(kind(Some(Arch::Sm90), 6_145), (8, 128, 8));
        assert_eq!(kind(Some(Arch::Sm75), 6_145), (0, 512, 0));
        assert_eq!(kind(None, 8_193), (0, 512, 0));
        assert_eq!(kind(Some(Arch::Sm90), 65_536), (8, 1_024, 8));
        assert_eq!(kind(Some(Arch::Sm90), 65_537), (0, 512, 0));
        assert_eq!(
            pick(&ladder, Some(Arch::Sm90), 8_193, false).packs_per_thread,
            0,
            "not 16 bytes at a time"
        );
    }
}
