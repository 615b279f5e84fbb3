//! Finds the launch configurations of the ladders: times every rung that can hold a row, for each op with a ladder of its
//! own and each row length, and prints the best ones. Needs a GPU:
//! `cargo run --release -p oxiwarp-benches --bin tune [-- rms_norm softmax cross_entropy]`.
use half::bf16;
use oxiwarp::ops::{cross_entropy, rms_norm, softmax};
use oxiwarp::{Buffer, CrossEntropy, Result, RmsNorm, Rung, Stream, rung};
use oxiwarp_benches::{Gpu, SHAPES};

/// Packs that a thread holds, and the most threads that the kernel's launch bounds allow.
const KERNELS: &[(u32, u32)] = &[(2, 256), (4, 512), (8, 1024)];
const TEAMS: &[u32] = &[1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024];
const BLOCKS: &[u32] = &[64, 128, 256];
/// Threads of a cluster's blocks.
const CLUSTERS: &[u32] = &[64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 512, 768, 1024];

/// Row lengths between and beyond those of `SHAPES`.
const MORE_SHAPES: &[(usize, usize)] = &[
    (262144, 128),
    (131072, 256),
    (65536, 512),
    (65536, 1024),
    (32768, 1536),
    (32768, 2048),
    (32768, 4096),
    (16384, 5120),
    (8192, 16384),
    (8192, 32768),
    (2048, 65536),
    (2048, 128256),
    (1024, 131072),
    (2048, 151936),
    (1024, 262144),
];

/// An op that has a ladder.
#[derive(Clone, Copy, PartialEq)]
enum Op {
    RmsNorm,
    Softmax,
    CrossEntropy,
}

impl Op {
    const ALL: [Self; 3] = [Self::RmsNorm, Self::Softmax, Self::CrossEntropy];

    fn name(self) -> &'static str {
        match self {
            Self::RmsNorm => "rms_norm",
            Self::Softmax => "softmax",
            Self::CrossEntropy => "cross_entropy",
        }
    }

    /// The rungs that can take a row of `packs` packs and waste less than half of their threads.
    fn rungs(self, packs: u32) -> Vec<Rung> {
        let fills = |held: u32, team: u32| (packs..packs * 2).contains(&(held * team));
        if self == Self::CrossEntropy {
            // Its kernel holds no row, and takes four packs a step.
            let teams = TEAMS.iter().filter(|&&team| team <= 512 && (packs > 1024 || fills(4, team)));
            return teams
                .flat_map(|&team| blocks_of(team).map(move |threads| (team, threads)))
                .map(|(team, threads)| rung(packs, 0, team, threads))
                .collect();
        }
        let mut rungs = vec![];
        for &(held, most) in KERNELS {
            for &team in TEAMS.iter().filter(|&&team| team <= most && fills(held, team)) {
                rungs.extend(blocks_of(team).map(|threads| rung(packs, held, team, threads)));
            }
        }
        if packs > 4096 {
            rungs.extend([256, 512].map(|team| rung(packs, 0, team, team)));
            // Packs that a thread holds in a cluster, and its kernel's most threads.
            let kernels: &[(u32, u32)] =
                if self == Self::Softmax { &[(8, 1024), (7, 384)] } else { &[(8, 1024)] };
            for &(held, most) in kernels {
                let fitting = CLUSTERS.iter().filter(|&&team| team <= most && fills(8 * held, team));
                rungs.extend(fitting.map(|&team| Rung { packs, held, cluster: 8, ..rung(0, 8, team, team) }));
            }
        }
        rungs
    }

    /// Bytes that a call reads and writes.
    fn bytes(self, rows: usize, cols: usize) -> usize {
        match self {
            Self::RmsNorm | Self::Softmax => rows * cols * 4,
            Self::CrossEntropy => rows * (cols * 2 + 16),
        }
    }
}

