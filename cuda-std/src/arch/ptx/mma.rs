//! Matrix multiplication (`mma.sync`) and matrix loads (`ldmatrix`), from sm_80 on.
//!
//! The whole warp must execute these instructions. Therefore no `asm!` block in this file has the option
//! `pure`. With this option, LLVM could move an instruction into a branch that only some lanes take.
use core::arch::asm;

macro_rules! products {
    ($($name:ident: $type:literal;)*) => { $(
        #[inline(always)]
        pub fn $name(a: [u32; 4], b: [u32; 2], [mut c0, mut c1, mut c2, mut c3]: [f32; 4]) -> [f32; 4] {
            // SAFETY: the instruction accesses only registers of the warp. Every lane of the warp executes
            // the instruction.
            unsafe {
                asm!(
                    concat!(
                        "mma.sync.aligned.m16n8k16.row.col.f32.", $type, ".", $type, ".f32 ",
                        "{{{c0}, {c1}, {c2}, {c3}}}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {{{c0}, {c1}, {c2}, {c3}}};"
                    ),
                    c0 = inout(reg32) c0, c1 = inout(reg32) c1, c2 = inout(reg32) c2, c3 = inout(reg32) c3,
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                    b0 = in(reg32) b[0], b1 = in(reg32) b[1],
                    options(nomem, nostack)
                );
            }
            [c0, c1, c2, c3]
        }
    )* };
}
products! {
    mma_f16: "f16";
    mma_bf16: "bf16";
}

macro_rules! loads {
    ($($name:ident: $kind:literal;)*) => { $(
        /// # Safety
        /// `row` is the 32-bit address of 16 bytes in shared memory, and a multiple of 16. A barrier
        /// separates this load from the writes of other threads to these bytes.
        #[inline(always)]
        pub unsafe fn $name(row: u32) -> [u32; 4] {
            let (a, b, c, d): (u32, u32, u32, u32);
            // SAFETY: every lane passes the valid address of a row, and a barrier separates this load from
            // writes to the row.
            unsafe {
                asm!(
                    concat!("ldmatrix.sync.aligned.m8n8.x4", $kind, ".shared.b16 {{{}, {}, {}, {}}}, [{}];"),
                    out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) row,
                    options(readonly, nostack)
                );
            }
            [a, b, c, d]
        }
    )* };
}
loads! {
    load_matrices: "";
    load_matrices_transposed: ".trans";
}
