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
        if range.0 <= theirs.1 && theirs.0 <= range.1 && !interleaved(out, view) {
            return Err(Error::Overlap { op, arg, other });
        }
    }
    Ok(())
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

/// Returns whether two tensors are different ranges of columns of one wider tensor. Examples are
/// `x[..., :64]` and `x[..., 64:]`, or the query heads and the key heads in a row of a projection. Such
/// tensors share no element, although their address ranges overlap.
///
/// The pitch is the distance between two rows of the wider tensor. The function does not know the pitch, so
/// it tries each stride of the two tensors as the pitch. For each of these pitches, it checks that each
/// tensor has the same columns in every row, and that the two tensors have no column in common.
fn interleaved(a: &View, b: &View) -> bool {
    let mut pitches = [a, b].into_iter().flat_map(|view| {
        let size = view.dtype().size() as i64;
        let dims = view.shape().iter().zip(view.strides());
        dims.filter_map(move |(&count, stride)| {
            stride.checked_mul(size).filter(|&bytes| count > 1 && bytes > 0)
        })
    });
    let apart = b.ptr() as i64 - a.ptr() as i64;
    pitches.any(|pitch| {
        let (Some(first), Some(second)) = (width(a, pitch), width(b, pitch)) else { return false };
        let apart = apart.rem_euclid(pitch);
        apart >= first && apart + second <= pitch
    })
}

/// Returns the bytes from the first to the last element of `view` in one row of `pitch` bytes. Dimensions
/// whose stride is a multiple of the pitch are ignored, because they lead to other rows. Returns `None` if
/// the elements need more bytes than a row has.
fn width(view: &View, pitch: i64) -> Option<i64> {
    let size = view.dtype().size() as i64;
    let mut width = size;
    for (&count, stride) in view.shape().iter().zip(view.strides()) {
        let bytes = stride.checked_mul(size);
        if count > 1 && bytes.is_none_or(|bytes| bytes % pitch != 0) {
            width = width.checked_add((count - 1).checked_mul(bytes?)?)?;
        }
    }
    (width <= pitch).then_some(width)
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
        assert!(interleaved(&heads(0, 8), &heads(8, 2)) && interleaved(&heads(8, 2), &heads(0, 8)));
        assert!(interleaved(&heads(0, 8), &heads(10, 2)));
        assert!(!interleaved(&heads(0, 8), &heads(7, 2)), "they share a head");
        // The query, key and value of each head are adjacent.
        let part = |n: usize| slice(n * 64, &[2, 5, 4, 64], &[5 * row, row, 3 * 64, 1]);
        assert!(interleaved(&part(0), &part(1)) && interleaved(&part(2), &part(0)));
        // A tensor in which the heads come before the tokens, and then one without a batch dimension.
        let transposed = slice(8 * 64, &[2, 2, 5, 64], &[5 * row, 64, row, 1]);
        assert!(interleaved(&heads(0, 8), &transposed));
        assert!(interleaved(&heads(0, 8), &slice(8 * 64, &[5, 2, 64], &[row, 64, 1])));
    }

    #[test]
    fn tensors_that_share_elements_overlap() {
        let wide = slice(0, &[4, 16], &[32, 1]);
        assert!(interleaved(&wide, &slice(16, &[4, 16], &[32, 1])));
        for (offset, columns) in [(0, 16), (8, 16), (15, 1), (31, 2), (33, 16)] {
            assert!(!interleaved(&wide, &slice(offset, &[4, columns], &[32, 1])), "{offset}, {columns}");
        }
        assert!(!interleaved(&wide, &slice(16, &[4, 16], &[48, 1])), "rows of another length");
        assert!(!interleaved(&wide, &slice(16, &[64], &[1])), "a tensor without gaps");
        assert!(!interleaved(&wide, &slice(16, &[2, 16], &[i64::MAX / 2, 1])), "an overflow");
    }
}
