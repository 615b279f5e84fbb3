//! Tables of launch configurations for row ops such as `softmax`.
//!
//! A table is called a ladder, and an entry is called a rung. A rung says how many threads a row has, how
//! many packs (16-byte vectors) a thread keeps, and how many rows a block has. [`Ladder::pick`] returns the
//! first rung whose threads can keep the row in registers.
use crate::launch::launch_override;
use crate::library::library;
use cuda_std::team::Team;

use crate::Arch;
use crate::launch::{RowKernels, Rung, cluster, rung};
use crate::operands::rows::RowLayout;
use crate::{Device, Error, Result};

/// Launch configurations for rows of up to 128 packs (16-byte vectors), for all ops that keep a row in
/// registers. Latency dominates the time of such short rows. Therefore many threads share a row, and most
/// threads keep only 2 packs in registers.
///
/// For rows of 64 packs, a block has 128 threads instead of 64. With 64 threads, a block would have only two
/// rows. A launch would then need so many blocks that its time would depend on how fast the GPU starts
/// blocks.
const FEW_PACKS: &[Rung] = &[
    rung(2, 2, 1, 64),
    rung(4, 2, 2, 64),
    rung(8, 2, 4, 64),
    rung(16, 2, 8, 64),
    rung(32, 2, 16, 64),
    rung(64, 2, 32, 128),
    rung(128, 4, 32, 64),
];

/// Launch configurations for rows of 129 to 2048 packs (16-byte vectors), for ops that reduce a row once or
/// twice. For longer rows, each op has a separate table.
///
/// In most configurations, a thread keeps 4 packs, so that enough loads are in flight. The thread counts fit
/// the row lengths of common models, so that every thread has the same number of packs. The thread counts
/// were chosen on sm_90 with the tools `tune` and `bench.py` (benches/results/latest/nvidia-h200).
/// docs/internals/launch-configuration.md explains why sm_75 and sm_80 use the same table.
///
/// The number of threads determines the order in which the elements of a row are added. Two ops that use this
/// table therefore get bitwise equal sums for equal rows. For example, `add_rms_norm` gives the same bits as
/// an addition followed by `rms_norm`.
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

/// Threads per row for the kernel that supports any layout, as pairs `(max_columns, threads)`. A row uses the
/// first pair whose `max_columns` is not smaller than its number of columns. A thread reads 8 elements per
/// step, or 4 elements in f32.
const ANY_LAYOUT: &[(u32, u32)] =
    &[(8, 1), (16, 2), (32, 4), (64, 8), (128, 16), (512, 32), (2_048, 128), (u32::MAX, 512)];

/// Launch configurations per architecture, for rows that are too long for the table `SHORT_ROWS` but fit in
/// registers.
pub(crate) struct RegisterRungs {
    /// Launch configurations for sm_75, with at most 512 threads per block. A Turing SM runs at most 1024
    /// threads, so two blocks of 512 threads run at the same time. While one of these blocks reduces its row,
    /// the other block can load a row.
    pub sm75: &'static [Rung],
    /// Launch configurations for sm_80 and newer, and for the CPU executor.
    pub sm80: &'static [Rung],
    /// Additional launch configurations for sm_90 and newer, in which the blocks of a thread block cluster
    /// share a row.
    pub sm90: &'static [Rung],
}

/// Launch configurations for ops that read one operand, for rows of more than 2048 packs (16-byte vectors).
/// With thread block clusters, the longest row has 1 MiB.
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

/// Launch configurations for ops that read two operands, for rows of more than 2048 packs (16-byte vectors).
/// A thread keeps 4 packs of each operand, which are as many bytes as 8 packs of one operand. On sm_75, a
/// block has at most 512 threads, which do not have enough registers for two rows of more than 2048 packs.
/// The list for sm_75 is therefore empty.
pub(crate) const TWO_OPERANDS: RegisterRungs =
    RegisterRungs { sm75: &[], sm80: &[rung(3_072, 4, 768, 768), rung(4_096, 4, 1_024, 1_024)], sm90: &[] };

