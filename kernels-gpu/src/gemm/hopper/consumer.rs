//! The consumer warpgroups of the Hopper matrix products, which multiply tiles and write the result.
use cuda_std::hopper::barrier::{Barrier, Named};
use cuda_std::hopper::wgmma::{self, Descriptor};
use cuda_std::math::fma;

use super::layout::{ROW_BYTES, RingLayout, RingPosition};
use super::output::{Stores, TileOutput};
use super::output_transposed;
use super::params::{DEPTH, WARP_ROWS, WGMMA_ROWS};
use super::schedule::{Place, numbers};
use super::shape::{GemmKernel, ProductTypes};
use crate::gemm::epilogue::Epilogue;
use crate::gemm::epilogue::scaled::BLOCK;
use crate::layout::own_thread::own_thread;

/// The largest number of factors of a thread. A tile of `yᵀ` has at most 64 columns.
const MAX_FACTORS: usize = 16;
/// Factors of the products of a buffer.
type Factors = [f32; MAX_FACTORS];

/// Elements of K of a `wgmma` instruction, or pairs of elements if they have 8 bits.
const WGMMA_DEPTH: u32 = 16;

/// Computes the tiles of the result that belong to consumer warpgroup `output.group`.
///
/// # Safety
/// The fields of `output` were created for this launch. The mbarriers are initialized. The whole consumer
/// warpgroup calls this function.
#[inline(always)]
pub(crate) unsafe fn consume<K: GemmKernel>(output: TileOutput<K>) {
    let TileOutput { layout, group, p, .. } = output;
    let mut at = RingPosition::FIRST;
    let first_row = if K::TILE.ping_pong { 0 } else { group * K::TILE.blocks * WGMMA_ROWS };
    let (mut owner, mut sums, mut stores) = (0, K::ZERO, Stores::FIRST);
    let [mut number, step] = numbers::<K>();
    while number < p.order.count() {
        let place = Place::of::<K>(number, p);
        number += step;
        if K::TILE.ping_pong && owner != group {
            owner = group;
            at = at.skip::<K>(p.depth_tiles);
            continue;
        }
        // SAFETY: the functions read tiles in shared memory and store the result. The caller guarantees that
        // `output` belongs to this launch, and that the mbarriers are initialized. The whole warpgroup
        // executes this code.
        unsafe {
            if K::TILE.ping_pong {
                ping_pong(group).sync();
            }
            let (place, rows) = ([place.row + first_row, place.column], first_row * ROW_BYTES);
            let started = || output.prepare(place, &stores);
            let factors = |block| block_factors::<K>(&output.epilogue, place, block);
            at = multiply::<K>(&mut sums, layout, rows, at, p.depth_tiles, factors, started, || {
                if K::TILE.ping_pong {
                    ping_pong(group ^ 1).arrive();
                }
            });
            if K::TILE.transposed {
                output_transposed::store::<K>(sums.as_ref(), &output, place);
            } else {
                output.store(sums.as_ref(), place, &mut stores);
            }
        }
        owner = group ^ 1;
    }
    if K::TILE.ping_pong && owner == group {
        // The other warpgroup computed the last tile, and then arrived on this warpgroup's barrier. Each
        // arrival needs a matching wait, so wait at the barrier once more.
        // SAFETY: a named barrier requires that whole warps wait. The whole warpgroup executes this code.
        unsafe { ping_pong(group).sync() }
    }
    stores.finish();
}

/// Lets consumer warpgroup 0 start with its first tile, by an arrival of warpgroup 1 on its barrier. Only
/// ping-pong kernels, in which the warpgroups multiply in turn, need this call.
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
/// multiplications. The barrier counts the 256 threads of both consumer warpgroups.
#[inline(always)]
fn ping_pong(group: u32) -> Named<256> {
    Named(1 + group)
}

