//! How element-wise kernels share out their operands: to each thread one pack, in the order of the elements,
//! whatever the rows are.
//!
//! One pack a thread is as fast as a copy on an H200; two or four, or blocks that have rows, are up to 9 %
//! slower (benches/results/decisions/elementwise_forms.txt).
use core::marker::PhantomData;

use cuda_std::mem;
use cuda_std::prelude::*;

use super::rounded_chain::RoundedVec;

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Coherent, since such a load stays behind the wait for earlier launches by itself: `Overlap::Plain` of the
/// host.
const LOAD: Load = Load::Default;

/// Blocks for which a multiprocessor should have registers: `wanted`, but a Turing one has 1024 threads.
pub(crate) const fn blocks(threads: u32, wanted: u32) -> u32 {
    if cfg!(all(target_arch = "nvptx64", not(target_feature = "sm_80"))) { 1024 / threads } else { wanted }
}

/// A divisor that only the host knows, for dividends below 2^31: a multiplication and a shift.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Divisor {
    by: u32,
    factor: u32,
    shift: u32,
}

impl Divisor {
    /// For a number from 1 to 2^31.
    pub const fn new(by: u32) -> Self {
        let shift = by.next_power_of_two().ilog2();
        let remainder = (1_u64 << shift) - by as u64;
        Self { by, factor: ((remainder << 32) / by as u64 + 1) as u32, shift }
    }

    /// Quotient and remainder.
    #[inline(always)]
    pub fn divide(self, dividend: u32) -> [u32; 2] {
        let high = ((u64::from(dividend) * u64::from(self.factor)) >> 32) as u32;
        let quotient = (high + dividend) >> self.shift;
        [quotient, dividend - quotient * self.by]
    }
}

/// The operands' parts, which are packs, or elements where those cannot be read 16 bytes at a time: a kernel
/// argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Parts in this launch.
    pub parts: u32,
    /// The row of the first.
    pub first_row: u32,
    /// Its number in that row.
    pub first_part: u32,
    /// Parts of a row.
    pub row: Divisor,
    /// Rows in a group of the outer stride.
    pub group: Divisor,
}

/// Where a part lies.
#[derive(Clone, Copy)]
struct ElementLocation {
    group: u32,
    within: u32,
    /// In elements.
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

/// A thread's elements of each operand: a pack if `VECTOR`, otherwise as many, each a block away from the
/// last.
#[derive(Clone, Copy)]
pub(crate) struct ThreadElements<T, const VECTOR: bool> {
    extent: Extent,
    first: u32,
    element: PhantomData<T>,
}

impl<T: Elem, const VECTOR: bool> ThreadElements<T, VECTOR> {
    const LEN: u32 = Pack::<T>::LEN;

    /// The calling thread's, if it has any.
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

    /// Element `i`'s place, where elements are parts.
    #[inline(always)]
    fn element(&self, i: usize) -> Option<ElementLocation> {
        let number = self.first + i as u32 * thread::block_dim()[0];
        (number < self.extent.parts).then(|| self.location(number))
    }

    /// The elements of an operand that is read.
    ///
    /// # Safety
    /// `rows` has the extent's rows, `Rows::is_vector` if `VECTOR`, and nothing writes them.
    #[inline(always)]
    pub unsafe fn load(&self, rows: &Rows) -> Pack<T> {
        if VECTOR {
            let at = self.location(self.first).of::<T>(rows);
            // SAFETY: as the caller promises.
            return Pack::from_words(unsafe { mem::load_u32x4(at.cast(), LOAD) });
        }
        // SAFETY: as the caller promises.
        Pack::from_lanes(unsafe { self.lanes::<T>(rows) })
    }
    /// The same in f32, of an operand whose elements are of another type than the others'.
    ///
    /// # Safety
    /// As [`ThreadElements::load`].
    #[inline(always)]
    pub unsafe fn lanes<E: Elem>(&self, rows: &Rows) -> T::F32Vec {
        if !VECTOR {
            return T::F32Vec::from_fn(|i| {
                let Some(location) = self.element(i) else { return 0.0 };
                // SAFETY: as the caller promises.
                unsafe { load_element(location.of::<E>(rows)).to_f32() }
            });
        }
        let at = self.location(self.first).of::<E>(rows);
        let mut vector_pack = E::F32Vec::splat(0.0);
        T::F32Vec::from_fn(|i| {
            let within = i % Pack::<E>::LEN as usize;
            if within == 0 {
                // SAFETY: as the caller promises.
                vector_pack = E::unpack(unsafe { mem::load_u32x4(at.wrapping_add(i).cast(), LOAD) });
            }
            vector_pack.get(within)
        })
    }

    /// Those of a bias, which is one row or null.
    ///
    /// # Safety
    /// As [`ThreadElements::load`].
    #[inline(always)]
    pub unsafe fn bias(&self, base: *const u8) -> Bias<T> {
        // SAFETY: as the caller promises.
        Bias((!base.is_null()).then(|| unsafe { self.load(&Rows::single(base)) }))
    }

    /// Writes the elements of an operand.
    ///
    /// # Safety
    /// `rows` has the extent's rows, `Rows::is_vector` if `VECTOR`, which overlap nothing else.
    #[inline(always)]
    pub unsafe fn store(&self, rows: &Rows, pack: Pack<T>) {
        if VECTOR {
            let at = self.location(self.first).of::<T>(rows);
            // SAFETY: as the caller promises; the pack is this thread's alone.
            return unsafe { mem::store_u32x4(at.cast(), pack.words(), Store::Default) };
        }
        let lanes = pack.lanes();
        for i in 0..Self::LEN as usize {
            if let Some(location) = self.element(i) {
                // SAFETY: as the caller promises; the element is this thread's alone.
                unsafe { store_element(location.of::<T>(rows), T::from_f32(lanes.get(i))) };
            }
        }
    }
}

/// # Safety
/// As [`mem::load_u32`].
#[inline(always)]
unsafe fn load_element<E: Elem>(at: *const E) -> E {
    let (at, hint) = (at.cast(), LOAD);
    // SAFETY: as the caller promises.
    E::from_bits(unsafe {
        if size_of::<E>() == 2 { mem::load_u16(at, hint).into() } else { mem::load_u32(at, hint) }
    })
}

/// # Safety
/// As [`mem::store_u32`].
#[inline(always)]
unsafe fn store_element<E: Elem>(at: *mut E, element: E) {
    let (at, bits, hint) = (at.cast(), element.to_bits(), Store::Default);
    // SAFETY: as the caller promises.
    unsafe {
        if size_of::<E>() == 2 {
            mem::store_u16(at, bits as u16, hint)
        } else {
            mem::store_u32(at, bits, hint)
        }
    }
}

/// A thread's elements of a bias, if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Bias<T>(Option<Pack<T>>);

impl<T: Elem> Bias<T> {
    /// Its sum with `pack`, as a tensor of `T` holds it.
    #[inline(always)]
    pub fn plus(&self, pack: Pack<T>) -> RoundedVec<T> {
        let vector_pack = RoundedVec::of(pack);
        self.0.map_or(vector_pack, |bias| vector_pack.plus(RoundedVec::of(bias)))
    }

    /// Its sum with the lanes of `pack`: rounded to `T` where `round`.
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
