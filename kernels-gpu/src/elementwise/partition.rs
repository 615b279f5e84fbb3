//! Partition of element-wise operands among threads. Each thread processes one pack (a 16-byte vector) of
//! each operand. The packs of all rows are numbered consecutively, so one block may process packs of several
//! rows.
//!
//! On an H200, blocks of 128 threads with one pack per thread reach 90 to 104 % of the bandwidth of a copy. A
//! kernel with two or four packs per thread, or with blocks that process whole rows, takes up to 5 % more
//! time (`benches/results/decisions/elementwise.txt`).
use core::marker::PhantomData;

use cuda_std::mem;
use cuda_std::prelude::*;

use super::rounded_chain::RoundedVec;

/// Threads per block.
pub const THREADS: u32 = 128;

/// The cache hint of all loads of this module. It selects coherent loads (`ld.global`), because ptxas never
/// moves such a load before `griddepcontrol.wait`, the instruction that waits for earlier launches. With
/// other loads, a kernel needs a block barrier after this instruction. The launch mode `Overlap::Plain` omits
/// this barrier, which saves time in kernels whose blocks run only for a very short time.
const LOAD: Load = Load::Default;

/// Returns the minimum number of blocks per SM, for use with `launch_bounds`. On Turing, the result is
/// `1024 / threads`, because a Turing SM runs at most 1024 threads. On newer GPUs, the result is `wanted`.
pub(crate) const fn blocks(threads: u32, wanted: u32) -> u32 {
    if cfg!(all(target_arch = "nvptx64", not(target_feature = "sm_80"))) { 1024 / threads } else { wanted }
}

/// A divisor for dividends below 2^31. The host computes a factor and a shift for the divisor. With these two
/// numbers, a kernel replaces an integer division by a multiplication, an addition and a shift.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Divisor {
    by: u32,
    factor: u32,
    shift: u32,
}

impl Divisor {
    /// Creates the divisor `by`, a number from 1 to 2^31.
    pub const fn new(by: u32) -> Self {
        let shift = by.next_power_of_two().ilog2();
        let remainder = (1_u64 << shift) - by as u64;
        Self { by, factor: ((remainder << 32) / by as u64 + 1) as u32, shift }
    }

    /// Returns quotient and remainder.
    #[inline(always)]
    pub fn divide(self, dividend: u32) -> [u32; 2] {
        let high = ((u64::from(dividend) * u64::from(self.factor)) >> 32) as u32;
        let quotient = (high + dividend) >> self.shift;
        [quotient, dividend - quotient * self.by]
    }
}

/// Kernel argument: the range of elements that one launch processes, counted in parts. A part is a pack (16
/// bytes), or one element if the operands do not allow 16-byte accesses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Parts that this launch covers.
    pub parts: u32,
    /// Row of the first part.
    pub first_row: u32,
    /// Index of the first part in its row.
    pub first_part: u32,
    /// Parts per row.
    pub row: Divisor,
    /// Number of rows per group. Rows of a group are equally spaced, and consecutive groups start
    /// `Rows::outer_stride` elements apart.
    pub group: Divisor,
}

/// Position of a part: group, row within the group, and column.
#[derive(Clone, Copy)]
struct ElementLocation {
    group: u32,
    within: u32,
    /// Column, in elements.
    column: u32,
}

impl ElementLocation {
    #[inline(always)]
    fn of<T>(&self, rows: &Rows) -> *mut T {
        let (group, within) = (i64::from(self.group), i64::from(self.within));
        let row = within * rows.inner_stride + group * rows.outer_stride;
        rows.base.cast::<T>().wrapping_offset(row as isize).wrapping_add(self.column as usize)
    }
}

/// The elements that one thread processes in each operand. If `VECTOR` is true, these elements are one pack
/// (16 bytes). Otherwise, the thread has `Pack::LEN` single elements, which are `blockDim.x` elements apart.
#[derive(Clone, Copy)]
pub(crate) struct ThreadElements<T, const VECTOR: bool> {
    extent: Extent,
    first: u32,
    element: PhantomData<T>,
}

impl<T: Elem, const VECTOR: bool> ThreadElements<T, VECTOR> {
    const LEN: u32 = Pack::<T>::LEN;

    /// Returns the elements of the calling thread, or `None` if all of them are past the end of the range
    /// that the launch processes.
    #[inline(always)]
    pub fn of_thread(extent: Extent) -> Option<Self> {
        let [[thread, ..], [block, ..]] = [thread::index(), thread::block_index()];
        let of_block = thread::block_dim()[0] * if VECTOR { 1 } else { Self::LEN };
        let first = block * of_block + thread;
        (first < extent.parts).then_some(Self { extent, first, element: PhantomData })
    }

