//! Tests of the tensor-core model: the golden vectors of an H100 and an H200, and random products that are
//! compared with an independent implementation.
use std::io::Read;

use lzma_rust2::LzmaReader;

use super::*;

const OPERANDS: [OperandType; 5] =
    [OperandType::F16, OperandType::Bf16, OperandType::Tf32, OperandType::E4m3, OperandType::E5m2];
type Step = fn(&DecodedA, &DecodedB, &mut [f32]);

/// All operand types that one instruction multiplies.
fn pairs() -> impl Iterator<Item = (OperandType, OperandType)> {
    let mixed = [(OperandType::E4m3, OperandType::E5m2), (OperandType::E5m2, OperandType::E4m3)];
    OPERANDS.into_iter().map(|operand| (operand, operand)).chain(mixed)
}

fn implementations() -> Vec<(&'static str, Step)> {
    let mut all: Vec<(_, Step)> = vec![("portable", multiply_step_portable), ("chosen", multiply_step)];
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        all.push(("avx2", |a, b, d| unsafe { multiply_step_avx2(a, b, d) }));
    }
    all.push(("exact", |a, b, d| {
        for (at, d) in d.iter_mut().enumerate() {
            *d = exact(a, b, at / b.rows, at % b.rows, *d);
        }
    }));
    all
}

/// Multiplies two matrices with `k` columns, in as many K steps as needed. The elements of the matrices are
/// passed as bits.
fn multiply(
    step: Step,
    operands: (OperandType, OperandType),
    k: usize,
    a: &[u32],
    b: &[u32],
    c: &[f32],
) -> Vec<u32> {
    let (mut left, mut right) = (DecodedA::new(), DecodedB::new());
    let mut d = c.to_vec();
    for start in (0..k).step_by(operands.0.step()) {
        left.decode_elements(operands.0, a.len() / k, |row, at| a[row * k + start + at]);
        right.decode_elements(operands.1, b.len() / k, |row, at| b[row * k + start + at]);
        step(&left, &right, &mut d);
    }
    d.iter().map(|x| x.to_bits()).collect()
}

/// The smallest value of `top` is -133. This limit affects only sums that are close to the smallest subnormal
/// f32.
#[test]
fn terms_are_cut_at_2_to_the_power_of_minus_158() {
    let operands = (OperandType::Bf16, OperandType::Bf16);
    let bf16 = |significand: f32, last: i32| (significand * 2_f32.powi(last)).to_bits() >> 16;
    for (first, second, last, expected) in [(33.0, 31.0, -159, 0), (73.0, 7.0, -158, 1)] {
        let (mut a, mut b) = ([0; 16], [0; 16]);
        // The exact sum of the two products is 2^-149.
        (a[3], b[3]) = (bf16(first, -100), bf16(second, last + 100));
        (a[9], b[9]) = (bf16(1.0, -100), bf16(1.0, last + 100));
        assert_eq!(reference(operands, &a, &b, 0.0), expected);
        for (name, step) in implementations() {
            assert_eq!(multiply(step, operands, 16, &a, &b, &[0.0]), [expected], "{name}");
        }
    }
}

