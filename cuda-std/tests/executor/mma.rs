//! Tests the layout of matrix fragments and the results of matrix multiplications. The expected results come
//! from simple loops.
use cuda_std::cpu::FaultKind;
use cuda_std::mma::{self, Chunk, MatrixElem};
use half::{bf16, f16};
use proptest::prelude::*;

use super::*;

/// Returns an integer from -8 to 7 that depends on `seed`, `row` and `col`. f32 represents sums of products
/// of such integers without rounding.
fn small<T: Elem>(seed: u32, row: usize, col: usize) -> T {
    let mixed = seed.wrapping_add((row * 31 + col * 17) as u32).wrapping_mul(0x9E37_79B9);
    T::from_f32((mixed >> 28) as f32 - 8.0)
}

/// Writes a 16 x 16 matrix of the integers that `small` returns to shared memory. Each row takes two chunks
/// of 16 bytes.
fn fill<T: Elem>(rows: &Shared<Chunk>, seed: u32) {
    let (row, half) = (warp::lane() as usize / 2, warp::lane() as usize % 2);
    let bits = |col: usize| small::<T>(seed, row, 8 * half + col).to_bits();
    // SAFETY: each lane writes a different 16-byte chunk of `rows`. A barrier separates these writes from
    // later reads.
    unsafe { rows.set(warp::lane(), Chunk([0, 2, 4, 6].map(|col| bits(col) | bits(col + 1) << 16))) };
    block::sync();
}

/// Computes `C + A B` on the executor and compares the result with a plain loop. `A` is row-major. `B` is
/// column-major if `in_columns` is true, otherwise row-major.
fn product<T: MatrixElem>(seed: u32, in_columns: bool) {
    let out: Vec<_> = (0..2).map(|_| zeros(128)).collect();
    run([1; 3], [32, 1, 1], 2 * 16 * 32, &|| {
        let mut memory = SharedMemory::of_launch();
        let (a, b) = (memory.take(32), memory.take(32));
        fill::<T>(&a, seed);
        fill::<T>(&b, !seed);
        let (lane, low) = (warp::lane(), warp::lane() % 16);
        // SAFETY: the loads read 16-byte chunks of `a` and `b`, and the chunk indices lie inside these
        // arrays. `fill` wrote both matrices, and ended with a barrier.
        let (a, [b0, b1, b2, b3]) = unsafe {
            let left = mma::load(&a, low * 2 + lane / 16);
            let right = if in_columns {
                mma::load(&b, (lane % 8 + lane / 16 * 8) * 2 + lane / 8 % 2)
            } else {
                mma::load_transposed(&b, low * 2 + lane / 16)
            };
            (left, right)
        };
        for (half, b) in [[b0, b1], [b2, b3]].into_iter().enumerate() {
            for (at, sum) in T::mma(a, b, [0.5, 1.5, 2.5, 3.5]).into_iter().enumerate() {
                out[half][lane as usize * 4 + at].store(sum.to_bits(), Relaxed);
            }
        }
    })
    .unwrap();
    for (half, out) in out.iter().enumerate() {
        for (at, got) in values(out).into_iter().enumerate() {
            let (lane, part) = (at / 4, at % 4);
            let (row, col) = (lane / 4 + part / 2 * 8, half * 8 + lane % 4 * 2 + part % 2);
            let b = |k: usize| if in_columns { small::<T>(!seed, col, k) } else { small::<T>(!seed, k, col) };
            let sum: f32 = (0..16).map(|k| small::<T>(seed, row, k).to_f32() * b(k).to_f32()).sum();
            assert_eq!(f32::from_bits(got), sum + 0.5 + part as f32, "row {row}, column {col}");
        }
    }
}

proptest! {
    #[test]
    fn products_are_those_of_plain_loops(seed in any::<u32>(), in_columns in any::<bool>()) {
        product::<f16>(seed, in_columns);
        product::<bf16>(seed, in_columns);
    }
}

#[test]
fn a_copy_brings_a_chunk_or_zeros() {
    let from = Chunk([1, 2, 3, 4]);
    let from = (&raw const from).addr();
    run([1; 3], [2, 1, 1], 32, &|| {
        let to = SharedMemory::of_launch().take::<Chunk>(2);
        // SAFETY: each thread copies to its own 16-byte chunk and reads only this chunk. The source `from`
        // exists until the launch has ended.
        let chunk = unsafe {
            to.copy_or_zero(me(), from as *const u8, me() == 0);
            cuda_std::copy::wait();
            to.get(me())
        };
        assert_eq!(chunk.0, if me() == 0 { [1, 2, 3, 4] } else { [0; 4] });
    })
    .unwrap();
}

#[test]
fn a_product_wants_the_whole_warp() {
    let fault = fault(32, 0, &|| {
        if me() != 5 {
            f16::mma([0; 4], [0; 2], [0.0; 4]);
        }
    });
    let FaultKind::MissingLanes { operation, missing, .. } = fault.kind else { panic!("{fault}") };
    assert_eq!((operation, missing), ("mma", 1 << 5));
}
