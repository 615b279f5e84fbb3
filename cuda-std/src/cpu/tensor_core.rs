//! Models the arithmetic of Hopper's tensor cores bit for bit, for `wgmma` and `mma.sync` with f32
//! accumulators.
//!
//! An instruction computes `d = a b + d` in K steps of 32 bytes per row. The terms of one step are the exact
//! products and the accumulator:
//!
//! 1. The exponent of a product is the sum of the exponents of its operands. A subnormal operand has the
//!    smallest normal exponent of its type. `top` is the largest exponent of the nonzero terms, but at least
//!    -133.
//! 2. Each term is cut toward zero to a multiple of `2^(top - fraction)`. These multiples are summed exactly.
//! 3. The sum is cut toward zero to the significant bits of the result and to a multiple of 2^-149, the
//!    smallest subnormal f32. If the sum exceeds the largest f32, the result is an infinity. A NaN has the
//!    bits 0x7fffffff. A zero is +0.
//!
//! | operands | K of a step | fraction bits | significant bits |
//! | --- | --- | --- | --- |
//! | f16, bf16 | 16 | 25 | 24 |
//! | tf32 | 8 | 25 | 24 |
//! | e4m3, e5m2 | 32 | 13 | 14 |
//!
//! The rule was measured on an H100 and an H200. The tests contain a part of the measured products. The model
//! assumes the same rule for these cases, which were not measured:
//!
//! - fp8 operands of `mma.sync`
//! - tf32 operands whose lower 13 bits are not zero; a NaN becomes an infinity if only these bits mark it
//! - the sign of the zero if all terms are negative zeros
//! - the sign of the zero if a negative sum is cut to zero
//!
//! [`multiply_step`] computes 8 or 16 columns at a time with f32 and i32 vectors. If a largest exponent is
//! extreme, a term is not finite, or a sum overflows i32, [`exact`] computes these columns instead.

/// The bits of each NaN result.
const NAN: u32 = 0x7fff_ffff;
/// Stands for the exponent of a zero. The value is so low that its sum with any exponent except [`SPECIAL`]
/// is below [`NO_TERM`].
const ZERO: i16 = -6000;
/// Stands for the exponent of an infinity or a NaN. The value is so high that its sum with any exponent, even
/// [`ZERO`], is above [`MAX_FAST`].
const SPECIAL: i16 = 12000;
/// If the largest exponent of the terms is at most this value, all terms are zero.
const NO_TERM: i32 = -1000;
/// Range of the largest exponent of the terms for which the fast path computes an element. In this range, no
/// product overflows f32. Some products are inexact in f32, but they are so small that the cut makes them
/// zero. The result is zero, normal or infinite.
const MIN_FAST: i32 = -100;
const MAX_FAST: i32 = 126;
/// The lower bound of the exponent that aligns the terms.
const MIN_TOP: i32 = -133;
/// The number of columns of a decoded `b` is a multiple of this value.
const LANES: usize = 8;

/// Bytes of one row of an operand in one K step, for each operand type.
pub(crate) const STEP_BYTES: usize = 32;

/// The type of the elements of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OperandType {
    F16,
    Bf16,
    /// An f32 without its lower 13 bits, which the hardware ignores.
    Tf32,
    /// `float8_e4m3fn`: it has NaNs, but no infinities.
    E4m3,
    E5m2,
}

impl OperandType {
    /// The elements of a row in one K step.
    pub const fn step(self) -> usize {
        STEP_BYTES / self.bytes()
    }

    /// The bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::Tf32 => 4,
            Self::E4m3 | Self::E5m2 => 1,
        }
    }
}

/// The elements of an operand in one K step: `a` with rows M, or `b` with rows N. `COLUMNS` is true for `b`,
/// whose elements with the same K are contiguous.
pub(crate) struct Decoded<const COLUMNS: bool> {
    operand: OperandType,
    rows: usize,
    /// The distance, in elements, from a row of `a` to the next row. For `b`, the distance from a value of K
    /// to the next value of K.
    stride: usize,
    /// The undecoded elements.
    bits: Vec<u32>,
    /// The values of the elements. f32 represents the values of every operand type.
    values: Vec<f32>,
    /// The exponent of each element, [`ZERO`] or [`SPECIAL`].
    exponents: Vec<i16>,
}

