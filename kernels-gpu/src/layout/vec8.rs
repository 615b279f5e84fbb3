//! Vectors of eight adjacent columns. A vector of 16-bit elements takes one 16-byte access, and a vector of
//! f32 takes two.
use cuda_std::mem;
use cuda_std::prelude::*;

/// Number of columns of a [`Vec8`].
pub(crate) const LEN: u32 = 8;

/// Eight elements in their element type, as the load returned them.
#[derive(Clone, Copy)]
pub(crate) struct Vec8<T> {
    /// One pack (16-byte vector) contains eight 16-bit elements, or four f32 elements. Only f32 vectors use
    /// the second pack.
    packs: [Pack<T>; 2],
}

impl<T: Elem> Vec8<T> {
    const PACKS: usize = size_of::<T>() / 2;
    /// Eight zeros.
    pub const ZERO: Self = Self { packs: [Pack::ZERO; 2] };

    /// Loads the eight columns that start at address `at`. Returns zeros if `wanted` is false.
    ///
    /// # Safety
    /// If `wanted` is true, the columns are readable while the kernel runs, and aligned to 16 bytes.
    #[inline(always)]
    pub unsafe fn load(at: *const T, wanted: bool) -> Self {
        // The two 16-byte loads of an f32 vector are usually in one 32-byte sector. The cache hint `ReadOnly`
        // keeps this sector in L1 for the second load.
        let hint = if Self::PACKS == 1 { Load::Once } else { Load::ReadOnly };
        let mut vec8 = Self::ZERO;
        if wanted {
            for i in 0..Self::PACKS {
                // SAFETY: the caller passes eight readable columns, aligned to 16 bytes.
                vec8.packs[i] =
                    Pack::from_words(unsafe { mem::load_u32x4(at.wrapping_add(4 * i).cast(), hint) });
            }
        }
        vec8
    }

    /// Rounds eight values to the element type, and stores them to the eight columns that start at address
    /// `at`. The values are passed as two vectors of four.
    ///
    /// # Safety
    /// The columns are writable and aligned to 16 bytes, and no other thread writes them.
    #[inline(always)]
    pub unsafe fn store(at: *mut T, [a, b]: [[f32; 4]; 2]) {
        for i in 0..Self::PACKS {
            let lanes = T::F32Vec::from_fn(|lane| if lane < 4 && i == 0 { a[lane] } else { b[lane % 4] });
            let words = Pack::<T>::from_lanes(lanes).words();
            // SAFETY: the caller passes eight writable columns, aligned to 16 bytes.
            unsafe { mem::store_u32x4(at.wrapping_add(4 * i).cast(), words, Store::Default) };
        }
    }

    /// Converts the eight elements to f32, without rounding, and returns them as two vectors of four.
    #[inline(always)]
    pub fn vec4s(self) -> [[f32; 4]; 2] {
        let [a, b] = [self.packs[0].lanes(), self.packs[Self::PACKS - 1].lanes()];
        let vec4 = |lanes: T::F32Vec, first: usize| [0, 1, 2, 3].map(|i: usize| lanes.get(first + i));
        [vec4(a, 0), vec4(b, if Self::PACKS == 1 { 4 } else { 0 })]
    }

    /// Returns this vector, passed through an optimization barrier. Each later use then converts the elements
    /// to f32 again. Without the barrier, the compiler would keep the f32 values of the first conversion in
    /// registers. See [`Pack::opaque_lanes`].
    #[inline(always)]
    pub fn opaque_lanes(self) -> Self {
        let [a, b] = self.packs;
        Self { packs: [a.opaque_lanes(), if Self::PACKS == 1 { b } else { b.opaque_lanes() }] }
    }
}