    #[inline(always)]
    fn location(&self, number: u32) -> ElementLocation {
        let [rows, part] = self.extent.row.divide(self.extent.first_part + number);
        let [group, within] = self.extent.group.divide(self.extent.first_row + rows);
        ElementLocation { group, within, column: if VECTOR { part * Self::LEN } else { part } }
    }

    /// Returns the position of the thread's element number `i`, or `None` if this position is past the end of
    /// the range that the launch processes. `VECTOR` must be false, so that the parts that [`Extent`] counts
    /// are single elements.
    #[inline(always)]
    fn element(&self, i: usize) -> Option<ElementLocation> {
        let number = self.first + i as u32 * thread::block_dim()[0];
        (number < self.extent.parts).then(|| self.location(number))
    }

    /// Loads the thread's elements of the operand `rows`. Elements past the end of the launch's range are 0.
    ///
    /// # Safety
    /// `rows` contains every row that the launch covers, and no thread writes these rows. If `VECTOR` is
    /// true, `rows` allows 16-byte accesses (`Rows::is_vector`).
    #[inline(always)]
    pub unsafe fn load(&self, rows: &Rows) -> Pack<T> {
        if VECTOR {
            let at = self.location(self.first).of::<T>(rows);
            // SAFETY: the load reads one pack (16 bytes). The caller guarantees that the rows are aligned to
            // 16 bytes, and `of_thread` checked that this pack is inside the range that the launch processes.
            return Pack::from_words(unsafe { mem::load_u32x4(at.cast(), LOAD) });
        }
        // SAFETY: the caller passes all rows that the launch covers.
        Pack::from_lanes(unsafe { self.lanes::<T>(rows) })
    }
    /// Loads the thread's elements of the operand `rows` as f32. The element type `E` of this operand may
    /// differ from `T`.
    ///
    /// # Safety
    /// The requirements of [`ThreadElements::load`] apply.
    #[inline(always)]
    pub unsafe fn lanes<E: Elem>(&self, rows: &Rows) -> T::F32Vec {
        if !VECTOR {
            return T::F32Vec::from_fn(|i| {
                let Some(location) = self.element(i) else { return 0.0 };
                // SAFETY: the load reads one element. The caller guarantees that `rows` contains all rows of
                // the launch, and `element` checked the index.
                unsafe { load_element(location.of::<E>(rows)).to_f32() }
            });
        }
        let at = self.location(self.first).of::<E>(rows);
        let mut vector_pack = E::F32Vec::splat(0.0);
        T::F32Vec::from_fn(|i| {
            let within = i % Pack::<E>::LEN as usize;
            if within == 0 {
                // SAFETY: the load reads this thread's elements of the operand. The caller guarantees that
                // the rows are aligned to 16 bytes, and `of_thread` checked that these elements are inside
                // the range that the launch processes.
                vector_pack = E::unpack(unsafe { mem::load_u32x4(at.wrapping_add(i).cast(), LOAD) });
            }
            vector_pack.get(within)
        })
    }

    /// Loads one value per row from `rows`, an operand with one column. For each of the thread's elements,
    /// the result contains the value of the element's row, as f32.
    ///
    /// # Safety
    /// For every row that the launch processes, the first element of the row in `rows` is readable. No thread
    /// writes these elements.
    #[inline(always)]
    pub unsafe fn row_values<E: Elem>(&self, rows: &Rows) -> T::F32Vec {
        // SAFETY: the load reads the first element of a row. The caller guarantees that this element is
        // readable in all rows that the launch processes.
        let value = |location: ElementLocation| unsafe {
            load_element(ElementLocation { column: 0, ..location }.of::<E>(rows)).to_f32()
        };
        if VECTOR {
            return T::F32Vec::splat(value(self.location(self.first)));
        }
        T::F32Vec::from_fn(|i| self.element(i).map_or(0.0, value))
    }

    /// Loads the thread's elements of the bias at `base`. A bias has one row. If there is no bias, `base` is
    /// null.
    ///
    /// # Safety
    /// `base` is null, or the requirements of [`ThreadElements::load`] apply to the row at `base`.
    #[inline(always)]
    pub unsafe fn bias(&self, base: *const u8) -> Bias<T> {
        // SAFETY: `load` reads the row at `base` only if `base` is not null. The caller then guarantees a
        // readable row with as many columns as the operands.
        Bias((!base.is_null()).then(|| unsafe { self.load(&Rows::single(base)) }))
    }