/// Returns whether the model computes the first `LANES` elements of row 0 with its fast path, that is,
/// without the function `exact`.
fn is_fast(operands: (OperandType, OperandType), a: &[u32], b: &[u32], c: &[f32]) -> bool {
    let (mut left, mut right) = (DecodedA::new(), DecodedB::new());
    left.decode_elements(operands.0, 1, |_, k| a[k]);
    right.decode_elements(operands.1, c.len(), |row, k| b[row * operands.0.step() + k]);
    let mut d = [0.0; LANES];
    d.iter_mut().zip(c).for_each(|(d, &c)| *d = c);
    match operands.0.step() {
        8 => columns_fast::<8, 25, 24, LANES>(&left, &right, 0, 0, &mut d),
        16 => columns_fast::<16, 25, 24, LANES>(&left, &right, 0, 0, &mut d),
        _ => columns_fast::<32, 13, 14, LANES>(&left, &right, 0, 0, &mut d),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Number {
    Finite { negative: bool, significand: i128, last: i32, exponent: i32 },
    Infinity { negative: bool },
    Nan,
}

/// Decodes one number. `last` is the exponent of the last bit of the significand.
fn number(bits: u32, exponent_bits: u32, mantissa_bits: u32, infinity: bool) -> Number {
    let negative = bits >> (exponent_bits + mantissa_bits) & 1 == 1;
    let field = (bits >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let mantissa = i128::from(bits & ((1 << mantissa_bits) - 1));
    let (max, ones) = ((1 << exponent_bits) - 1, (1 << mantissa_bits) - 1);
    match infinity {
        true if field == max && mantissa == 0 => return Number::Infinity { negative },
        true if field == max => return Number::Nan,
        false if field == max && mantissa == ones => return Number::Nan,
        _ => {}
    }
    let bias = (1 << (exponent_bits - 1)) - 1;
    let significand = if field == 0 { mantissa } else { mantissa | 1 << mantissa_bits };
    let exponent = field.max(1) - bias;
    Number::Finite { negative, significand, last: exponent - mantissa_bits as i32, exponent }
}

fn element(operand: OperandType, bits: u32) -> Number {
    match operand {
        OperandType::F16 => number(bits, 5, 10, true),
        OperandType::Bf16 => number(bits, 8, 7, true),
        OperandType::Tf32 => number(bits >> 13, 8, 10, true),
        OperandType::E4m3 => number(bits, 4, 3, false),
        OperandType::E5m2 => number(bits, 5, 2, true),
    }
}

fn product(a: Number, b: Number) -> Number {
    let sign = |x| match x {
        Number::Finite { negative, .. } | Number::Infinity { negative } => negative,
        Number::Nan => false,
    };
    let zero = |x| matches!(x, Number::Finite { significand: 0, .. });
    let negative = sign(a) != sign(b);
    match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) => Number::Nan,
        (
            Number::Finite { significand: s, last: l, exponent: e, .. },
            Number::Finite { significand, last, exponent, .. },
        ) => {
            Number::Finite { negative, significand: s * significand, last: l + last, exponent: e + exponent }
        }
        (a, b) if zero(a) || zero(b) => Number::Nan,
        _ => Number::Infinity { negative },
    }
}

/// Computes one element with the rule of the module documentation, in i128 arithmetic.
fn reference(operands: (OperandType, OperandType), a: &[u32], b: &[u32], c: f32) -> u32 {
    let (fraction, bits) = if operands.0.bytes() == 1 { (13, 14) } else { (25, 24) };
    let mut terms: Vec<Number> =
        a.iter().zip(b).map(|(&a, &b)| product(element(operands.0, a), element(operands.1, b))).collect();
    terms.push(number(c.to_bits(), 8, 23, true));
    let has = |wanted| terms.contains(&wanted);
    let [plus, minus] = [false, true].map(|negative| has(Number::Infinity { negative }));
    if has(Number::Nan) || plus && minus {
        return NAN;
    }
    if plus || minus {
        return if minus { 0xff80_0000 } else { 0x7f80_0000 };
    }
    let exponents = terms.iter().map(|term| match term {
        Number::Finite { significand: 1.., exponent, .. } => *exponent,
        _ => -133,
    });
    let top = exponents.max().unwrap().max(-133);
    let mut sum = 0_i128;
    for term in terms {
        let Number::Finite { negative, significand, last, .. } = term else { unreachable!() };
        let mut cut = significand;
        for _ in top - fraction..last {
            cut *= 2;
        }
        for _ in last..top - fraction {
            cut /= 2;
        }
        sum += if negative { -cut } else { cut };
    }
    let (negative, mut magnitude, mut last) = (sum < 0, sum.unsigned_abs(), top - fraction);
    while magnitude >= 1 << bits || last < -125 - bits {
        (magnitude, last) = (magnitude / 2, last + 1);
    }
    if magnitude == 0 {
        return 0;
    }
    while magnitude < 1 << 23 && last > -149 {
        (magnitude, last) = (magnitude * 2, last - 1);
    }
    let field = if magnitude < 1 << 23 { 0 } else { (last + 150) as u32 };
    let result = if field >= 255 { 0x7f80_0000 } else { field << 23 | magnitude as u32 & 0x7f_ffff };
    result | u32::from(negative) << 31
}

struct Golden {
    name: String,
    operands: (OperandType, OperandType),
    k: usize,
    /// The bits of `a`, `b`, `c` and `d`.
    matrices: [Vec<u32>; 4],
}

/// Reads the file that `scripts/tensor_core_vectors.py` wrote. Its docstring describes the format.
fn golden() -> Vec<Golden> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tensor_core.bin.lzma");
    let file = std::fs::File::open(path).expect(path);
    let mut bytes = Vec::new();
    let mut reader = LzmaReader::new_mem_limit(file, u32::MAX, None).expect(path);
    reader.read_to_end(&mut bytes).expect(path);
    let mut rest = &bytes[..];
    let words = |bytes: &[u8], size: usize| -> Vec<u32> {
        let word = |x: &[u8]| x.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        bytes.chunks_exact(size).map(word).collect()
    };
    let mut cases = Vec::new();
    while !rest.is_empty() {
        let mut take = |len: usize| rest.split_off(..len).expect("a complete case");
        let len = take(1)[0];
        let name = String::from_utf8(take(len.into()).to_vec()).unwrap();
        let parts: Vec<&str> = name.split('|').collect();
        let operand = |kind| match kind {
            "float16" => OperandType::F16,
            "bfloat16" => OperandType::Bf16,
            "tf32" => OperandType::Tf32,
            "float8_e4m3fn" => OperandType::E4m3,
            "float8_e5m2" => OperandType::E5m2,
            _ => panic!("{kind}"),
        };
        let (first, second) = parts[0].split_once(',').unwrap_or((parts[0], parts[0]));
        let operands = (operand(first), operand(second));
        let k: usize = parts[1].parse().unwrap();
        let (m, n) = (usize::from(take(1)[0]), usize::from(take(1)[0]));
        let a = words(take(m * k * operands.0.bytes()), operands.0.bytes());
        let b = words(take(n * k * operands.1.bytes()), operands.1.bytes());
        let [c, d] = [(); 2].map(|()| words(take(m * n * 4), 4));
        cases.push(Golden { name, operands, k, matrices: [a, b, c, d] });
    }
    cases
}

