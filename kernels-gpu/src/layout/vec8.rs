//! Eight neighbouring columns: one access of a 16-bit type, two of f32.
use cuda_std::mem;
use cuda_std::prelude::*;

/// Columns of an [`Vec8`].
pub(crate) const LEN: u32 = 8;

/// Eight elements, held as loaded.
#[derive(Clone, Copy)]
pub(crate) struct Vec8<T> {
    /// The second is there in f32 alone.
    packs: [Pack<T>; 2],
}

impl<T: Elem> Vec8<T> {
    const PACKS: usize = size_of::<T>() / 2;
    /// All bits zero.
    pub const ZERO: Self = Self { packs: [Pack::ZERO; 2] };

    /// The columns from `at` on; zeros unless they are `wanted`.
    ///
    /// # Safety
    /// They are there to read while the kernel runs, and aligned to 16 bytes.
    #[inline(always)]
    pub unsafe fn load(at: *const T, wanted: bool) -> Self {
        // The halves of an f32 octet share a sector, which the second finds in L1.
        let hint = if Self::PACKS == 1 { Load::Once } else { Load::ReadOnly };
        let mut vec8 = Self::ZERO;
        if wanted {
            for i in 0..Self::PACKS {
                // SAFETY: as the caller promises.
                vec8.packs[i] =
                    Pack::from_words(unsafe { mem::load_u32x4(at.wrapping_add(4 * i).cast(), hint) });
            }
        }
        vec8
    }

    /// Writes both quads, rounded, to the columns from `at` on.
    ///
    /// # Safety
    /// As [`Vec8::load`], to be written, and by no other thread.
    #[inline(always)]
    pub unsafe fn store(at: *mut T, [a, b]: [[f32; 4]; 2]) {
        for i in 0..Self::PACKS {
            let lanes = T::F32Vec::from_fn(|lane| if lane < 4 && i == 0 { a[lane] } else { b[lane % 4] });
            let words = Pack::<T>::from_lanes(lanes).words();
            // SAFETY: as the caller promises.
            unsafe { mem::store_u32x4(at.wrapping_add(4 * i).cast(), words, Store::Default) };
        }
    }

    /// Its values in f32, exact, in quads.
    #[inline(always)]
    pub fn vec4s(self) -> [[f32; 4]; 2] {
        let [a, b] = [self.packs[0].lanes(), self.packs[Self::PACKS - 1].lanes()];
        let vec4 = |lanes: T::F32Vec, first: usize| [0, 1, 2, 3].map(|i: usize| lanes.get(first + i));
        [vec4(a, 0), vec4(b, if Self::PACKS == 1 { 4 } else { 0 })]
    }

    /// The same octet, of which the compiler has forgotten the lanes: see [`Pack::opaque_lanes`].
    #[inline(always)]
    pub fn opaque_lanes(self) -> Self {
        let [a, b] = self.packs;
        Self { packs: [a.opaque_lanes(), if Self::PACKS == 1 { b } else { b.opaque_lanes() }] }
    }
}
