//! Checks batch invariance: the bits of a row's result must not depend on the other rows of the tensor.
use half::bf16;

use crate::case;
use crate::case::seed;
use crate::compare::same_bits;
use crate::tensor::{random, values};

/// Checks `f`, a function that computes `N` result matrices from a matrix `[rows, cols]`.
///
/// For each number of columns in `cols`, calls `f` with a matrix of many rows, and with one and with seven of
/// these rows. Panics if the result of a row does not have the same bits in all these calls.
pub fn rows_stand_alone<const N: usize>(cols: &[usize], f: impl Fn(&[bf16], [i64; 2]) -> [Vec<bf16>; N]) {
    let seed = seed();
    for &cols in cols {
        case!("{cols} columns");
        let rows = if cols > 10_000 { 9 } else { 300 };
        let x: Vec<bf16> = values(&mut random(seed), rows * cols);
        let some = |first: usize, count: usize| {
            f(&x[first * cols..(first + count) * cols], [count as i64, cols as i64])
        };
        let all = some(0, rows);
        for first in [0, 1, rows / 2, rows - 7] {
            let first = first.min(rows - 7);
            for count in [1, 7] {
                for (part, all) in some(first, count).iter().zip(&all) {
                    same_bits(part, &all[first * cols..(first + count) * cols]);
                }
            }
        }
    }
}
