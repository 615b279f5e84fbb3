//! This launch must not compile, because an argument is a `u32` instead of a `u64`.
use cuda_std::cpu::Launch;
use cuda_std::prelude::*;

unsafe fn scale<T: Elem>(x: *mut T, rows: u64, factor: f32) {
    let _ = (x, rows, factor);
}
entry!(scale<T: [f32, bf16]>(x: *mut T, rows: u64, factor: f32) => scale::<T>(x, rows, factor));

fn main() {
    let (mut x, rows) = ([1.0_f32], 1_u64);
    let shape = Launch { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
    unsafe { launch::scale(shape, x.as_mut_ptr(), rows as u32, 2.0) }.unwrap();
}
