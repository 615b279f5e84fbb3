//! Tensors of attention heads: batch, token, head, column, in any order of strides.
use cuda_std::prelude::*;
use cuda_std::vec4::{Scalar, Vectorized};

/// Where the heads of a tensor lie: a kernel argument. A stride is 0 where the tensor broadcasts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// The first element.
    pub base: *mut u8,
    /// Elements from a batch to the next.
    pub batch_stride: i64,
    /// Elements from a token to the next.
    pub token_stride: i64,
    /// Elements from a head to the next.
    pub head_stride: i64,
}

impl Heads {
    /// The tensor that is not there.
    pub const ABSENT: Self =
        Self { base: core::ptr::null_mut(), batch_stride: 0, token_stride: 0, head_stride: 0 };

    /// May its heads be accessed four elements of `element` bytes at a time?
    pub fn is_vec4s(&self, element: usize) -> bool {
        (self.base as usize).is_multiple_of(4 * element)
            && [self.batch_stride, self.token_stride, self.head_stride].iter().all(|stride| stride % 4 == 0)
    }

    /// May its heads be accessed eight elements of `element` bytes at a time, in accesses of 16 bytes?
    pub fn is_vec8s(&self, element: usize) -> bool {
        let aligned = |stride: &i64| (stride * element as i64) % 16 == 0;
        (self.base as usize).is_multiple_of(16)
            && [self.batch_stride, self.token_stride, self.head_stride].iter().all(aligned)
    }

    /// The columns of a head of a token.
    #[inline(always)]
    pub(crate) fn at<T>(&self, token: Token, head: u32) -> *mut T {
        let offset = i64::from(token.batch) * self.batch_stride
            + i64::from(token.number) * self.token_stride
            + i64::from(head) * self.head_stride;
        self.base.cast::<T>().wrapping_offset(offset as isize)
    }
}

/// A token of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Token {
    pub batch: u32,
    pub number: u32,
}

impl Token {
    /// Token `index` of all, `tokens` of them in a batch.
    #[inline(always)]
    pub fn of(index: u32, tokens: u32) -> Self {
        let (batch, number) = divide(index, tokens);
        Self { batch, number }
    }
}

/// Quotient and remainder. A division that might be by zero calls a panic, for which every kernel pays in
/// registers; none of these is.
#[inline(always)]
pub(crate) fn divide(a: u32, b: u32) -> (u32, u32) {
    let b = b.max(1);
    (a / b, a % b)
}

/// The quad at `column`, a multiple of 4, of the columns at `start`; zeros unless it is `wanted`.
///
/// # Safety
/// The quad is there to read while the kernel runs, and aligned to its size.
#[inline(always)]
pub(crate) unsafe fn vec4_at<T: Elem>(start: *const T, column: u32, wanted: bool) -> Vec4<T> {
    let cols = if wanted { column + 4 } else { 0 };
    // SAFETY: as the caller promises.
    unsafe {
        Vec4Row::<T, Vectorized>::of(
            &Rows::single(start.cast()),
            RowIndex::FIRST,
            Vec4Columns::of_one(column, cols),
        )
    }
    .get(0)
}

/// Writes the quad at `column`, a multiple of 4, if it is `wanted`.
///
/// # Safety
/// As [`vec4_at`], to be written, and by no other thread.
#[inline(always)]
pub(crate) unsafe fn put_vec4_at<T: Elem>(start: *mut T, column: u32, vec4: Vec4<T>, wanted: bool) {
    let cols = if wanted { column + 4 } else { 0 };
    // SAFETY: as the caller promises.
    unsafe {
        Vec4RowMut::<T, Vectorized>::of(
            &Rows::single(start.cast()),
            RowIndex::FIRST,
            Vec4Columns::of_one(column, cols),
        )
    }
    .put(0, vec4);
}

/// The element at `column` in f32.
///
/// # Safety
/// It is there to read while the kernel runs.
#[inline(always)]
pub(crate) unsafe fn element_at<T: Elem>(start: *const T, column: u32) -> f32 {
    let rows = Rows::single(start.wrapping_add(column as usize).cast());
    // SAFETY: as the caller promises.
    let [x, ..] =
        unsafe { Vec4Row::<T, Scalar>::of(&rows, RowIndex::FIRST, Vec4Columns::of_one(0, 1)) }.get(0).lanes();
    x
}

/// Writes the element at `column`, rounded.
///
/// # Safety
/// As [`element_at`], to be written, and by no other thread.
#[inline(always)]
pub(crate) unsafe fn put_element_at<T: Elem>(start: *mut T, column: u32, value: f32) {
    let rows = Rows::single(start.wrapping_add(column as usize).cast());
    let vec4 = Vec4::from_lanes([value, 0.0, 0.0, 0.0]);
    // SAFETY: as the caller promises.
    unsafe { Vec4RowMut::<T, Scalar>::of(&rows, RowIndex::FIRST, Vec4Columns::of_one(0, 1)) }.put(0, vec4);
}
