//! Tests `wgmma` for each operand type and each layout of the operands in shared memory. The results are
//! compared with sums in f64. This file does not compare with a GPU. The unit tests of the module
//! `tensor_core` compare one step along K with results of a GPU.
use cuda_std::hopper::wgmma::{
    self, Accumulator, Descriptor, E4m3, E4m3E5m2, E5m2, E5m2E4m3, Operand, Registers, S8, Tf32, U8,
};
use cuda_std::hopper::{WARP_GROUP, publish_shared};

use super::hopper::{tile, tile_of};
use super::*;

/// Columns of most results.
const N: u32 = 64;
/// Bytes of K.
const K_BYTES: u32 = 32;
/// Bytes of the region of `a`. The region of `b` follows.
const REGION: u32 = 8 << 10;

/// An operand type of the tests: the size of an element, its values, and the permitted error of a product.
struct Type {
    bytes: u32,
    /// Returns the bits and the value of a random element.
    element: fn(u32) -> (u32, f64),
    /// Largest relative error of a sum.
    error: f64,
}

const fn float(bytes: u32, element: fn(u32) -> (u32, f64), error: f64) -> Type {
    Type { bytes, element, error }
}

const F16: Type = float(
    2,
    |x| {
        let v = f16::from_f32(x as i32 as f32 / 2e9);
        (v.to_bits().into(), v.to_f64())
    },
    1e-6,
);
const BF16: Type = float(
    2,
    |x| {
        let v = bf16::from_f32(x as i32 as f32 / 2e9);
        (v.to_bits().into(), v.to_f64())
    },
    1e-6,
);
const TF32: Type = float(
    4,
    |x| {
        let v = f32::from_bits((x as i32 as f32 / 2e9).to_bits() & !0x1FFF);
        (v.to_bits(), v.into())
    },
    1e-6,
);
const E4M3: Type = float(1, |x| (x & 0xBF, small(x & 0xBF, 3, 7)), 2e-3);
const E5M2: Type = float(1, |x| (x & 0xBF, small(x & 0xBF, 2, 15)), 2e-3);
const INT8: Type = float(1, |x| (x & 0xFF, f64::from(x as u8 as i8)), 0.0);
const UINT8: Type = float(1, |x| (x & 0xFF, f64::from(x as u8)), 0.0);

/// Returns the value of an fp8 number with `mantissa` mantissa bits and this exponent bias.
fn small(bits: u32, mantissa: u32, bias: i32) -> f64 {
    let (exponent, fraction) = ((bits & 0x7F) >> mantissa, bits & ((1 << mantissa) - 1));
    let significand = fraction as f64 / f64::from(1 << mantissa) + f64::from(u8::from(exponent > 0));
    let value = significand * 2_f64.powi(exponent.max(1) as i32 - bias);
    if bits & 0x80 == 0 { value } else { -value }
}

fn random(seed: u32) -> u32 {
    let mut x = seed.wrapping_mul(0x9E37_79B9) ^ 0x85EB_CA6B;
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^= x >> 15;
    x.wrapping_mul(0x846C_A68B) ^ x >> 13
}

/// The layout of an operand matrix in shared memory. The matrix has `rows` rows, and each row has 32 bytes
/// along K.
#[derive(Clone, Copy)]
struct Layout {
    rows: u32,
    /// Bytes of a row of the swizzle, 16 without swizzle.
    swizzle: u32,
    /// If true, the matrix is contiguous along its rows (M or N), otherwise along K.
    transposed: bool,
}

impl Layout {
    /// Returns the descriptor of the matrix at `address`.
    fn descriptor(self, address: u32) -> Descriptor {
        let line = self.swizzle;
        match (self.transposed, line) {
            (false, 16) => Descriptor::of(address, self.rows * 16, 128, line),
            (false, _) => Descriptor::of(address, 16, 8 * line, line),
            // Without a swizzle, the leading offset of the descriptor is the distance between groups of eight
            // values of K. With a swizzle, it is the distance between groups of `line / 2` rows.
            (true, 16) => Descriptor::of(address, 128, 256, line),
            (true, _) => Descriptor::of(address, 16 * line, 8 * line, line),
        }
    }

    /// Returns the offset of an element of `bytes` bytes.
    fn offset(self, row: u32, k: u32, bytes: u32) -> u32 {
        let line = self.swizzle;
        let at = match (self.transposed, line) {
            (false, 16) => k * bytes / 16 * self.rows * 16 + row * 16 + k * bytes % 16,
            (false, _) => row * line + k * bytes,
            (true, 16) => row / 8 * 256 + k / 8 * 128 + k % 8 * 16 + row % 8 * 2,
            (true, _) => row * 2 / line * 16 * line + k * line + row * 2 % line,
        };
        let chunk = (at >> 7 & 7) % (line / 16);
        at ^ chunk << 4
    }
}

