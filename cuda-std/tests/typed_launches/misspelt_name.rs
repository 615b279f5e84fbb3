//! This launch must not compile, because the name of the kernel is misspelt.
use cuda_std::cpu::Launch;
use cuda_std::prelude::*;

unsafe fn scale<T: Elem>(x: *mut T, rows: u64, factor: f32) {
    let _ = (x, rows, factor);
}
entry!(scale<T: [f32, bf16]>(x: *mut T, rows: u64, factor: f32) => scale::<T>(x, rows, factor));

fn main() {
    let (mut x, rows) = ([1.0_f32], 1_u64);
    let shape = Launch { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
    unsafe { launch::scal(shape, x.as_mut_ptr(), rows, 2.0) }.unwrap();
}
