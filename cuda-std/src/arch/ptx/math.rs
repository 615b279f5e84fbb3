//! f32 arithmetic and approximate functions. Each Rust function is one PTX instruction.
use core::arch::asm;

macro_rules! math {
    ($($name:ident($($arg:ident),*): $instruction:literal, $operands:literal;)*) => { $(
        #[inline(always)]
        pub fn $name($($arg: f32),*) -> f32 {
            let result: f32;
            // SAFETY: the instruction only computes on registers.
            unsafe {
                asm!(concat!($instruction, " {r}, ", $operands, ";"), r = out(reg32) result, $($arg = in(reg32) $arg,)*
                    options(pure, nomem, nostack))
            };
            result
        }
    )* };
}
math! {
    fma(a, b, c): "fma.rn.f32", "{a}, {b}, {c}";
    sqrt(x): "sqrt.rn.f32", "{x}";
    rsqrt(x): "rsqrt.approx.f32", "{x}";
    rcp(x): "rcp.approx.f32", "{x}";
    ex2(x): "ex2.approx.f32", "{x}";
    lg2(x): "lg2.approx.f32", "{x}";
    tanh(x): "tanh.approx.f32", "{x}";
    ex2_ftz(x): "ex2.approx.ftz.f32", "{x}";
    rcp_ftz(x): "rcp.approx.ftz.f32", "{x}";
    fma_sat(a, b, c): "fma.rn.sat.f32", "{a}, {b}, {c}";
    fma_rm(a, b, c): "fma.rm.f32", "{a}, {b}, {c}";
}