#[test]
fn golden_vectors_of_hopper_gpus_have_equal_bits() {
    let mut values = 0;
    for Golden { name, operands, k, matrices: [a, b, c, d] } in golden() {
        let c: Vec<f32> = c.into_iter().map(f32::from_bits).collect();
        for (implementation, step) in implementations() {
            assert_eq!(multiply(step, operands, k, &a, &b, &c), d, "{name} {implementation}");
        }
        values += d.len();
    }
    assert_eq!(values, 358 * 144);
}

/// Pseudorandom numbers: xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(limit)) >> 32) as u32
    }

    /// Bits of a floating-point number with an exponent field between `low` and `high`.
    fn float(&mut self, exponent_bits: u32, mantissa_bits: u32, low: u32, high: u32) -> u32 {
        let high = high.min((1 << exponent_bits) - 1);
        let field = low.min(high) + self.below(high - low.min(high) + 1);
        let mantissa = match self.below(8) {
            0 => 0,
            1 => (1 << mantissa_bits) - 1,
            _ => self.below(1 << mantissa_bits),
        };
        (self.below(2) << exponent_bits | field) << mantissa_bits | mantissa
    }
}

/// Returns exponent bits, mantissa bits and unused bits.
fn format(operand: OperandType) -> (u32, u32, u32) {
    match operand {
        OperandType::F16 => (5, 10, 0),
        OperandType::Bf16 => (8, 7, 0),
        OperandType::Tf32 => (8, 10, 13),
        OperandType::E4m3 => (4, 3, 0),
        OperandType::E5m2 => (5, 2, 0),
    }
}

