//! The body of the Hopper attention kernels. One warpgroup loads tiles, and the other warpgroups compute
//! attention.
use cuda_std::hopper::tensor_map::Map;
use cuda_std::hopper::{give_registers, take_registers, warp_group};
use cuda_std::thread;

use super::consumer::consume;
use super::layout::Layout;
use super::params::HopperParams;
use super::producer::{Maps, produce_keys, produce_masks, produce_values};
use super::shape::Shape;

/// Runs a Hopper attention kernel. Warpgroup 0 is the producer, which loads tiles. The other warpgroups are
/// the consumers, which compute attention. At the start, the producer gives up registers, and the consumers
/// get additional registers (PTX `setmaxnreg`).
///
/// # Safety
/// The host created the tensor maps and `p` for this launch. The launch has the block size and the shared
/// memory that `Layout<K>` requires.
#[inline(always)]
pub(crate) unsafe fn attention<K: Shape>(p: &HopperParams) {
    if K::GROUPS == 2 {
        thread::launch_bounds::<384, 1>()
    } else {
        thread::launch_bounds::<512, 1>()
    }
    let layout = Layout::<K>::of_launch();
    // SAFETY: the first four kernel arguments, which this code reads, are the tensor maps that the host
    // created. The launch has as much shared memory as `layout` needs.
    unsafe {
        let maps = Maps { q: Map::argument::<0>(), k: Map::argument::<1>(), v: Map::argument::<2>() };
        let out = Map::argument::<3>();
        layout.make_barriers();
        let group = warp_group();
        if group == 0 {
            if K::GROUPS == 2 {
                give_registers::<24>()
            } else {
                give_registers::<32>()
            }
            match thread::index()[0] {
                0 => produce_keys::<K>(layout, maps, p),
                32 => produce_values::<K>(layout, maps, p),
                96 if K::STAGED => out.prefetch(),
                64..96 if K::PADDED => produce_masks::<K>(layout, p),
                _ => {}
            }
        } else {
            if K::GROUPS == 2 {
                take_registers::<240>()
            } else {
                take_registers::<160>()
            }
            consume::<K>(layout, group - 1, out, p);
        }
    }
}
