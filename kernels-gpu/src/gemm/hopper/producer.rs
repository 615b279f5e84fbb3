//! The producer thread of the Hopper matrix products, which loads tiles into the ring of buffers.
use cuda_std::cluster;
use cuda_std::hopper::tensor_map::Map;
use cuda_std::thread;

use super::layout::{ROW_BYTES, RingLayout, RingPosition};
use super::params::{DEPTH, GemmParams};
use super::schedule::{Place, numbers};
use super::shape::GemmKernel;
use crate::gemm::epilogue::Epilogue;

/// Both blocks of a cluster, as a mask for a multicast.
const BOTH: u16 = 0b11;

/// Loads the tiles of `x` and `w` that the block needs for all its tiles of the result. If the epilogue
/// combines two halves of the columns of `x wᵀ`, a tile of `w` has rows of both halves. These halves start at
/// the rows `starts` of `w`.
///
/// # Safety
/// The tensor maps and the kernel argument `p` belong to this launch. The mbarriers are initialized. Only one
/// thread of the block calls this function.
#[inline(always)]
pub(crate) unsafe fn produce<K: GemmKernel>(
    layout: RingLayout<K>,
    x: Map,
    w: Map,
    p: &GemmParams,
    starts: [u32; 2],
) {
    let [x_rows, w_rows] = K::TILE.box_rows(K::Epilogue::HALVES);
    let half = if K::TILE.cluster > 1 { cluster::rank() } else { 0 };
    let (x_half, w_half) = if K::TILE.shares_x { (half * x_rows, 0) } else { (0, half * w_rows) };
    // First row of `w` that this block loads, relative to the first column of the tile. Row `n` of `w` gives
    // column `n` of the result.
    let w_start = match K::Epilogue::HALVES {
        true if half == 1 && !K::TILE.shares_x => starts[1],
        true => starts[0],
        false => w_half,
    };
    let mut at = RingPosition::FIRST;
    let [mut number, step] = numbers::<K>();
    while number < p.order.count() {
        let place = Place::of::<K>(number, p);
        number += step;
        let (mut depth, mut left) = (0, p.depth_tiles);
        while left > 0 {
            let stage = layout.stage(at);
            // SAFETY: the TMA copies read the operands and write the buffer. The tensor maps belong to this
            // launch. The wait guarantees that no consumer warpgroup still reads the buffer, in both blocks
            // of the cluster if a copy writes to both.
            unsafe {
                stage.empty.wait(at.parity ^ 1);
                stage.full.expect(K::X_BYTES + K::W_BYTES);
                let x_to = stage.x + x_half * ROW_BYTES;
                let x_from = [depth, place.row + x_half, 0, 0];
                let w_to = stage.w + w_half * ROW_BYTES;
                let w_from = [depth, place.column + w_start, 0, 0];
                if K::TILE.cluster > 1 && K::TILE.shares_x {
                    x.multicast(x_to, x_from, stage.full, BOTH);
                } else {
                    x.copy(x_to, x_from, stage.full);
                }
                if K::TILE.cluster > 1 && !K::TILE.shares_x {
                    w.multicast(w_to, w_from, stage.full, BOTH);
                } else {
                    w.copy(w_to, w_from, stage.full);
                    if K::Epilogue::HALVES {
                        let from = [depth, place.column + starts[1], 0, 0];
                        w.copy(w_to + K::W_BYTES / 2, from, stage.full);
                    }
                }
            }
            at = at.next(K::TILE.stages);
            // The optimization barrier `opaque` prevents loop unrolling. An unrolled loop would need more
            // registers than the producer has.
            [left, depth] = thread::opaque([left - 1, depth + DEPTH]);
        }
    }
}