fn operand(of: &Type, seed: u32, row: u32, k: u32) -> (u32, f64) {
    (of.element)(random(seed.wrapping_add(row * 1000 + k)))
}

/// Writes a matrix to shared memory. Each thread writes at least two bytes, because the race detection has
/// units of this size.
fn fill(of: &Type, layout: Layout, region: u32, seed: u32) {
    let each = 2_u32.div_ceil(of.bytes);
    let per_row = K_BYTES / of.bytes / each;
    for at in (me()..layout.rows * per_row).step_by(128) {
        let (row, first) = (at / per_row, at % per_row * each);
        for k in first..first + each {
            let bits = operand(of, seed, row, k).0.to_le_bytes();
            for byte in 0..of.bytes {
                let at = region + layout.offset(row, k, of.bytes) + byte;
                // SAFETY: each thread writes its own bytes.
                unsafe { tile_of::<u8>().set(at, bits[byte as usize]) };
            }
        }
    }
}

/// The function with which a test computes `d += a b` or `d = a b`. Its arguments are `(d, a, b, add)`.
type Product<D> = unsafe fn(&mut D, Descriptor, Descriptor, bool);

/// Multiplies two matrices twice. The second multiplication adds to the result of the first. Compares the
/// final result with a computation in f64.
fn check<D: Accumulator<Element: From<i8>>>(
    types: [&Type; 2],
    layouts: [Layout; 2],
    product: Product<D>,
    value: fn(D::Element) -> f64,
) {
    assert_eq!(2 * D::LEN as u32, layouts[1].rows);
    run([1; 3], [WARP_GROUP, 1, 1], super::hopper::BYTES, &|| {
        let k = K_BYTES / types[0].bytes;
        fill(types[0], layouts[0], 0, 1);
        fill(types[1], layouts[1], REGION, 2);
        publish_shared();
        block::sync();
        let [a, b] = [0, REGION].map(|region| tile() + region);
        let mut d = D::ZERO;
        // The first product overwrites this value.
        d.as_mut().fill(7.into());
        // SAFETY: the multiplications read operands that have been written to shared memory. The whole
        // warpgroup executes this code.
        unsafe {
            wgmma::fence();
            product(&mut d, layouts[0].descriptor(a), layouts[1].descriptor(b), false);
            product(&mut d, layouts[0].descriptor(a), layouts[1].descriptor(b), true);
            wgmma::commit();
            wgmma::wait::<0>();
            wgmma::settle(&mut d);
        }
        for (register, &got) in d.as_ref().iter().enumerate() {
            let register = register as u32;
            let row = me() / 32 * 16 + me() % 32 / 4 + register / 2 % 2 * 8;
            let column = register / 4 * 8 + me() % 4 * 2 + register % 2;
            let products = (0..k).map(|k| operand(types[0], 1, row, k).1 * operand(types[1], 2, column, k).1);
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            let allowed = 2.0 * types[0].error * size;
            assert!(
                (value(got) - 2.0 * sum).abs() <= allowed,
                "row {row} column {column}: {}, expected {} within {allowed}",
                value(got),
                2.0 * sum
            );
        }
    })
    .unwrap();
}

const fn along_k(rows: u32, swizzle: u32) -> Layout {
    Layout { rows, swizzle, transposed: false }
}

fn check_along_k<T: Operand>(types: [&Type; 2]) {
    for (a, b) in [(16, 16), (32, 128), (64, 32), (128, 64), (128, 128)] {
        check::<Registers<32>>(types, [along_k(64, a), along_k(N, b)], wgmma::mma_shared::<T, _>, f64::from);
    }
}

#[test]
fn sixteen_bit_floats() {
    check_along_k::<bf16>([&BF16, &BF16]);
    check_along_k::<f16>([&F16, &F16]);
}

#[test]
fn other_floats() {
    check_along_k::<Tf32>([&TF32, &TF32]);
    check_along_k::<E4m3>([&E4M3, &E4M3]);
    check_along_k::<E5m2>([&E5M2, &E5M2]);
    check_along_k::<E4m3E5m2>([&E4M3, &E5M2]);
    check_along_k::<E5m2E4m3>([&E5M2, &E4M3]);
}

#[test]
fn integers() {
    let layouts = [along_k(64, 128), along_k(N, 128)];
    check::<Registers<32, i32>>([&INT8, &INT8], layouts, wgmma::mma_shared::<S8, _>, f64::from);
    check::<Registers<32, i32>>([&UINT8, &UINT8], layouts, wgmma::mma_shared::<U8, _>, f64::from);
}