pub(crate) type DecodedA = Decoded<false>;
pub(crate) type DecodedB = Decoded<true>;

impl<const COLUMNS: bool> Decoded<COLUMNS> {
    pub const fn new() -> Self {
        Self {
            operand: OperandType::F16,
            rows: 0,
            stride: 0,
            bits: Vec::new(),
            values: Vec::new(),
            exponents: Vec::new(),
        }
    }

    /// Decodes `rows` rows. `row` returns the little-endian elements of a row. If the K of the instruction is
    /// smaller than [`OperandType::step`], the remaining elements must be zero.
    #[inline]
    pub fn decode(
        &mut self,
        operand: OperandType,
        rows: usize,
        mut row: impl FnMut(usize) -> [u8; STEP_BYTES],
    ) {
        self.resize(operand, rows);
        for at in 0..rows {
            let bytes = row(at);
            match operand.bytes() {
                1 => self.set_row::<1>(at, &bytes),
                2 => self.set_row::<2>(at, &bytes),
                _ => self.set_row::<4>(at, &bytes),
            }
        }
        self.convert();
    }

    /// Decodes `rows` rows. `element(row, k)` returns the bits of an element.
    #[cfg(test)]
    fn decode_elements(
        &mut self,
        operand: OperandType,
        rows: usize,
        mut element: impl FnMut(usize, usize) -> u32,
    ) {
        self.resize(operand, rows);
        let (stride, step) = (self.stride, operand.step());
        for (row, k) in (0..rows).flat_map(|row| (0..step).map(move |k| (row, k))) {
            self.bits[if COLUMNS { k * stride + row } else { row * step + k }] = element(row, k);
        }
        self.convert();
    }

    /// Sets the shape, and clears the elements of padding columns. The caller must set the other elements.
    fn resize(&mut self, operand: OperandType, rows: usize) {
        let stride = if COLUMNS { rows.next_multiple_of(LANES) } else { operand.step() };
        let len = if COLUMNS { stride * operand.step() } else { stride * rows };
        if (self.operand, self.rows, self.bits.len()) != (operand, rows, len) {
            (self.operand, self.rows, self.stride) = (operand, rows, stride);
            self.bits.clear();
            self.bits.resize(len, 0);
            self.values.resize(len, 0.0);
            self.exponents.resize(len, 0);
        }
    }

    #[inline(always)]
    fn set_row<const BYTES: usize>(&mut self, row: usize, bytes: &[u8; STEP_BYTES]) {
        let words =
            bytes.as_chunks::<BYTES>().0.iter().map(|bytes| {
                u32::from_le_bytes([0, 1, 2, 3].map(|at| if at < BYTES { bytes[at] } else { 0 }))
            });
        if COLUMNS {
            for (word, plane) in words.zip(self.bits.chunks_exact_mut(self.stride)) {
                plane[row] = word;
            }
        } else {
            for (word, bits) in words.zip(&mut self.bits[row * self.stride..]) {
                *bits = word;
            }
        }
    }