    /// Stores `pack` as the thread's elements of the operand `rows`. Elements past the end of the launch's
    /// range are not stored.
    ///
    /// # Safety
    /// `rows` contains every row of the launch. Its memory overlaps no other operand. If `VECTOR` is true,
    /// `rows` allows 16-byte accesses (`Rows::is_vector`).
    #[inline(always)]
    pub unsafe fn store(&self, rows: &Rows, pack: Pack<T>) {
        if VECTOR {
            let at = self.location(self.first).of::<T>(rows);
            // SAFETY: the store writes one pack (16 bytes). The caller guarantees that the rows are aligned
            // to 16 bytes and contain this pack. No other thread writes this pack.
            return unsafe { mem::store_u32x4(at.cast(), pack.words(), Store::Default) };
        }
        let lanes = pack.lanes();
        for i in 0..Self::LEN as usize {
            if let Some(location) = self.element(i) {
                // SAFETY: the store writes one element. The caller guarantees that `rows` contains all rows
                // of the launch. The method `element` returned a location, so the index is in bounds. No
                // other thread writes this element.
                unsafe { store_element(location.of::<T>(rows), T::from_f32(lanes.get(i))) };
            }
        }
    }

    /// Stores `lanes` as the thread's elements of the f32 operand `rows`. Elements past the end of the
    /// launch's range are not stored.
    ///
    /// # Safety
    /// The requirements of [`ThreadElements::store`] apply.
    #[inline(always)]
    pub unsafe fn store_lanes(&self, rows: &Rows, lanes: T::F32Vec) {
        if !VECTOR {
            for i in 0..Self::LEN as usize {
                if let Some(location) = self.element(i) {
                    // SAFETY: the store writes one element. The caller guarantees that `rows` contains all
                    // rows of the launch, and `element` checked the index. No other thread writes this
                    // element.
                    unsafe { store_element(location.of::<f32>(rows), lanes.get(i)) };
                }
            }
            return;
        }
        let at = self.location(self.first).of::<f32>(rows);
        for i in (0..Self::LEN as usize).step_by(4) {
            let words = core::array::from_fn(|j| lanes.get(i + j).to_bits());
            // SAFETY: the store writes this thread's elements. The caller guarantees that the rows are
            // aligned to 16 bytes, and `of_thread` checked that these elements are inside the range that the
            // launch processes. No other thread writes them.
            unsafe { mem::store_u32x4(at.wrapping_add(i).cast(), words, Store::Default) };
        }
    }
}

/// # Safety
/// The requirements of [`mem::load_u32`] apply to the element at `at`.
#[inline(always)]
unsafe fn load_element<E: Elem>(at: *const E) -> E {
    let (at, hint) = (at.cast(), LOAD);
    // SAFETY: the load reads one element at `at`, which the caller guarantees to be readable. Each branch
    // loads exactly the bytes of one `E`.
    E::from_bits(unsafe {
        if size_of::<E>() == 2 { mem::load_u16(at, hint).into() } else { mem::load_u32(at, hint) }
    })
}

/// # Safety
/// The requirements of [`mem::store_u32`] apply to the element at `at`.
#[inline(always)]
unsafe fn store_element<E: Elem>(at: *mut E, element: E) {
    let (at, bits, hint) = (at.cast(), element.to_bits(), Store::Default);
    // SAFETY: the store writes one element at `at`, which the caller guarantees to be writable. Each branch
    // stores exactly the bytes of one `E`.
    unsafe {
        if size_of::<E>() == 2 {
            mem::store_u16(at, bits as u16, hint)
        } else {
            mem::store_u32(at, bits, hint)
        }
    }
}

/// A thread's elements of a bias, or `None` if there is no bias.
#[derive(Clone, Copy)]
pub(crate) struct Bias<T>(Option<Pack<T>>);

impl<T: Elem> Bias<T> {
    /// Returns `pack` plus the bias, rounded to `T`.
    #[inline(always)]
    pub fn plus(&self, pack: Pack<T>) -> RoundedVec<T> {
        let vector_pack = RoundedVec::of(pack);
        self.0.map_or(vector_pack, |bias| vector_pack.plus(RoundedVec::of(bias)))
    }

    /// Returns `pack` (a 16-byte vector) plus the bias, in f32. If `round` is true, the sum is rounded to
    /// `T`.
    #[inline(always)]
    pub fn added(&self, pack: Pack<T>, round: bool) -> T::F32Vec {
        let lanes = pack.lanes();
        match self.0 {
            None => lanes,
            Some(_) if round => self.plus(pack).lanes(),
            Some(bias) => lanes.zip(bias.lanes(), |x, bias| x + bias),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_divide() {
        for by in [1_u32, 2, 3, 5, 7, 320, 640, 1_792, 65_535, 1 << 20, 1_000_003, (1 << 30) + 1, 1 << 31] {
            for dividend in [0, 1, by - 1, by, by.wrapping_add(1), 3 * (by / 2), 999_999_937, i32::MAX as u32]
            {
                if dividend <= i32::MAX as u32 {
                    assert_eq!(Divisor::new(by).divide(dividend), [dividend / by, dividend % by]);
                }
            }
        }
    }
}
