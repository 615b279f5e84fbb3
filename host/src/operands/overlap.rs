//! Checks that the outputs of an op share no memory with its other tensors.
use crate::operands::rows::Operand;
use crate::{Error, Result, View};

/// Returns an error in two cases: the output shares memory with a tensor in `others`, or two elements of the
/// output have the same address.
pub(crate) fn expect_disjoint(
    op: &'static str,
    (arg, out): Operand,
    others: &[Option<Operand>],
) -> Result<()> {
    if repeats(out) {
        return Err(out.bad_strides(op, arg, "an output must not repeat its elements"));
    }
    let Some(range) = out.byte_range() else { return Ok(()) };
    for &(other, view) in others.iter().flatten() {
        let Some(theirs) = view.byte_range() else { continue };
        if range.0 <= theirs.1 && theirs.0 <= range.1 && shares(out, view) {
            return Err(Error::Overlap { op, arg, other });
        }
    }
    Ok(())
}

/// Returns whether two tensors have the same elements at the same addresses.
pub(crate) fn is_same(a: &View, b: &View) -> bool {
    let dims = || a.shape().iter().zip(a.strides().iter().zip(b.strides()));
    let strides = || dims().all(|(&size, (stride, other))| size <= 1 || stride == other);
    a.ptr() == b.ptr() && a.dtype() == b.dtype() && a.shape() == b.shape() && strides()
}

/// Returns whether two elements of a tensor may have the same address. The function sorts the dimensions by
/// stride. For each dimension, it compares the stride with a distance. This distance is the largest distance
/// between two elements whose indices differ only in dimensions with smaller strides. If every stride is
/// larger than its distance, all addresses differ.
fn repeats(view: &View) -> bool {
    if view.shape().contains(&0) {
        return false;
    }
    let mut dims: Vec<_> = view.shape().iter().zip(view.strides()).filter(|(size, _)| **size > 1).collect();
    dims.sort_unstable_by_key(|(_, stride)| **stride);
    let mut reach = 0;
    dims.iter().any(|(size, stride)| {
        let within = **stride <= reach;
        reach += (*size - 1) * *stride;
        within
    })
}

/// One term of the distance between an element of one tensor and an element of another tensor: a stride in
/// bytes, and the smallest and the largest factor of this stride.
#[derive(Clone, Copy)]
struct Term {
    stride: i128,
    factors: [i128; 2],
}

impl Term {
    /// Returns the smallest and the largest distance that `terms` can add up to.
    fn reach(terms: &[Self]) -> [i128; 2] {
        [0, 1].map(|end| terms.iter().map(|term| term.factors[end] * term.stride).sum())
    }
}

/// Maximum number of steps of [`reachable`]. Slices of one buffer need fewer than 100 steps.
const MAX_STEPS: u32 = 10_000;

/// Returns whether two tensors have a byte in common. The answer is exact for slices of one buffer, such as
/// the columns of the queries and those of the keys in the rows of a projection. For strides that need more
/// than [`MAX_STEPS`] steps, the answer is true.
///
/// The distance between a byte of `a` and a byte of `b` is the distance between the first bytes, plus a
/// multiple of each stride. The tensors have a byte in common if this distance can be 0.
fn shares(a: &View, b: &View) -> bool {
    let mut terms: Vec<Term> = Vec::new();
    let mut add = |stride: i128, factors: [i128; 2]| {
        let factors = if stride < 0 { [-factors[1], -factors[0]] } else { factors };
        match terms.iter_mut().find(|term| term.stride == stride.abs()) {
            Some(term) => term.factors = [0, 1].map(|end| term.factors[end] + factors[end]),
            None => terms.push(Term { stride: stride.abs(), factors }),
        }
    };
    let sizes = [a, b].map(|view| view.dtype().size() as i128);
    add(1, [1 - sizes[0], sizes[1] - 1]);
    for (view, size, sign) in [(a, sizes[0], -1), (b, sizes[1], 1)] {
        for (&count, &stride) in view.shape().iter().zip(view.strides()) {
            let last = sign * (i128::from(count) - 1);
            add(i128::from(stride) * size, [last.min(0), last.max(0)]);
        }
    }
    terms.sort_unstable_by_key(|term| -term.stride);
    let mut steps = MAX_STEPS;
    reachable(&terms, a.ptr().addr() as i128 - b.ptr().addr() as i128, &mut steps)
}