#[test]
fn operands_that_are_contiguous_along_their_rows() {
    for swizzle in [16, 32, 64, 128] {
        let [a, b] = [64, N].map(|rows| Layout { rows, swizzle, transposed: true });
        let product = wgmma::mma_shared_transposed::<bf16, Registers<32>, 1, 1>;
        check([&BF16, &BF16], [a, b], product, f64::from);
        let product = wgmma::mma_shared_transposed::<f16, Registers<32>, 0, 1>;
        check([&F16, &F16], [along_k(64, 128), b], product, f64::from);
    }
}

/// Reads the thread's elements of `a` into registers. `a` is a matrix in shared memory that is contiguous
/// along K and has no swizzle.
fn fragments(a: u32) -> [u32; 4] {
    let (row, byte) = (me() / 32 * 16 + me() % 32 / 4, me() % 4 * 4);
    core::array::from_fn(|word| {
        let (row, byte) = (row + word as u32 % 2 * 8, byte + word as u32 / 2 * 16);
        let at = a - tile() + byte / 16 * 1024 + row * 16 + byte % 16;
        // SAFETY: a barrier separates this read from the writes.
        unsafe { tile_of::<u32>().get(at / 4) }
    })
}

unsafe fn from_registers<T: Operand>(d: &mut Registers<32>, _: Descriptor, b: Descriptor, add: bool) {
    if !add {
        *d = Registers::ZERO;
    }
    // SAFETY: the caller guarantees that the operands are in shared memory.
    unsafe {
        wgmma::fence();
        wgmma::mma_registers_along_k::<T, _>(d, fragments(tile()), b);
    }
}

#[test]
fn left_operands_in_registers() {
    let layouts = [along_k(64, 16), along_k(N, 128)];
    check([&BF16, &BF16], layouts, from_registers::<bf16>, f64::from);
    check([&TF32, &TF32], layouts, from_registers::<Tf32>, f64::from);
    check([&E4M3, &E4M3], layouts, from_registers::<E4m3>, f64::from);
}

#[test]
fn every_width() {
    fn float<const LEN: usize>()
    where
        Registers<LEN>: Accumulator<Element = f32>,
    {
        let layouts = [along_k(64, 64), along_k(2 * LEN as u32, 64)];
        check::<Registers<LEN>>([&BF16, &BF16], layouts, wgmma::mma_shared::<bf16, _>, f64::from);
        check::<Registers<LEN>>([&E4M3, &E4M3], layouts, wgmma::mma_shared::<E4m3, _>, f64::from);
    }
    fn integer<const LEN: usize>()
    where
        Registers<LEN, i32>: Accumulator<Element = i32>,
    {
        let layouts = [along_k(64, 64), along_k(2 * LEN as u32, 64)];
        check::<Registers<LEN, i32>>([&INT8, &INT8], layouts, wgmma::mma_shared::<S8, _>, f64::from);
    }
    macro_rules! each {
        ($check:ident: $($len:literal)*) => { $($check::<$len>();)* };
    }
    each!(float: 4 8 12 16 20 24 28 32 36 40 44 48 52 56 60 64);
    each!(integer: 4 8 12 16 24 32 40 48 56 64);
}

#[test]
fn wide_results() {
    fn float<const LEN: usize>()
    where
        Registers<LEN>: Accumulator<Element = f32>,
    {
        let layouts = [along_k(64, 32), along_k(2 * LEN as u32, 32)];
        check::<Registers<LEN>>([&BF16, &BF16], layouts, wgmma::mma_shared::<bf16, _>, f64::from);
    }
    macro_rules! each {
        ($($len:literal)*) => { $(float::<$len>();)* };
    }
    each!(68 72 76 80 84 88 92 96 100 104 108 112 116 120 124 128);
}

#[test]
fn products_that_overwrite_or_add() {
    let layouts = [along_k(64, 128), along_k(N, 128)];
    let product = wgmma::mma_shared_if::<bf16, Registers<32>, 0, 0>;
    check([&BF16, &BF16], layouts, product, f64::from);
    let layouts = [along_k(64, 16), along_k(N, 128)];
    unsafe fn overwrite(d: &mut Registers<32>, _: Descriptor, b: Descriptor, add: bool) {
        // SAFETY: the caller guarantees that the operands are in shared memory.
        unsafe {
            let a = fragments(tile());
            wgmma::fence();
            if add {
                wgmma::mma_registers_along_k::<bf16, _>(d, a, b);
            } else {
                wgmma::mma_registers_overwrite::<bf16, _, 0>(d, a, b);
            }
        }
    }
    check([&BF16, &BF16], layouts, overwrite, f64::from);
    unsafe fn predicate(d: &mut Registers<32>, _: Descriptor, b: Descriptor, add: bool) {
        // SAFETY: the caller guarantees that the operands are in shared memory.
        unsafe {
            let a = fragments(tile());
            wgmma::fence();
            wgmma::mma_registers_if::<bf16, _, 0>(d, a, b, add);
        }
    }
    check([&BF16, &BF16], layouts, predicate, f64::from);
}