/// The launch configurations of an op whose blocks or thread block clusters keep rows in registers.
pub(crate) struct Ladder {
    /// Launch configurations for rows of 129 to 2048 packs (16-byte vectors).
    pub short: &'static [Rung],
    /// Launch configurations for longer rows that fit in registers.
    pub in_registers: RegisterRungs,
    /// Only for architectures with thread block clusters: maximum row length, in packs (16-byte vectors), for
    /// which a single block keeps the row. For longer rows, a cluster keeps the row.
    pub blocks_up_to: u32,
    /// Threads per block for rows that are too long for every launch configuration in the other fields. Such
    /// rows do not fit in registers, so the kernel reads each row twice.
    pub reread: u32,
}

impl Ladder {
    /// Returns the launch configuration for the rows of `layout`. If the device has a launch override (a
    /// configuration set by the caller), returns the override.
    ///
    /// Fails with [`Error::Value`] if the launch override does not support these rows.
    pub fn pick<K: Copy, const N: usize>(
        &self,
        op: &'static str,
        device: &Device,
        kernels: &RowKernels<K>,
        layout: &RowLayout<N>,
    ) -> Result<Rung> {
        let arch = library(device)?.arch();
        match launch_override(device).rung {
            Some(rung) => expect_holds(rung, op, arch, kernels, layout),
            None => Ok(self.first(arch, layout)),
        }
    }

    /// Returns the first launch configuration that supports the rows of `layout`. If the rows cannot be read
    /// in 16-byte vectors, the returned configuration selects the kernel for any layout.
    fn first<const N: usize>(&self, arch: Option<Arch>, layout: &RowLayout<N>) -> Rung {
        if !layout.vector {
            let team =
                ANY_LAYOUT.iter().find(|(cols, _)| layout.cols <= *cols).map_or(512, |(_, team)| *team);
            return rung(u32::MAX, 0, team, team.max(128));
        }
        let (in_registers, clusters): (&[Rung], &[Rung]) = match arch {
            Some(Arch::Sm75) => (self.in_registers.sm75, &[]),
            Some(Arch::Sm80) => (self.in_registers.sm80, &[]),
            // The CPU executor has no architecture. It gets the launch configurations of Hopper, so that the
            // results have the same bits.
            None | Some(Arch::Sm90 | Arch::Sm90a) => (self.in_registers.sm80, self.in_registers.sm90),
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

/// Checks whether the launch configuration `rung` is valid for the rows of `layout` on the architecture
/// `arch`. For example, a row must fit in the registers of its threads. Returns `rung`, or an error if it is
/// not valid. `rung` comes from a launch override (a configuration set by the caller), so no other code has
/// checked it.
fn expect_holds<K: Copy, const N: usize>(
    rung: Rung,
    op: &'static str,
    arch: Option<Arch>,
    kernels: &RowKernels<K>,
    layout: &RowLayout<N>,
) -> Result<Rung> {
    let blocks = if matches!(arch, None | Some(Arch::Sm90)) { Team::CLUSTER } else { 1 };
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
        for arch in [None, Some(Arch::Sm90)] {
            assert_eq!(kind(arch, 6_145), (8, 128, 8), "{arch:?}");
        }
        assert_eq!(kind(Some(Arch::Sm75), 6_145), (0, 512, 0));
        assert_eq!(kind(Some(Arch::Sm80), 8_193), (0, 512, 0));
        assert_eq!(kind(Some(Arch::Sm90), 65_536), (8, 1_024, 8));
        assert_eq!(kind(Some(Arch::Sm90), 65_537), (0, 512, 0));
        assert_eq!(
            pick(&ladder, Some(Arch::Sm90), 8_193, false).packs_per_thread,
            0,
            "not 16 bytes at a time"
        );
    }
}
