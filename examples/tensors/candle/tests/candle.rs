//! Tests the softplus operator on candle tensors in CPU memory.
use candle_core::{DType, Device, Tensor};
use softplus_candle::SoftplusOp;

#[test]
fn results_are_those_of_the_formula() {
    let x = Tensor::arange(-20.0_f32, 20.0, &Device::Cpu).unwrap().reshape((5, 8)).unwrap();
    for (dtype, max) in [(DType::F32, 1e-6), (DType::F16, 1.0 / 2048.0), (DType::BF16, 1.0 / 256.0)] {
        let y = x.to_dtype(dtype).unwrap().apply_op1_no_bwd(&SoftplusOp).unwrap();
        assert_eq!((y.dtype(), y.dims()), (dtype, x.dims()));
        let values = |tensor: &Tensor| {
            tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap()
        };
        for (x, y) in values(&x).into_iter().zip(values(&y)) {
            let right = x.exp().ln_1p();
            // 2^-25 is half of the smallest positive f16.
            let allowed = (max * right).max(2.0_f64.powi(-25));
            assert!((y - right).abs() <= allowed, "{dtype:?}, x = {x}: {y}, expected {right}");
        }
    }
}

#[test]
fn a_part_of_a_tensor_starts_at_its_offset() {
    let x = Tensor::arange(0.0_f32, 6.0, &Device::Cpu).unwrap().reshape((3, 2)).unwrap();
    let part = x.narrow(0, 1, 2).unwrap();
    let y = part.apply_op1_no_bwd(&SoftplusOp).unwrap().to_vec2::<f32>().unwrap();
    let right = |x: f64| x.exp().ln_1p() as f32;
    for (y, x) in y.concat().into_iter().zip([2.0, 3.0, 4.0, 5.0]) {
        assert!((y - right(x)).abs() <= 1e-6, "{y}, expected {}", right(x));
    }
}

#[test]
fn other_tensors_are_errors() {
    let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    let says = |x: Tensor| x.apply_op1_no_bwd(&SoftplusOp).unwrap_err().to_string();
    let transposed = says(x.t().unwrap());
    assert!(
        transposed.contains("softplus: x has strides [1, 3], expected a contiguous tensor"),
        "{transposed}"
    );
    let integers = says(x.to_dtype(DType::U32).unwrap());
    assert!(integers.contains("softplus: x has a dtype other than f32, f16 and bf16"), "{integers}");
}