/// Returns whether `terms` can add up to `distance`. The terms are sorted by stride, the largest first. In
/// slices of one buffer, the smaller strides reach at most as far as the next larger stride, so only a few
/// factors of each stride are possible.
fn reachable(terms: &[Term], distance: i128, steps: &mut u32) -> bool {
    let Some((&Term { stride, factors: [first, last] }, rest)) = terms.split_first() else {
        return distance == 0;
    };
    if stride == 0 {
        return reachable(rest, distance, steps);
    }
    let [low, high] = Term::reach(rest);
    let first = first.max(-(high - distance).div_euclid(stride));
    let last = last.min((distance - low).div_euclid(stride));
    (first..=last).any(|factor| {
        *steps = steps.saturating_sub(1);
        *steps == 0 || reachable(rest, distance - factor * stride, steps)
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;
    use crate::Dtype;

    /// Returns a bf16 tensor whose first element is element `offset` of a buffer.
    fn slice(offset: usize, shape: &[i64], strides: &[i64]) -> View<'static> {
        let start = std::ptr::without_provenance::<c_void>(0x1000 + 2 * offset);
        // SAFETY: the tests read the address of the tensor, and never its memory.
        unsafe { View::from_raw(start, Dtype::Bf16, shape, strides) }.unwrap()
    }

    #[test]
    fn columns_of_one_buffer_do_not_overlap() {
        // Rows of a projection with 8 query heads, 2 key heads and 2 value heads of 64 columns.
        let row = 12 * 64;
        let heads = |first: usize, count: i64| slice(first * 64, &[2, 5, count, 64], &[5 * row, row, 64, 1]);
        assert!(!shares(&heads(0, 8), &heads(8, 2)) && !shares(&heads(8, 2), &heads(0, 8)));
        assert!(!shares(&heads(0, 8), &heads(10, 2)));
        assert!(shares(&heads(0, 8), &heads(7, 2)), "they share a head");
        // The query, key and value of each head are adjacent. The rows also have 5 columns of padding, so
        // that their length is no multiple of a head's length.
        for row in [row, row + 5] {
            let part = |n: usize| slice(n * 64, &[2, 5, 4, 64], &[5 * row, row, 3 * 64, 1]);
            assert!(!shares(&part(0), &part(1)) && !shares(&part(2), &part(0)));
            assert!(shares(&part(1), &part(1)));
        }
        // The heads come before the tokens, or one tensor has no batch dimension.
        let transposed = slice(8 * 64, &[2, 2, 5, 64], &[5 * row, 64, row, 1]);
        assert!(!shares(&heads(0, 8), &transposed));
        assert!(!shares(&heads(0, 8), &slice(8 * 64, &[5, 2, 64], &[row, 64, 1])));
    }

    #[test]
    fn tensors_that_share_elements_overlap() {
        let wide = slice(0, &[4, 16], &[32, 1]);
        assert!(!shares(&wide, &slice(16, &[4, 16], &[32, 1])));
        for (offset, columns) in [(0, 16), (8, 16), (15, 1), (31, 2), (33, 16)] {
            assert!(shares(&wide, &slice(offset, &[4, columns], &[32, 1])), "{offset}, {columns}");
        }
        assert!(shares(&wide, &slice(16, &[4, 16], &[48, 1])), "rows of another length");
        assert!(shares(&wide, &slice(16, &[64], &[1])), "a tensor without gaps");
        assert!(!shares(&wide, &slice(16, &[2, 16], &[i64::MAX / 2, 1])), "the sum does not overflow");
    }

    /// Compares [`shares`] with the set of all addresses, for random small tensors.
    #[test]
    fn random_tensors() {
        let mut state = 1_u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        let mut found = [0; 2];
        for _ in 0..20_000 {
            let [a, b] = [(); 2].map(|()| {
                let shape = [(); 3].map(|()| 1 + below(4) as i64);
                slice(below(40) as usize, &shape, &[(); 3].map(|()| below(24) as i64))
            });
            let [first, second] = [&a, &b].map(addresses);
            let expected = first.iter().any(|address| second.contains(address));
            assert_eq!(shares(&a, &b), expected, "{a:?} {b:?}");
            found[usize::from(expected)] += 1;
        }
        assert!(found[0] > 1_000 && found[1] > 1_000, "{found:?}");
    }

    /// Returns the addresses of all elements of a tensor with three dimensions.
    fn addresses(view: &View) -> Vec<i64> {
        let ([a, b, c], [i, j, k]) = (view.shape().try_into().unwrap(), view.strides().try_into().unwrap());
        let at = |x, y, z| view.ptr().addr() as i64 + 2 * (x * i + y * j + z * k);
        let columns = |x, y| (0..c).map(move |z| at(x, y, z));
        (0..a).flat_map(|x| (0..b).flat_map(move |y| columns(x, y))).collect::<Vec<i64>>()
    }
}
