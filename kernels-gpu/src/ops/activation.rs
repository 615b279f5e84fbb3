//! `y = f(x + bias)`, element by element: see [`Function`](crate::activations::Function) for `f`. The bias is optional and one row.
//!
//! A thread loads its packs before it computes any, so that the loads are in flight together. `activation_<dtype>`
//! takes any layout; `activation_hold2_<dtype>` wants rows that can be read 16 bytes at a time ([`Rows::is_vector`]).
use cuda_std::prelude::*;

use crate::activations::Params;
use crate::elementwise::{Bias, MAX_THREADS};

/// Blocks of 256 threads for each of which there are 48 registers, as many as the functions want; more loads in flight
/// than with 64. A Turing multiprocessor has 1024 threads.
const BLOCKS: u32 = if cfg!(all(target_arch = "nvptx64", not(target_feature = "sm_80"))) { 4 } else { 5 };

/// # Safety
/// The host checked that `x` and `y` have the extent's rows and that `bias` is null or one row, all
/// `Rows::is_vector` if `VECTOR`, and that `y` overlaps nothing else.
#[inline(always)]
unsafe fn activation<T: Elem, const HELD: usize, const VECTOR: bool, const MIN_BLOCKS: u32>(
    x: Rows,
    bias: *const u8,
    y: Rows,
    p: Params,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    let team = Team::of_block();
    let (at, cols) = p.extent.row(team);
    // SAFETY: as the caller promises; a team's row is its own.
    let (x, bias, y) = unsafe {
        (
            Row::<T, VECTOR>::of(&x, team, at, cols),
            Bias::<T, VECTOR>::of(bias, team, cols),
            RowMut::<T, VECTOR>::of(&y, team, at, cols),
        )
    };
    for first in p.extent.parts::<HELD>() {
        let mut held = [Pack::<T>::ZERO; HELD];
        for i in 0..HELD {
            held[i] = x.load(first + i as u32, Load::ReadOnly);
        }
        for i in 0..HELD {
            let tile = first + i as u32;
            let value = if p.exact != 0 {
                p.function.exact(bias.plus(held[i], tile)).pack()
            } else {
                Pack::from_lanes(p.function.fast::<T>(bias.added(held[i], tile, false)))
            };
            y.store(tile, value, Store::Default);
        }
    }
}

entry! {
    activation<T: [f32, f16, bf16]>(x: Rows, bias: *const u8, y: Rows, p: Params)
        => activation::<T, 1, false, 3>(x, bias, y, p);
    activation_hold2<T: [f32, f16, bf16]>(x: Rows, bias: *const u8, y: Rows, p: Params)
        => activation::<T, 2, true, BLOCKS>(x, bias, y, p)
}