    /// Computes values and exponents from the bits.
    fn convert(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2.
            return unsafe { convert_avx2(self.operand, &self.bits, &mut self.values, &mut self.exponents) };
        }
        convert(self.operand, &self.bits, &mut self.values, &mut self.exponents);
    }

    #[inline(always)]
    fn index(&self, row: usize, k: usize) -> usize {
        if COLUMNS { k * self.stride + row } else { row * self.stride + k }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn convert_avx2(operand: OperandType, bits: &[u32], values: &mut [f32], exponents: &mut [i16]) {
    convert(operand, bits, values, exponents);
}

#[inline(always)]
fn convert(operand: OperandType, bits: &[u32], values: &mut [f32], exponents: &mut [i16]) {
    match operand {
        OperandType::F16 => convert_floats::<5, 10, 0, true>(bits, values, exponents),
        OperandType::Bf16 => convert_floats::<8, 7, 0, true>(bits, values, exponents),
        OperandType::Tf32 => convert_floats::<8, 10, 13, true>(bits, values, exponents),
        OperandType::E4m3 => convert_floats::<4, 3, 0, false>(bits, values, exponents),
        OperandType::E5m2 => convert_floats::<5, 2, 0, true>(bits, values, exponents),
    }
}

/// Decodes numbers with `EXPONENT` exponent bits and `MANTISSA` mantissa bits. The lowest `UNUSED` bits are
/// ignored. If `INFINITY` is false, the type has no infinity, and all exponent and mantissa bits of a NaN are
/// set.
#[inline(always)]
fn convert_floats<const EXPONENT: u32, const MANTISSA: u32, const UNUSED: u32, const INFINITY: bool>(
    bits: &[u32],
    values: &mut [f32],
    exponents: &mut [i16],
) {
    let bias = (1 << (EXPONENT - 1)) - 1;
    let max = (1 << EXPONENT) - 1;
    for ((&bits, value), exponent) in bits.iter().zip(values).zip(exponents) {
        let bits = bits >> UNUSED;
        let magnitude = bits & ((1 << (EXPONENT + MANTISSA)) - 1);
        let mantissa = magnitude & ((1 << MANTISSA) - 1);
        let field = (magnitude >> MANTISSA) as i32;
        let special = if INFINITY { field == max } else { magnitude == (1 << (EXPONENT + MANTISSA)) - 1 };
        let normal = ((field + 127 - bias) as u32) << 23 | mantissa << (23 - MANTISSA);
        let mut result = normal;
        // If the type has as many exponent bits as f32, a subnormal number of the type is also a subnormal
        // f32.
        if EXPONENT < 8 && field == 0 {
            result = (mantissa as i32 as f32 * power(1 - bias - MANTISSA as i32)).to_bits();
        }
        result |= if special { 0x7f80_0000 } else { 0 };
        *value = f32::from_bits(result | (bits >> (EXPONENT + MANTISSA)) << 31);
        let mut finite = (field.max(1) - bias) as i16;
        finite = if magnitude == 0 { ZERO } else { finite };
        *exponent = if special { SPECIAL } else { finite };
    }
}

/// Returns `2^exponent`, which must be a normal f32.
#[inline(always)]
const fn power(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// Adds one K step of the product of `a` and `b` to `d`. Element `m * N + n` of `d` is the accumulator for
/// row `m` of `a` and row `n` of `b`.
pub(crate) fn multiply_step(a: &DecodedA, b: &DecodedB, d: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { multiply_step_avx2(a, b, d) };
    }
    multiply_step_portable(a, b, d);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_step_avx2(a: &DecodedA, b: &DecodedB, d: &mut [f32]) {
    multiply_step_body(a, b, d);
}

fn multiply_step_portable(a: &DecodedA, b: &DecodedB, d: &mut [f32]) {
    multiply_step_body(a, b, d);
}

#[inline(always)]
fn multiply_step_body(a: &DecodedA, b: &DecodedB, d: &mut [f32]) {
    assert_eq!(d.len(), a.rows * b.rows, "d has {} elements, expected M x N", d.len());
    match (a.operand, b.operand) {
        (OperandType::F16, OperandType::F16) | (OperandType::Bf16, OperandType::Bf16) => {
            rows::<16, 25, 24>(a, b, d)
        }
        (OperandType::Tf32, OperandType::Tf32) => rows::<8, 25, 24>(a, b, d),
        (OperandType::E4m3 | OperandType::E5m2, OperandType::E4m3 | OperandType::E5m2) => {
            rows::<32, 13, 14>(a, b, d)
        }
        (first, second) => panic!("no tensor core multiplies {first:?} by {second:?}"),
    }
}

#[inline(always)]
fn rows<const STEP: usize, const FRACTION: i32, const BITS: u32>(a: &DecodedA, b: &DecodedB, d: &mut [f32]) {
    if b.rows == 0 {
        return;
    }
    for (m, d) in d.chunks_exact_mut(b.rows).enumerate() {
        let mut n = 0;
        while n + 16 <= b.rows {
            let d: &mut [f32; 16] = (&mut d[n..n + 16]).try_into().expect("16 elements");
            columns::<STEP, FRACTION, BITS, 16>(a, b, m, n, d);
            n += 16;
        }
        while n < b.rows {
            let d = &mut d[n..b.rows.min(n + LANES)];
            if let Ok(d) = <&mut [f32; LANES]>::try_from(&mut *d) {
                columns::<STEP, FRACTION, BITS, LANES>(a, b, m, n, d);
            } else {
                let mut padded = [0.0; LANES];
                padded[..d.len()].copy_from_slice(d);
                columns::<STEP, FRACTION, BITS, LANES>(a, b, m, n, &mut padded);
                d.copy_from_slice(&padded[..d.len()]);
            }
            n += LANES;
        }
    }
}

/// Computes `WIDTH` elements of row `m`, from column `n` on.
#[inline(always)]
fn columns<const STEP: usize, const FRACTION: i32, const BITS: u32, const WIDTH: usize>(
    a: &DecodedA,
    b: &DecodedB,
    m: usize,
    n: usize,
    d: &mut [f32; WIDTH],
) {
    if !columns_fast::<STEP, FRACTION, BITS, WIDTH>(a, b, m, n, d) {
        columns_exact(a, b, m, n, d);
    }
}

#[cold]
#[inline(never)]
fn columns_exact(a: &DecodedA, b: &DecodedB, m: usize, n: usize, d: &mut [f32]) {
    for (at, d) in d.iter_mut().enumerate() {
        *d = exact(a, b, m, n + at, *d);
    }
}

/// Computes `WIDTH` adjacent elements with the fast path. Returns false, and leaves `d` unchanged, if
/// [`exact`] must compute these elements.
#[inline(always)]
fn columns_fast<const STEP: usize, const FRACTION: i32, const BITS: u32, const WIDTH: usize>(
    a: &DecodedA,
    b: &DecodedB,
    m: usize,
    n: usize,
    d: &mut [f32; WIDTH],
) -> bool {
    let a_exponents: &[i16; STEP] = a.exponents[m * STEP..][..STEP].try_into().expect("a row");
    let a_values: &[f32; STEP] = a.values[m * STEP..][..STEP].try_into().expect("a row");
    // In builds with overflow checks, the compiler vectorizes this code only with `wrapping_add` and
    // `wrapping_sub`. Of all these operations, only the addition of the accumulator can overflow.
    let mut product_top = [i16::MIN; WIDTH];
    for k in 0..STEP {
        let b_exponents: &[i16; WIDTH] =
            b.exponents[k * b.stride + n..][..WIDTH].try_into().expect("a plane");
        for j in 0..WIDTH {
            product_top[j] = product_top[j].max(a_exponents[k].wrapping_add(b_exponents[j]));
        }
    }

    let (mut scales, mut unscales) = ([0.0; WIDTH], [0.0; WIDTH]);
    let mut slow = false;
    for j in 0..WIDTH {
        let magnitude = d[j].to_bits() << 1;
        let exponent = ((magnitude >> 24) as i32).max(1).wrapping_sub(127);
        let top = i32::from(product_top[j]).max(if magnitude == 0 { NO_TERM } else { exponent });
        slow |= (top > MAX_FAST) | ((top < MIN_FAST) & (top > NO_TERM));
        // This bound changes `top` only if all terms are zero.
        let top = top.max(MIN_FAST);
        scales[j] = power(FRACTION.wrapping_sub(top));
        unscales[j] = power(top.wrapping_sub(FRACTION));
    }
    if slow {
        return false;
    }

    // The sum of the products fits in an i32. It is at most 16 * 2047^2 * 2^5, for f16 operands.
    let mut sums = [0_i32; WIDTH];
    for k in 0..STEP {
        let b_values: &[f32; WIDTH] = b.values[k * b.stride + n..][..WIDTH].try_into().expect("a plane");
        for j in 0..WIDTH {
            // SAFETY: the conversion requires a value that fits in an i32. The product is less than 2^(top +
            // 2), so the scaled product is less than 2^27.
            let term = unsafe { (a_values[k] * b_values[j] * scales[j]).to_int_unchecked::<i32>() };
            sums[j] = sums[j].wrapping_add(term);
        }
    }

    let mut overflow = 0;
    let mut results = [0.0; WIDTH];
    for j in 0..WIDTH {
        // SAFETY: the accumulator is less than 2^(top + 1).
        let accumulator = unsafe { (d[j] * scales[j]).to_int_unchecked::<i32>() };
        let sum = sums[j].wrapping_add(accumulator);
        overflow |= (sum ^ sums[j]) & (sum ^ accumulator);
        let magnitude = sum.unsigned_abs();
        // The conversion to f32 must round toward zero. Therefore clear the bit below the 24 significant
        // bits, so that the conversion does not round up. This also clears some lower bits, which the
        // conversion drops anyway. The magnitude 2^31 becomes -2^31, which has the right sign.
        let cut = (magnitude & !(magnitude >> 24)) as i32 as f32;
        // For fp8, the result has fewer significant bits. Clear the other bits here: the conversion was
        // exact, because the sum is less than 2^21.
        let cut = f32::from_bits(cut.to_bits() & (u32::MAX << (24 - BITS)));
        let value = cut * unscales[j];
        results[j] = f32::from_bits(value.to_bits() | (sum as u32 & 0x8000_0000));
    }
    if overflow < 0 {
        return false;
    }
    *d = results;
    true
}

/// Computes one element for all inputs.
fn exact(a: &DecodedA, b: &DecodedB, m: usize, n: usize, accumulator: f32) -> f32 {
    let (fraction, bits) = if a.operand.bytes() == 1 { (13, 14) } else { (25, 24) };
    let products = || (0..a.operand.step()).map(|k| (a.index(m, k), b.index(n, k)));

    let magnitude = accumulator.to_bits() << 1;
    let exponent = ((magnitude >> 24) as i32).max(1) - 127;
    let mut top = if magnitude == 0 { MIN_TOP } else { exponent.max(MIN_TOP) };
    for (a_at, b_at) in products() {
        top = top.max(i32::from(a.exponents[a_at]) + i32::from(b.exponents[b_at]));
    }
    if top > 2 * 127 || !accumulator.is_finite() {
        // An infinite or NaN sum in f64 is the correct result, because the sum of finite products does not
        // overflow f64.
        let products = products().map(|(a_at, b_at)| f64::from(a.values[a_at]) * f64::from(b.values[b_at]));
        let sum = products.sum::<f64>() + f64::from(accumulator);
        return if sum.is_nan() { f32::from_bits(NAN) } else { sum as f32 };
    }

    // All powers and products are normal f64 numbers, so that the multiplications are exact.
    let power = |exponent: i32| f64::from_bits(((exponent + 1023) as u64) << 52);
    let scale = power(fraction - top);
    let mut sum = (f64::from(accumulator) * scale) as i64;
    for (a_at, b_at) in products() {
        sum += (f64::from(a.values[a_at]) * f64::from(b.values[b_at]) * scale) as i64;
    }
    let length = (u64::BITS - sum.unsigned_abs().leading_zeros()) as i32;
    // The number of low bits to drop: the bits below the significant bits of the result, or below 2^-149.
    let dropped = (length - bits).max(-149 - (top - fraction)).max(0);
    let cut = (sum.unsigned_abs() >> dropped << dropped) as f64 * power(top - fraction);
    // The conversion is exact, or it gives an infinity.
    (if sum < 0 && cut != 0.0 { -cut } else { cut }) as f32
}

/// Adds one K step of a product of 8-bit integers to `d`. The step has 32 values of K. Element `m * N + n` of
/// `d` is the accumulator for row `m` of `a` and row `n` of `b`. The flags state whether the elements are
/// signed. Sums wrap around, as in the instructions without `.satfinite`.
pub(crate) fn multiply_int8(
    a: &[[u8; STEP_BYTES]],
    a_signed: bool,
    b: &[[u8; STEP_BYTES]],
    b_signed: bool,
    d: &mut [i32],
) {
    assert_eq!(d.len(), a.len() * b.len(), "d has {} elements, expected M x N", d.len());
    let widen = |row: &[u8; STEP_BYTES], signed: bool| {
        row.map(|x| if signed { i16::from(x as i8) } else { i16::from(x) })
    };
    for (a, d) in a.iter().zip(d.chunks_exact_mut(b.len().max(1))) {
        let a = widen(a, a_signed);
        for (b, d) in b.iter().zip(d) {
            for (a, b) in a.into_iter().zip(widen(b, b_signed)) {
                *d = d.wrapping_add(i32::from(a).wrapping_mul(i32::from(b)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