/// Returns the bits of an operand. Its exponents are in a random range. Some operands contain zeros,
/// infinities or NaNs.
fn matrix(random: &mut Random, operand: OperandType, rows: usize) -> Vec<u32> {
    let (exponent_bits, mantissa_bits, unused) = format(operand);
    let end = (1 << exponent_bits) - 1;
    let special = random.below(8) == 0;
    let low = random.below(end);
    let range = [0, 1, 3, 8, 30, 255][random.below(6) as usize];
    let zeros = [0, 0, 1, 30, 100][random.below(5) as usize];
    let largest = random.below(6) == 0;
    let element = |_| {
        let mut bits = random.float(exponent_bits, mantissa_bits, low, (low + range).min(end - 1));
        if largest {
            bits = low << mantissa_bits | ((1 << mantissa_bits) - 1);
        }
        if random.below(100) < zeros {
            bits &= 1 << (exponent_bits + mantissa_bits);
        }
        if special && random.below(100) == 0 {
            bits |= end << mantissa_bits;
        }
        bits << unused | random.below(1 << unused)
    };
    (0..rows * operand.step()).map(element).collect()
}

#[test]
fn random_inputs_give_the_bits_of_the_reference() {
    let mut random = Random(1);
    let (mut fast, mut all) = (0, 0);
    for _ in 0..1000 {
        for operands in pairs() {
            let k = operands.0.step();
            let (m, n) = (1 + random.below(4) as usize, 1 + random.below(40) as usize);
            let mut a = matrix(&mut random, operands.0, m);
            let mut b = matrix(&mut random, operands.1, n);
            if random.below(4) == 0 {
                // The values in the second half of K cancel those in the first half, except for a few
                // elements.
                let sign = 1_u32 << (operands.1.bytes() * 8 - 1);
                for at in (0..k / 2).filter(|_| random.below(20) != 0) {
                    (0..m).for_each(|row| a[row * k + k / 2 + at] = a[row * k + at]);
                    (0..n).for_each(|row| b[row * k + k / 2 + at] = b[row * k + at] ^ sign);
                }
            }
            let sort = random.below(8);
            let field = random.below(255);
            let mut c: Vec<f32> = (0..m * n)
                .map(|_| match sort {
                    0..3 => 0.0,
                    3 => -0.0,
                    4 => f32::from_bits(random.float(8, 23, 0, 255)),
                    5 => f32::from_bits(random.float(8, 23, 0, 2)),
                    _ => f32::from_bits(random.float(8, 23, field, (field + 3).min(254))),
                })
                .collect();
            let expected = |c: &[f32]| -> Vec<u32> {
                let element = |at: usize| {
                    let (row, col) = (at / n, at % n);
                    reference(operands, &a[row * k..][..k], &b[col * k..][..k], c[at])
                };
                (0..m * n).map(element).collect()
            };
            if sort == 7 {
                // Choose an accumulator of nearly the same magnitude as the sum of the products. In half of
                // the cases, its sign is opposite to the sign of this sum, and the two cancel.
                for (c, sum) in c.iter_mut().zip(expected(&vec![0.0; m * n])) {
                    *c = f32::from_bits(sum ^ random.below(2) << 31 ^ random.below(3));
                }
            }
            let expected = expected(&c);
            for (name, step) in implementations() {
                let result = multiply(step, operands, k, &a, &b, &c);
                assert_eq!(result, expected, "{operands:?} {m} {n} {name} a {a:x?} b {b:x?} c {c:?}");
            }
            fast += usize::from(is_fast(operands, &a, &b, &c[..n]));
            all += 1;
        }
    }
    assert!(fast > all / 4 && fast < all * 3 / 4, "{fast} of {all} inputs take the fast path");
}

