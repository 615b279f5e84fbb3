//! Tests launch configurations (rungs) of `rms_norm`, and launch configurations of `softmax` with thread
//! block clusters. An op selects a rung from a table, its ladder. Some tested rungs are not in a ladder.
use half::bf16;
use oxiwarp::{
    Arch, Device, LaunchOverride, Overridable as _, RmsNorm, Rung, Stream, rms_norm, rung, softmax,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::{same_bits, within_ulps};
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::rms_norm_case::{bound, reference};
use crate::support::softmax_case::close;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rungs::every_launch_is_right", every_launch),
    ("rungs::every_cluster_is_right", every_cluster),
    ("rungs::every_cluster_of_softmax_is_right", softmax_clusters),
];

fn run(
    device: &Device,
    x: &[bf16],
    shape: [i64; 2],
    in_registers: u32,
    team: u32,
    threads: u32,
) -> Vec<bf16> {
    run_on(device, x, shape, rung(0, in_registers, team, threads))
}

fn run_on(device: &Device, x: &[bf16], shape: [i64; 2], rung: Rung) -> Vec<bf16> {
    let dense = Layout::dense(shape[1]);
    let x = Matrix::upload(device, x, shape, dense);
    let mut y = Matrix::<bf16>::poisoned(device, shape, dense);
    let device = &device.with_override(LaunchOverride { rung: Some(rung), ..LaunchOverride::default() });
    rms_norm(device, x.view(), None, y.view_mut(), RmsNorm::default(), Stream::default()).expect("valid");
    y.download()
}

/// Tests rows that fill the registers of their team (the threads that process one row), and shorter rows. For
/// the same team size, different kernels and block sizes must give the same bits.
fn every_launch(device: &Device) {
    let seed = seed();
    for (in_registers, max) in [(2_u32, 256_u32), (4, 512), (8, 1024)] {
        for team in [1, 2, 4, 8, 16, 32, 64, 96, 256, 512, 768, 1024].into_iter().filter(|&team| team <= max)
        {
            for packs in
                [in_registers * team, (in_registers * team).saturating_sub(in_registers / 2 + 1).max(1)]
            {
                let (rows, cols) = (37, i64::from(packs * 8));
                case!("{in_registers} packs per thread in registers, team {team}, {packs} packs");
                let x: Vec<bf16> = values(&mut random(seed), rows * cols as usize);
                let one = run(device, &x, [rows as i64, cols], in_registers, team, team.max(32));
                let expected = reference(&wide(&x), None, cols as usize, RmsNorm::default());
                within_ulps(&one, &expected, cols as usize, bound::<bf16>());
                if team <= 128 {
                    same_bits(
                        &run(
                            device,
                            &x,
                            [rows as i64, cols],
                            in_registers,
                            team,
                            team.next_multiple_of(32) * 2,
                        ),
                        &one,
                    );
                }
                if team <= 512 {
                    same_bits(&run(device, &x, [rows as i64, cols], 0, team, team.max(32)), &one);
                }
            }
        }
    }
}

/// Returns the number of blocks per cluster: eight on Hopper and on the CPU executor, and one on older GPUs.
fn blocks_of_cluster(device: &Device) -> u32 {
    if matches!(device.arch(), None | Some(Arch::Sm90 | Arch::Sm90a)) { 8 } else { 1 }
}

/// Tests `rms_norm` with thread block clusters. Some rows fill all blocks of the cluster, and shorter rows
/// leave some blocks without elements.
fn every_cluster(device: &Device) {
    let seed = seed();
    let blocks = blocks_of_cluster(device);
    for threads in [32, 64, 256, 1024] {
        let max = 8 * threads * blocks;
        for packs in [max, max - 1, max / 2 + 3, threads, 1] {
            let (rows, cols) = (9, i64::from(packs * 8));
            case!("{blocks} blocks of {threads} threads, {packs} packs");
            let x: Vec<bf16> = values(&mut random(seed), rows * cols as usize);
            let of_cluster = Rung { cluster: blocks, ..rung(0, 8, threads, threads) };
            let y = run_on(device, &x, [rows as i64, cols], of_cluster);
            let expected = reference(&wide(&x), None, cols as usize, RmsNorm::default());
            within_ulps(&y, &expected, cols as usize, bound::<bf16>());
        }
    }
}

/// Tests `softmax` with thread block clusters whose threads keep 7 or 8 packs (16-byte vectors) in registers.
/// Some rows fill all blocks of the cluster, and shorter rows leave some blocks without elements.
fn softmax_clusters(device: &Device) {
    let seed = seed();
    let blocks = blocks_of_cluster(device);
    for (in_registers, threads) in [(7, 32), (7, 160), (7, 352), (8, 256)] {
        let max = in_registers * threads * blocks;
        for packs in [max, max - 1, max / 2 + 3, 1] {
            let shape = [5, i64::from(packs * 8)];
            case!("{blocks} blocks of {threads} threads, {packs} packs");
            let x: Vec<bf16> = values(&mut random(seed), 5 * shape[1] as usize);
            let logits = Matrix::upload(device, &x, shape, Layout::dense(shape[1]));
            let mut y = Matrix::<bf16>::poisoned(device, shape, Layout::dense(shape[1]));
            let of_cluster =
                Rung { packs_per_thread: in_registers, cluster: blocks, ..rung(0, 8, threads, threads) };
            let device =
                &device.with_override(LaunchOverride { rung: Some(of_cluster), ..LaunchOverride::default() });
            softmax(device, logits.view(), y.view_mut(), false, Stream::default()).expect("valid");
            close(&y.download(), &wide(&x), shape[1] as usize, false);
        }
    }
}
