//! Memory layout of tensors of attention heads with the dimensions batch, token, head and column. Columns are
//! contiguous. The other dimensions may have any strides.
use cuda_std::prelude::*;
use cuda_std::vec4::{Scalar, Vectorized};

/// Address and strides of a tensor of attention heads, as a kernel argument. If the tensor broadcasts over a
/// dimension, the stride of this dimension is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Address of the first element.
    pub base: *mut u8,
    /// Elements from one batch to the next.
    pub batch_stride: i64,
    /// Elements from one token to the next.
    pub token_stride: i64,
    /// Elements from one head to the next.
    pub head_stride: i64,
}

impl Heads {
    /// The value of this struct for an absent tensor. Its address is null.
    pub const ABSENT: Self =
        Self { base: core::ptr::null_mut(), batch_stride: 0, token_stride: 0, head_stride: 0 };

    /// Returns true if the start of every head is aligned for accesses to four elements at a time. An element
    /// has `element` bytes.
    pub fn is_vec4s(&self, element: usize) -> bool {
        (self.base as usize).is_multiple_of(4 * element)
            && [self.batch_stride, self.token_stride, self.head_stride].iter().all(|stride| stride % 4 == 0)
    }

    /// Returns true if the start of every head is aligned to 16 bytes. An element has `element` bytes.
    pub fn is_vec8s(&self, element: usize) -> bool {
        let aligned = |stride: &i64| (stride * element as i64) % 16 == 0;
        (self.base as usize).is_multiple_of(16)
            && [self.batch_stride, self.token_stride, self.head_stride].iter().all(aligned)
    }

    /// Returns the address of the first column of head number `head` of the token `token`.
    #[inline(always)]
    pub(crate) fn at<T>(&self, token: Token, head: u32) -> *mut T {
        let offset = i64::from(token.batch) * self.batch_stride
            + i64::from(token.number) * self.token_stride
            + i64::from(head) * self.head_stride;
        self.base.cast::<T>().wrapping_offset(offset as isize)
    }
}

/// The position of a token: the index of its batch, and the index of the token in this batch.
#[derive(Clone, Copy)]
pub(crate) struct Token {
    pub batch: u32,
    pub number: u32,
}

impl Token {
    /// Returns the position of token number `index`, counted over all batches. Each batch has `tokens`
    /// tokens.
    #[inline(always)]
    pub fn of(index: u32, tokens: u32) -> Self {
        let (batch, number) = divide(index, tokens);
        Self { batch, number }
    }
}

/// Returns the quotient and the remainder of `a / b`. The caller guarantees that `b` is not 0. The code
/// divides by `b.max(1)` nevertheless. Otherwise, rustc would add a test for 0 and a call of `panic`, which
/// would take registers in every kernel.
#[inline(always)]
pub(crate) fn divide(a: u32, b: u32) -> (u32, u32) {
    let b = b.max(1);
    (a / b, a % b)
}

/// Loads a vec4 (four elements) from the head that starts at `start`, from column `column` on. `column` is a
/// multiple of 4. Returns zeros if `wanted` is false.
///
/// # Safety
/// If `wanted` is true, the vec4 is readable while the kernel runs, and aligned to its size.
#[inline(always)]
pub(crate) unsafe fn vec4_at<T: Elem>(start: *const T, column: u32, wanted: bool) -> Vec4<T> {
    let cols = if wanted { column + 4 } else { 0 };
    // SAFETY: the load reads the vec4 (four elements) if `wanted` is true. In this case, the caller
    // guarantees that the vec4 is readable and aligned. If `wanted` is false, `cols` is 0, so the load reads
    // nothing.
    unsafe {
        Vec4Row::<T, Vectorized>::of(
            &Rows::single(start.cast()),
            RowIndex::FIRST,
            Vec4Columns::of_one(column, cols),
        )
    }
    .get(0)
}

/// Stores `vec4` (four elements) to the head that starts at `start`, from column `column` on. `column` is a
/// multiple of 4. Does nothing if `wanted` is false.
///
/// # Safety
/// If `wanted` is true, the vec4 is writable and aligned to its size, and no other thread writes it.
#[inline(always)]
pub(crate) unsafe fn put_vec4_at<T: Elem>(start: *mut T, column: u32, vec4: Vec4<T>, wanted: bool) {
    let cols = if wanted { column + 4 } else { 0 };
    // SAFETY: the store writes the vec4 (four elements) if `wanted` is true. In this case, the caller
    // guarantees that the vec4 is writable and aligned. If `wanted` is false, `cols` is 0, so the store
    // writes nothing.
    unsafe {
        Vec4RowMut::<T, Vectorized>::of(
            &Rows::single(start.cast()),
            RowIndex::FIRST,
            Vec4Columns::of_one(column, cols),
        )
    }
    .put(0, vec4);
}

/// Loads the element in column `column` of the head that starts at address `start`, and converts it to f32.
///
/// # Safety
/// The element is readable while the kernel runs.
#[inline(always)]
pub(crate) unsafe fn element_at<T: Elem>(start: *const T, column: u32) -> f32 {
    let rows = Rows::single(start.wrapping_add(column as usize).cast());
    // SAFETY: the load reads the only column of `rows`, which is the element. The caller guarantees that the
    // element is readable.
    let [x, ..] =
        unsafe { Vec4Row::<T, Scalar>::of(&rows, RowIndex::FIRST, Vec4Columns::of_one(0, 1)) }.get(0).lanes();
    x
}

/// Rounds `value` to the element type, and stores it to column `column` of the head that starts at address
/// `start`.
///
/// # Safety
/// The element is writable, and no other thread writes it.
#[inline(always)]
pub(crate) unsafe fn put_element_at<T: Elem>(start: *mut T, column: u32, value: f32) {
    let rows = Rows::single(start.wrapping_add(column as usize).cast());
    let vec4 = Vec4::from_lanes([value, 0.0, 0.0, 0.0]);
    // SAFETY: the store writes the only column of `rows`, which is the element. The caller guarantees that
    // the element is writable.
    unsafe { Vec4RowMut::<T, Scalar>::of(&rows, RowIndex::FIRST, Vec4Columns::of_one(0, 1)) }.put(0, vec4);
}
