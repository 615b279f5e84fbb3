//! The consumer warpgroups of the Hopper matrix products, which multiply tiles and write the result.
use cuda_std::hopper::barrier::{Barrier, Named};
use cuda_std::hopper::tensor_map::Map;
use cuda_std::hopper::wgmma::{self, Descriptor};

use super::layout::{ROW_BYTES, RingLayout, RingPosition};
use super::params::{DEPTH, GemmParams, WGMMA_ROWS};
use super::schedule::{Place, numbers};
use super::shape::GemmKernel;
use super::{output, output_transposed};
use crate::layout::own_thread::own_thread;

/// Elements of K of a `wgmma` instruction.
const WGMMA_DEPTH: u32 = 16;

/// Computes the tiles of consumer warpgroup `group`.
///
/// # Safety
/// `p` and the tensor map of the result were created for this launch. The mbarriers are initialized. The
/// whole consumer warpgroup `group` calls this function.
#[inline(always)]
pub(crate) unsafe fn consume<K: GemmKernel>(
    layout: RingLayout<K>,
    group: u32,
    y: Map,
    p: &GemmParams,
    epilogue: K::Epilogue,
) {
    let mut at = RingPosition::FIRST;
    let first_row = if K::TILE.ping_pong { 0 } else { group * K::TILE.blocks * WGMMA_ROWS };
    let (mut owner, mut sums, mut stores) = (0, K::ZERO, output::Stores::default());
    let [mut number, step] = numbers::<K>();
    while number < p.order.count() {
        let place = Place::of::<K>(number, p);
        number += step;
        if K::TILE.ping_pong && owner != group {
            owner = group;
            at = at.skip::<K>(p.depth_tiles);
            continue;
        }
        // SAFETY: the caller guarantees that `p` and the tensor map belong to this launch, and that the
        // mbarriers are initialized. The whole warpgroup executes this code.
        unsafe {
            if !K::TILE.transposed {
                output::prefetch::<K>([place.row + first_row, place.column], epilogue);
            }
            if K::TILE.ping_pong {
                ping_pong(group).sync();
            }
            at = multiply::<K>(&mut sums, layout, first_row * ROW_BYTES, at, p.depth_tiles, || {
                if K::TILE.ping_pong {
                    ping_pong(group ^ 1).arrive();
                }
            });
            let place = [place.row + first_row, place.column];
            if K::TILE.transposed {
                output_transposed::store::<K>(sums.as_ref(), layout, group, place, y, p);
            } else {
                output::store::<K>(sums.as_ref(), layout, group, place, y, p, epilogue, &mut stores);
            }
        }
        owner = group ^ 1;
    }
    if K::TILE.ping_pong && owner == group {
        // The other warpgroup has computed the last tile, and has arrived on the barrier of this one.
        // SAFETY: the whole warpgroup executes this code.
        unsafe { ping_pong(group).sync() }
    }
    stores.finish();
}

/// Lets the first warpgroup start with its first tile.
///
/// # Safety
/// The whole consumer warpgroup `group` calls this function.
#[inline(always)]
pub(crate) unsafe fn start<K: GemmKernel>(group: u32) {
    if K::TILE.ping_pong && group == 1 {
        // SAFETY: the whole warpgroup arrives on the named barrier.
        unsafe { ping_pong(0).arrive() }
    }
}

/// Returns the named barrier at which consumer warpgroup `group` waits until it may start its matrix
/// multiplications. The barrier counts the threads of both warpgroups.
#[inline(always)]
fn ping_pong(group: u32) -> Named<256> {
    Named(1 + group)
}

/// Computes the sums of a tile. `x_offset` is the distance in bytes of the warpgroup's rows from the start of
/// a tile of `x`. The function calls `hand_over` after it has started the last multiplications. It returns
/// the next position of the ring.
///
/// # Safety
/// The mbarriers are initialized. The whole warpgroup calls this function.
#[inline(always)]
unsafe fn multiply<K: GemmKernel>(
    sums: &mut K::Tile,
    layout: RingLayout<K>,
    x_offset: u32,
    first: RingPosition,
    depth_tiles: u32,
    hand_over: impl FnOnce(),
) -> RingPosition {
    let (mut before, mut at, mut left) = (first, first.next::<K>(), depth_tiles - 1);
    // SAFETY: the waits guarantee that the tiles have arrived in shared memory. The whole warpgroup executes
    // this code.
    unsafe {
        begin::<K>(sums, layout, x_offset, first, false);
        while left > 0 {
            begin::<K>(sums, layout, x_offset, at, true);
            wgmma::wait::<1>();
            release::<K>(layout.stage(before).empty);
            (before, at, left) = (at, at.next::<K>(), left - 1);
        }
        hand_over();
        wgmma::wait::<0>();
        for block in sums.as_mut() {
            wgmma::settle(block);
        }
        release::<K>(layout.stage(before).empty);
    }
    at
}

/// Waits for the buffer `at` of the ring and starts its multiplications, as one group. If `add` is false, the
/// multiplications overwrite the sums.
///
/// # Safety
/// The mbarriers are initialized. The whole warpgroup calls this function.
#[inline(always)]
unsafe fn begin<K: GemmKernel>(
    sums: &mut K::Tile,
    layout: RingLayout<K>,
    x_offset: u32,
    at: RingPosition,
    add: bool,
) {
    let stage = layout.stage(at);
    let (x, w) = (Descriptor::swizzled_128(stage.x + x_offset, 16), Descriptor::swizzled_128(stage.w, 16));
    // SAFETY: the wait guarantees that the tiles have arrived in shared memory. The whole warpgroup executes
    // this code.
    unsafe {
        stage.full.wait(at.parity);
        wgmma::fence();
        for step in 0..DEPTH / WGMMA_DEPTH {
            let within = step * WGMMA_DEPTH * 2;
            for (block, sums) in sums.as_mut().iter_mut().enumerate() {
                let x = x.offset(block as u32 * WGMMA_ROWS * ROW_BYTES + within);
                wgmma::mma_shared::<K::Elem, K::Sums>(sums, x, w.offset(within), add || step > 0);
            }
        }
        wgmma::commit();
    }
}

/// Signals that the warpgroup has read a buffer. `wgmma` is an instruction of the whole warpgroup, so one
/// thread signals for all. If both blocks of the cluster fill the buffer, the function signals to both.
///
/// # Safety
/// The mbarriers are initialized. The whole warpgroup calls this function after it has waited for its
/// multiplications.
#[inline(always)]
unsafe fn release<K: GemmKernel>(empty: Barrier) {
    let thread = own_thread() % 128;
    // SAFETY: the mbarriers are initialized. The blocks of a cluster synchronize before they exit.
    unsafe {
        if K::TILE.cluster == 1 {
            if thread == 0 {
                empty.arrive();
            }
        } else if thread < K::TILE.cluster {
            empty.arrive_in_after_wgmma(thread);
        }
    }
}
