//! Tests the function `softplus` on tensors of burn's CPU backend.
use burn::tensor::{DType, Device, Tensor, TensorData};
use softplus_burn::softplus;

/// Returns the numbers from -20 to 19 as a matrix of 5 rows and 8 columns.
fn matrix(dtype: DType) -> Tensor<2> {
    let x: Vec<f32> = (-20..20).map(|x| x as f32).collect();
    Tensor::<2>::from_data(TensorData::new(x, [5, 8]), (&Device::flex(), DType::F32)).cast(dtype)
}

fn values(tensor: Tensor<2>) -> Vec<f64> {
    tensor.cast(DType::F64).into_data().try_to_vec::<f64>().unwrap()
}

fn check(x: Tensor<2>, max: f64) {
    let y = softplus(x.clone()).unwrap();
    assert_eq!((y.dtype(), y.dims()), (x.dtype(), x.dims()));
    for (x, y) in values(x).into_iter().zip(values(y)) {
        let right = x.exp().ln_1p();
        // 2^-25 is half of the smallest positive f16.
        let allowed = (max * right).max(2.0_f64.powi(-25));
        assert!((y - right).abs() <= allowed, "x = {x}: {y}, expected {right}");
    }
}

#[test]
fn results_are_those_of_the_formula() {
    check(matrix(DType::F32), 1e-6);
    check(matrix(DType::F16), 1.0 / 2048.0);
    check(matrix(DType::BF16), 1.0 / 256.0);
}

#[test]
fn a_tensor_with_strides_is_copied() {
    check(matrix(DType::F32).transpose(), 1e-6);
}

#[test]
fn other_dtypes_are_errors() {
    let error = softplus(matrix(DType::F64)).unwrap_err().to_string();
    assert_eq!(error, "softplus: x is F64, expected f32, f16 or bf16");
}