/// Computes this warpgroup's accumulators of a tile of `x wᵀ`. The operands come from a ring of buffers,
/// which the producer warpgroup fills. `x_offset` is the distance in bytes from the start of a tile of `x` to
/// the warpgroup's rows. `factors` returns the factors of the products of a buffer. After the first
/// multiplications have started, the function calls `started`. After the last ones have started, it calls
/// `hand_over`. It returns the position in the ring after the buffers that it has read.
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
    factors: impl Fn(u32) -> Factors,
    started: impl FnOnce(),
    hand_over: impl FnOnce(),
) -> RingPosition {
    if K::Types::PROMOTES {
        // SAFETY: the caller satisfies the requirements, which are the same.
        return unsafe {
            multiply_promoted::<K>(sums, layout, x_offset, first, depth_tiles, factors, started, hand_over)
        };
    }
    let (mut before, mut at, mut left) = (first, first.next(K::TILE.stages), depth_tiles - 1);
    // SAFETY: the functions read tiles in shared memory. Their waits on the mbarriers `full` guarantee that
    // the tiles have arrived. The whole warpgroup executes this code.
    unsafe {
        begin::<K>(sums, layout, x_offset, first, false);
        started();
        while left > 0 {
            begin::<K>(sums, layout, x_offset, at, true);
            wgmma::wait::<1>();
            release::<K>(layout.stage(before).empty);
            (before, at, left) = (at, at.next(K::TILE.stages), left - 1);
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

/// Does the same as [`multiply`], but the accumulators of `wgmma` have the products of one buffer only, 128
/// bytes of K. The function adds them to the sums in f32. While this warpgroup waits and adds, other
/// warpgroups multiply.
///
/// # Safety
/// The requirements of [`multiply`] apply.
#[inline(always)]
unsafe fn multiply_promoted<K: GemmKernel>(
    sums: &mut K::Tile,
    layout: RingLayout<K>,
    x_offset: u32,
    first: RingPosition,
    depth_tiles: u32,
    factors: impl Fn(u32) -> Factors,
    started: impl FnOnce(),
    hand_over: impl FnOnce(),
) -> RingPosition {
    let (mut at, mut block, mut products) = (first, 0, K::ZERO);
    *sums = K::ZERO;
    started();
    // SAFETY: as in `multiply`. `begin` waits until the buffer contains its tiles.
    unsafe {
        while block + 1 < depth_tiles {
            let own = factors(block);
            begin::<K>(&mut products, layout, x_offset, at, false);
            add_products::<K>(sums, &mut products, own, layout.stage(at).empty);
            (at, block) = (at.next(K::TILE.stages), block + 1);
        }
        let own = factors(block);
        begin::<K>(&mut products, layout, x_offset, at, false);
        hand_over();
        add_products::<K>(sums, &mut products, own, layout.stage(at).empty);
    }
    at.next(K::TILE.stages)
}

/// Waits for the multiplications, releases their buffer, and adds their results, multiplied by `factors`, to
/// the sums.
///
/// # Safety
/// The requirements of [`release`] apply.
#[inline(always)]
unsafe fn add_products<K: GemmKernel>(
    sums: &mut K::Tile,
    products: &mut K::Tile,
    factors: Factors,
    empty: Barrier,
) {
    // SAFETY: the caller satisfies the requirements of `release`.
    unsafe {
        wgmma::wait::<0>();
        for block in products.as_mut() {
            wgmma::settle(block);
        }
        release::<K>(empty);
    }
    for (sums, products) in sums.as_mut().iter_mut().zip(products.as_ref()) {
        for (i, (sum, &product)) in sums.as_mut().iter_mut().zip(products.as_ref()).enumerate() {
            *sum = match K::Epilogue::BLOCK_SCALES {
                true if K::TILE.transposed => fma(product, factors[i / 4 * 2 + i % 2], *sum),
                true => fma(product, factors[i / 2 % 2], *sum),
                false => *sum + product,
            };
        }
    }
}

/// Returns the products of the scales of `x` and `w` for block `block` of 128 elements of K, if the operands
/// have scales per block. `[row, column]` is the place of the warpgroup's first accumulator. If the kernel
/// computes `y`, the first two numbers are for the thread's two rows of `x`. If it computes `yᵀ`, there is
/// one number for each of the thread's columns, which are rows of `x`.
///
/// # Safety
/// The epilogue belongs to this launch.
#[inline(always)]
unsafe fn block_factors<K: GemmKernel>(
    epilogue: &K::Epilogue,
    [row, column]: [u32; 2],
    block: u32,
) -> Factors {
    if !K::Epilogue::BLOCK_SCALES {
        return [1.0; MAX_FACTORS];
    }
    const {
        // A tile lies in one block of 128 rows of `w`, and a warpgroup has one block of 64 rows.
        let w_rows = if K::TILE.transposed { WGMMA_ROWS } else { K::TILE.columns };
        assert!(!K::Epilogue::BLOCK_SCALES || BLOCK.is_multiple_of(w_rows) && K::TILE.blocks == 1);
        assert!(K::TILE.columns as usize / 4 <= MAX_FACTORS || !K::TILE.transposed);
    }
    let (warp, lane) = (own_thread() % 128 / 32, own_thread() % 32);
    core::array::from_fn(|i| {
        let i = i as u32;
        let [x_row, w_row] = match K::TILE.transposed {
            _ if i >= if K::TILE.transposed { K::TILE.columns / 4 } else { 2 } => return 1.0,
            true => [column + i / 2 * 8 + lane % 4 * 2 + i % 2, row],
            false => [row + warp * WARP_ROWS + lane / 4 + i * 8, column],
        };
        // SAFETY: the caller guarantees that the epilogue belongs to this launch.
        let [x, w] = unsafe { epilogue.block_scales(x_row, w_row, block) };
        x * w
    })
}

/// Waits until buffer `at` in shared memory contains its tiles, and starts to multiply them. These
/// multiplications form one `wgmma` group. If `add` is false, their results overwrite the accumulators
/// `sums`.
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
    // SAFETY: `wgmma` reads the tiles in shared memory. The wait guarantees that they have arrived. The whole
    // warpgroup executes this code.
    unsafe {
        stage.full.wait(at.parity);
        wgmma::fence();
        for step in 0..DEPTH / WGMMA_DEPTH {
            let within = step * WGMMA_DEPTH * 2;
            for (block, sums) in sums.as_mut().iter_mut().enumerate() {
                let x = x.offset(block as u32 * WGMMA_ROWS * ROW_BYTES + within);
                wgmma::mma_shared::<<K::Types as ProductTypes>::Input, K::Sums>(
                    sums,
                    x,
                    w.offset(within),
                    add || step > 0,
                );
            }
        }
        wgmma::commit();
    }
}

/// Signals that the warpgroup has finished reading a buffer. One thread signals for the whole warpgroup,
/// because `wgmma` is a collective instruction of the warpgroup. If both blocks of a cluster write to the
/// buffer, the thread signals to both blocks.
///
/// # Safety
/// The mbarriers are initialized. The whole warpgroup calls this function after it has waited for its
/// multiplications.
#[inline(always)]
unsafe fn release<K: GemmKernel>(empty: Barrier) {
    let thread = own_thread() % 128;
    // SAFETY: the arrivals write mbarriers, which the caller guarantees to be initialized. The mbarriers of
    // the other block still exist, because the blocks of a cluster synchronize before they exit.
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
