//! The body of the Hopper matrix products. One warpgroup loads tiles, and the other warpgroups multiply
//! them.
use cuda_std::hopper::tensor_map::Map;
use cuda_std::hopper::{give_registers, take_registers, warp_group};
use cuda_std::{cluster, thread, warp};

use super::consumer::{consume, start};
use super::layout::RingLayout;
use super::output::TileOutput;
use super::params::GemmParams;
use super::producer::produce;
use super::shape::GemmKernel;
use crate::gemm::epilogue::Epilogue;

/// Computes `y = epilogue(x wᵀ + bias)`. Warpgroup 0 is the producer, which loads tiles. The other warpgroups
/// are the consumers, which multiply them. At the start, the producer gives up registers, and the consumers
/// get additional registers (PTX `setmaxnreg`).
///
/// # Safety
/// The host created the tensor maps, `p` and the argument of the epilogue for this launch. The launch has the
/// block size and the shared memory that `K::TILE` requires.
#[inline(always)]
pub(crate) unsafe fn gemm<K: GemmKernel>(p: &GemmParams, epilogue: K::Epilogue) {
    if K::TILE.groups == 2 {
        thread::launch_bounds::<384, 1>()
    } else {
        thread::launch_bounds::<512, 1>()
    }
    if K::TILE.cluster == 2 {
        cluster::bounds::<2>()
    }
    let layout = RingLayout::<K>::of_launch();
    // SAFETY: the first three kernel arguments, which this code reads, are the tensor maps that the host
    // created. If TMA loads an operand of the epilogue, so is the fourth one. The launch has as much shared
    // memory as `layout` needs.
    unsafe {
        let (x, w, y) = (Map::argument::<0>(), Map::argument::<1>(), Map::argument::<2>());
        let operand = if K::LOADS_OPERAND { Map::argument::<3>() } else { y };
        layout.make_barriers();
        let group = warp_group();
        if group == 0 {
            if K::TILE.groups == 2 {
                give_registers::<24>()
            } else {
                give_registers::<32>()
            }
            if thread::index()[0] == 0 {
                produce::<K>(layout, x, w, p, epilogue.starts());
            }
        } else {
            if K::TILE.groups == 2 {
                take_registers::<240>()
            } else {
                take_registers::<160>()
            }
            start::<K>(group - 1);
            consume::<K>(TileOutput { layout, group: group - 1, y, operand, p, epilogue });
        }
    }
    if K::TILE.cluster > 1 {
        // Do not exit yet: the other block of the cluster may still signal to the mbarriers of this block.
        warp::sync(u32::MAX);
        cluster::sync();
    }
}