/// The sizes of block in which teams of `team` threads are tried.
fn blocks_of(team: u32) -> impl Iterator<Item = u32> {
    let alone = team.is_multiple_of(32).then_some(team);
    let more = BLOCKS.iter().copied().filter(move |&threads| threads > team && threads.is_multiple_of(team));
    alone.into_iter().chain(more)
}

/// What the calls read and write.
struct Operands {
    shape: [i64; 2],
    x: Vec<Buffer<bf16>>,
    y: Vec<Buffer<bf16>>,
    weight: Buffer<bf16>,
    targets: Buffer<i64>,
    losses: [Buffer<f32>; 2],
}

impl Operands {
    fn new(gpu: &Gpu, op: Op, rows: usize, cols: usize) -> Result<Self> {
        let x = gpu.rotated::<bf16>(rows * cols)?;
        let y = if op == Op::CrossEntropy { vec![] } else { gpu.rotated::<bf16>(rows * cols)? };
        let targets: Vec<i64> = (0..rows).map(|row| (row * 7919 % cols) as i64).collect();
        Ok(Self {
            shape: [rows as i64, cols as i64],
            x,
            y,
            weight: gpu.device.upload(&vec![bf16::ONE; cols])?,
            targets: gpu.device.upload(&targets)?,
            losses: [gpu.device.alloc(rows)?, gpu.device.alloc(rows)?],
        })
    }

    /// Call number `i` of `op` on `rung`.
    fn call(&mut self, gpu: &Gpu, op: Op, i: usize, stream: Stream, rung: Rung) -> Result<()> {
        let (shape, rows) = (&self.shape, &self.shape[..1]);
        let (device, at) = (&gpu.device, i % self.x.len());
        let x = self.x[at].view(shape)?;
        match op {
            Op::RmsNorm => {
                let (weight, y) = (Some(self.weight.view(&shape[1..])?), self.y[at].view_mut(shape)?);
                rms_norm::on_rung(device, x, weight, y, RmsNorm::default(), stream, Some(rung))
            }
            Op::Softmax => {
                softmax::on_rung(device, x, self.y[at].view_mut(shape)?, false, stream, Some(rung))
            }
            Op::CrossEntropy => {
                let [loss, lse] = &mut self.losses;
                let (targets, results) =
                    (self.targets.view(rows)?, [loss.view_mut(rows)?, lse.view_mut(rows)?]);
                let params = CrossEntropy::default();
                cross_entropy::on_rung(device, x, targets, results, params, stream, Some(rung))
            }
        }
    }
}

/// Prints the best rungs of `op` for rows of `cols` columns.
fn tune(gpu: &Gpu, copy: f64, op: Op, rows: usize, cols: usize) -> Result<()> {
    let mut operands = Operands::new(gpu, op, rows, cols)?;
    let mut results = vec![];
    for rung in op.rungs((cols / 8) as u32) {
        let time = gpu.time(8, |i, stream| operands.call(gpu, op, i, stream, rung))?;
        results.push((time, rung));
    }
    results.sort_by_key(|(time, _)| *time);
    for (time, Rung { held, team, teams, cluster, .. }) in results.iter().take(8) {
        let rate = op.bytes(rows, cols) as f64 / time.as_secs_f64();
        let (us, threads, name) = (time.as_secs_f64() * 1e6, team * teams, op.name());
        let (gbps, share) = (rate * 1e-9, rate / copy);
        println!("{name},{rows},{cols},{held},{team},{threads},{cluster},{us:.2},{gbps:.0},{share:.3}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("tune: {error}");
            return Ok(());
        }
    };
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let copy = gpu.copy_bandwidth(512 << 20)?;
    println!("{:?}, copy {:.0} GB/s", gpu.device, copy * 1e-9);
    println!("op,rows,cols,held,team,threads,cluster,us,gbps,of_copy");
    for op in Op::ALL {
        if wanted.is_empty() || wanted.iter().any(|name| name == op.name()) {
            for &(rows, cols) in SHAPES.iter().chain(MORE_SHAPES) {
                tune(&gpu, copy, op, rows, cols)?;
            }
        }
    }
    Ok(())
}
