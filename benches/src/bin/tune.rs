//! Finds the launch configurations of a ladder: times every rung that can hold a row, for each row length, and
//! prints the best ones (`cargo run --release -p oxiwarp-benches --bin tune`). Needs a GPU.
use half::bf16;
use oxiwarp::ops::rms_norm::on_rung;
use oxiwarp::{Result, RmsNorm, Rung, rung};
use oxiwarp_benches::{Gpu, SHAPES};

/// Packs that a thread holds, and the most threads that the kernel's launch bounds allow.
const KERNELS: &[(u32, u32)] = &[(2, 256), (4, 512), (8, 1024)];
const TEAMS: &[u32] = &[1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024];
const BLOCKS: &[u32] = &[64, 128, 256];

/// Row lengths between and beyond those of `SHAPES`.
const MORE_SHAPES: &[(usize, usize)] = &[
    (262144, 128),
    (131072, 256),
    (65536, 512),
    (65536, 1024),
    (32768, 1536),
    (32768, 2048),
    (16384, 5120),
    (8192, 16384),
    (2048, 65536),
    (1024, 131072),
    (512, 262144),
];

/// The rungs that can hold a row of `packs` packs and waste less than half of their threads.
fn rungs(packs: u32) -> Vec<Rung> {
    let mut rungs = vec![];
    for &(held, most) in KERNELS {
        for &team in TEAMS.iter().filter(|&&team| (packs..packs * 2).contains(&(held * team)) && team <= most)
        {
            let blocks = BLOCKS.iter().copied().filter(|threads| threads % team == 0 && *threads != team);
            let alone = (team % 32 == 0).then_some(team);
            rungs.extend(alone.into_iter().chain(blocks).map(|threads| rung(packs, held, team, threads)));
        }
    }
    if packs > 4096 {
        rungs.extend([256, 512].map(|team| rung(packs, 0, team, team)));
    }
    rungs
}

fn main() -> Result<()> {
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("tune: {error}");
            return Ok(());
        }
    };
    let copy = gpu.copy_bandwidth(512 << 20)?;
    println!("{:?}, copy {:.0} GB/s", gpu.device, copy * 1e-9);
    println!("rows,cols,held,team,threads,us,gbps,of_copy");
    for &(rows, cols) in SHAPES.iter().chain(MORE_SHAPES) {
        let shape = [rows as i64, cols as i64];
        let x = gpu.rotated::<bf16>(rows * cols)?;
        let mut y = gpu.rotated::<bf16>(rows * cols)?;
        let weight = gpu.device.upload(&vec![bf16::ONE; cols])?;
        let mut results = vec![];
        for rung in rungs((cols / 8) as u32) {
            let time = gpu.time(8, |i, stream| {
                let (x, y) = (x[i % x.len()].view(&shape)?, y[i % x.len()].view_mut(&shape)?);
                let weight = Some(weight.view(&shape[1..])?);
                on_rung(&gpu.device, x, weight, y, RmsNorm::default(), stream, Some(rung))
            })?;
            results.push((time, rung));
        }
        results.sort_by_key(|(time, _)| *time);
        for (time, Rung { held, team, teams, .. }) in results.iter().take(8) {
            let rate = (rows * cols * 4) as f64 / time.as_secs_f64();
            let (us, threads) = (time.as_secs_f64() * 1e6, team * teams);
            println!("{rows},{cols},{held},{team},{threads},{us:.2},{:.0},{:.3}", rate * 1e-9, rate / copy);
        }
    }
    Ok(())
}