#[test]
fn both_decoders_give_the_same_elements() {
    let mut random = Random(2);
    for (operand, rows) in OPERANDS.into_iter().zip([1, 16, 8, 13, 24]) {
        let (step, bytes) = (operand.step(), operand.bytes());
        let bits = matrix(&mut random, operand, rows);
        let row = |at: usize| {
            let words = bits[at * step..][..step].iter();
            let row: Vec<u8> = words.flat_map(|word| word.to_le_bytes().into_iter().take(bytes)).collect();
            row.try_into().expect("32 bytes")
        };
        // The first call sets all bits. The second call must replace them.
        let (mut a, mut b) = ([DecodedA::new(), DecodedA::new()], [DecodedB::new(), DecodedB::new()]);
        b[0].decode(OperandType::F16, 40, |_| [0xff; 32]);
        a[0].decode(OperandType::F16, 40, |_| [0xff; 32]);
        a[0].decode(operand, rows, row);
        b[0].decode(operand, rows, row);
        a[1].decode_elements(operand, rows, |row, k| bits[row * step + k]);
        b[1].decode_elements(operand, rows, |row, k| bits[row * step + k]);
        assert!(a[0].bits == a[1].bits && a[0].exponents == a[1].exponents);
        assert!(b[0].bits == b[1].bits && b[0].exponents == b[1].exponents);
        for (row, k) in (0..rows).flat_map(|row| (0..step).map(move |k| (row, k))) {
            assert_eq!(a[0].bits[a[0].index(row, k)], bits[row * step + k]);
            assert_eq!(b[0].bits[b[0].index(row, k)], bits[row * step + k]);
        }
    }
}

#[test]
fn every_number_of_16_and_8_bits_is_decoded() {
    for operand in OPERANDS {
        let unused = format(operand).2;
        let count = 1_usize << (8 * operand.bytes().min(2) + if unused > 0 { 3 } else { 0 });
        let mut a = DecodedA::new();
        let step = operand.step();
        a.decode_elements(operand, count / step, |row, k| ((row * step + k) as u32) << unused);
        for bits in 0..count {
            let value = f64::from(a.values[bits]);
            match element(operand, (bits as u32) << unused) {
                Number::Finite { negative, significand, last, exponent } => {
                    let magnitude = significand as f64 * 2_f64.powi(last);
                    let expected = if negative { -magnitude } else { magnitude };
                    assert_eq!(value.to_bits(), expected.to_bits(), "{operand:?} {bits:x}");
                    let expected = if significand == 0 { ZERO } else { exponent as i16 };
                    assert_eq!(a.exponents[bits], expected, "{operand:?} {bits:x}");
                }
                Number::Infinity { negative } => {
                    assert_eq!(value, if negative { f64::NEG_INFINITY } else { f64::INFINITY });
                    assert_eq!(a.exponents[bits], SPECIAL);
                }
                Number::Nan => assert!(value.is_nan() && a.exponents[bits] == SPECIAL),
            }
        }
    }
}

#[test]
fn integers_wrap_around() {
    let mut random = Random(3);
    let mut matrix =
        |rows| -> Vec<[u8; 32]> { (0..rows).map(|_| [(); 32].map(|()| random.below(256) as u8)).collect() };
    let (mut a, mut b) = (matrix(16), matrix(24));
    (a[0], b[0]) = ([0x80; 32], [0x80; 32]);
    for (a_signed, b_signed) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut d = vec![i32::MAX; 16 * 24];
        multiply_int8(&a, a_signed, &b, b_signed, &mut d);
        let value = |x: u8, signed| if signed { i64::from(x as i8) } else { i64::from(x) };
        for (m, n) in (0..16).flat_map(|m| (0..24).map(move |n| (m, n))) {
            let sum: i64 = (0..32).map(|k| value(a[m][k], a_signed) * value(b[n][k], b_signed)).sum();
            assert_eq!(d[m * 24 + n], (i64::from(i32::MAX) + sum) as i32);
        }
    }
}
