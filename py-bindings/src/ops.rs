//! The table of torch operators. Each line of the table contains one or more operators, their host function,
//! and the outputs that a call allocates. A host function is a function of the `oxiwarp` crate that
//! implements operators.
//!
//! The Python code defines the arguments of an operator in a schema (`oxiwarp/ops/*.py`). [`register`]
//! returns an error if the parameter types of the host function do not match the schema.

use crate::boundary::Failure;
use crate::call::Call;
use crate::checks::expect_classes;
use crate::outputs::Output::{self, *};
use crate::row::Row;
use crate::schema::Schema;
use crate::shim::{Boxed, shim};
use oxiwarp::arguments::Argument;
use oxiwarp::{Attention, Device, Heads as HeadsPair, HeadsOrder, QkNormRope, Result as HostResult, Rope};
use oxiwarp::{
    Stream, attention_decode_workspace_of, gated_residual_backward_workspace, norm_backward_workspace,
};
use std::ffi::CStr;
use std::sync::OnceLock;

/// Makes one `Row` per operator from lines `first, more... => host function, [outputs]`. All operators of a
/// line have the name `first` in error messages. A line with a single operator may end with `then check`. The
/// kernel then calls the function `check` after the host function, to test the elements of tensors.
macro_rules! operators {
    ($($op:ident $(, $more:ident)* => $host:expr, $outputs:expr $(, then $check:expr)?;)*) => {
        static ROWS: &[&Row] = &[$(
            operators!(@row $op, $op, $host, $outputs $(, $check)?),
            $(operators!(@row $more, $op, $host, $outputs),)*
        )*];
    };
    (@row $name:ident, $op:ident, $host:expr, $outputs:expr $(, $check:expr)?) => {{
        static ROW: Row = Row {
            name: c_name(concat!(stringify!($name), "\0")),
            op: stringify!($op),
            outputs: &$outputs,
            host: |call| {
                call.host($host)?;
                $($check(call)?;)?
                Ok(())
            },
            take: |fit| crate::handler::Handler::take($host, fit),
            kernel,
            registered: OnceLock::new(),
        };
        unsafe extern "C-unwind" fn kernel(stack: *mut u64, _inputs: u64, _outputs: u64) {
            // SAFETY: `call` requires an argument stack of the operator to which `ROW` belongs. torch calls
            // this function only for this operator, and passes its argument stack.
            unsafe { ROW.call(stack) }
        }
        &ROW
    }};
}

operators! {
    activation, activation_out => oxiwarp::activation, [Like];
    activation_backward => oxiwarp::activation_backward, [Like];
    ada_norm => oxiwarp::ada_norm, [Like];
    ada_norm_pair => oxiwarp::ada_norm_pair, [Like, Like];
    add_rms_norm, add_rms_norm_out => oxiwarp::add_rms_norm, [Like, Like];
    attention, attention_out => oxiwarp::attention_decode, [Heads("q"), LogSumExp("with_lse"), DECODE];
    attention_backward => oxiwarp::attention_backward, [Heads("q"), Heads("k"), Heads("v"), Scratch("lse")];
    cross_entropy => oxiwarp::cross_entropy, [PerRow, PerRow], then expect_classes;
    cross_entropy_backward => oxiwarp::cross_entropy_backward, [Like];
    gated_activation, gated_activation_out => oxiwarp::gated_activation, [HalfColumns];
    gated_activation_backward => oxiwarp::gated_activation_backward, [DoubleColumns];
    gated_residual => oxiwarp::gated_residual, [Like];
    gated_residual_ada_norm => oxiwarp::gated_residual_ada_norm, [Like, Like];
    gated_residual_backward => oxiwarp::gated_residual_backward, [LikeOf("y"), Gradient("dgate"), GATE_SUMS];
    layer_norm => oxiwarp::layer_norm, [Like];
    layer_norm_backward => oxiwarp::layer_norm_backward, [Like, Gradient("dweight"), Gradient("dbias"), SUMS];
    linear, linear_out => oxiwarp::linear, [RowsOf("weight")];
    linear_activation, linear_activation_out => oxiwarp::linear_activation, [RowsOf("weight")];
    linear_fp8, linear_fp8_out => oxiwarp::linear_fp8, [Fp8Product("f16")];
    linear_gated_activation, linear_gated_activation_out => oxiwarp::linear_gated_activation, [HalfRowsOf("weight")];
    linear_gated_residual, linear_gated_residual_out => oxiwarp::linear_gated_residual, [RowsOf("weight")];
    modulate => oxiwarp::modulate, [Like];
    norm_gated_residual => oxiwarp::norm_gated_residual, [Like];
    qk_norm_rope, qk_norm_rope_one, qk_norm_rope_out => qk_norm_rope, [LikeOf("q"), LikeOf("k")];
    quantize_fp8, quantize_fp8_out => oxiwarp::quantize_fp8, [Fp8("e5m2"), Fp8Scales];
    residual_tanh_gated_rms_norm => oxiwarp::residual_tanh_gated_rms_norm, [Like];
    residual_tanh_gated_rms_norm_modulated => oxiwarp::residual_tanh_gated_rms_norm_modulated, [Like, Like];
    rms_norm, rms_norm_out => oxiwarp::rms_norm, [Like];
    rms_norm_affine, rms_norm_affine_out => oxiwarp::rms_norm_affine, [Like];
    rms_norm_affine_backward => oxiwarp::rms_norm_affine_backward, [Like, Gradient("dweight"), Gradient("dbias"), SUMS];
    rms_norm_backward => oxiwarp::rms_norm_backward, [Like, Gradient("dweight"), Gradient("dbias"), SUMS];
    rms_norm_gated => oxiwarp::rms_norm_gated, [Like];
    rope, rope_pair, rope_out => rope, [LikeOf("q"), LikeOf("k")];
    softmax => oxiwarp::softmax, [Like];
    softmax_backward => oxiwarp::softmax_backward, [Like];
}

/// The workspace that attention with few queries needs. `plain` is true if `q`, `k` and `v` are the only
/// tensors of the call: there is no mask, and the sequences are not packed.
const DECODE: Output = Workspace(|call: &Call| -> Result<Option<i64>, Failure> {
    let [Some(q), Some(k)] = [call.tensor(0), call.tensor(1)] else { return Ok(None) };
    let (plain, params) = (call.tensors().count() == 3, Attention::take(&mut call.source())?);
    Ok(attention_decode_workspace_of([q.sizes()?, k.sizes()?], plain, &params))
});

/// The workspace for the gradients of a norm's weight and bias. In a line of the table of operators, the
/// workspace must come after these gradients, because its size depends on how many of the gradients the
/// caller requests.
const SUMS: Output = Workspace(|call: &Call| -> Result<Option<i64>, Failure> {
    let mut wanted = call.outputs()[1..].iter().filter(|output| output.is_written);
    let Some(first) = wanted.next().and_then(|output| output.tensor.as_ref()) else { return Ok(None) };
    let (device, _) = call.location.device_and_stream()?;
    let x = call.reference()?;
    let (x, count) = (x.view_as(x.dtype()?)?, 1 + wanted.count());
    Ok(Some(norm_backward_workspace(&device, &x, first.sizes()?, count) as i64))
});

/// The workspace for the gradient of a gate. In a line of the table of operators, the workspace must come
/// after this gradient, because the workspace is needed only if the caller requests the gradient.
const GATE_SUMS: Output = Workspace(|call: &Call| -> Result<Option<i64>, Failure> {
    let wanted = call.outputs()[1..].iter().any(|output| output.is_written);
    let (Some(y), Some(gate), true) = (call.named("y"), call.named("gate"), wanted) else { return Ok(None) };
    let (device, _) = call.location.device_and_stream()?;
    let y = y.view_as(y.dtype()?)?;
    let numbers = gated_residual_backward_workspace(&device, &y, gate.sizes()?);
    Ok((numbers > 0).then_some(numbers as i64))
});

/// Calls [`oxiwarp::qk_norm_rope`] with the arguments in the order of the schema.
fn qk_norm_rope(
    device: &Device,
    [q, k]: [Option<HeadsPair>; 2],
    (params, rope): (QkNormRope, Option<Rope>),
    stream: Stream,
) -> HostResult<()> {
    oxiwarp::qk_norm_rope(device, q, k, rope, params, stream)
}

/// Calls [`oxiwarp::rope`] with the arguments in the order of the schema.
fn rope(
    device: &Device,
    [q, k]: [Option<HeadsPair>; 2],
    rope: Rope,
    order: HeadsOrder,
    head_dim: Option<i64>,
    stream: Stream,
) -> HostResult<()> {
    oxiwarp::rope(device, q, k, rope, order, head_dim, stream)
}

const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with its only nul"),
    }
}

/// The reason why operators could not be registered.
#[derive(Debug)]
pub enum Wrong {
    /// An operator has no kernel that fits its schema.
    Operator(String),
    /// torch rejected the kernels.
    Torch(String),
}

/// Registers a CPU kernel and a CUDA kernel for each of `operators` in a torch namespace. An operator is
/// passed as a pair: its schema, and the role of each of its tensors (such as "weight").
pub fn register(namespace: &CStr, operators: &[(String, Vec<String>)]) -> Result<(), Wrong> {
    let kernels = operators.iter().map(|(schema, roles)| accept(schema, roles));
    let kernels: Vec<_> = kernels.collect::<Result<_, _>>().map_err(Wrong::Operator)?;
    shim().register(namespace, c"CPU", &kernels).map_err(Wrong::Torch)?;
    shim().register(namespace, c"CUDA", &kernels).map_err(Wrong::Torch)
}

/// Returns the name and the kernel of an operator. Fails if the table of operators has no row for this
/// operator, or if the schema does not match the row.
fn accept(schema: &str, roles: &[String]) -> Result<(&'static CStr, Boxed), String> {
    let schema = Schema::parse(schema, roles)?;
    let (name, row) = (&schema.name, ROWS.iter().find(|row| row.name.to_bytes() == schema.name.as_bytes()));
    let row = row.ok_or_else(|| format!("{name}: the table in py-bindings/src/ops.rs has no row for it"))?;
    let name = name.clone();
    row.register(schema).map_err(|problem| format!("{name}: {problem}"))?;
    Ok((row.name, row.kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(schema: &str, roles: &[&str]) -> Result<(), String> {
        accept(schema, &roles.iter().map(|role| role.to_string()).collect::<Vec<_>>()).map(|_| ())
    }

    #[test]
    fn schemas_fit() {
        for (schema, roles) in [
            ("softmax(Tensor x, bool log) -> Tensor", &["ROWS"] as &[&str]),
            (
                "rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset, bool b) -> Tensor",
                &["ROWS", "VECTOR"],
            ),
            (
                "rms_norm_out(Tensor x, Tensor? weight, float eps, float weight_offset, bool b, Tensor(a!) out) -> ()",
                &["ROWS", "VECTOR", "OUTPUT"],
            ),
        ] {
            assert_eq!(accepted(schema, roles), Ok(()), "{schema}");
        }
    }

    #[test]
    fn schemas_do_not_fit() {
        for (schema, roles, expected) in [
            (
                "no_op(Tensor x) -> Tensor",
                &["ROWS"] as &[&str],
                "no_op: the table in py-bindings/src/ops.rs has no row for it",
            ),
            (
                "softmax(Tensor x) -> Tensor",
                &["ROWS"],
                "softmax: the host function takes another bool, which the schema does not have",
            ),
            (
                "softmax(Tensor x, bool log, float eps) -> Tensor",
                &["ROWS"],
                "softmax: the host function does not take the last 1 float",
            ),
            (
                "softmax(Tensor x, Tensor? weight, bool log) -> Tensor",
                &["ROWS", "VECTOR"],
                "softmax: the host function does not take weight",
            ),
            (
                "softmax(Tensor? x, bool log) -> Tensor",
                &["ROWS"],
                "softmax: expected a tensor that is not optional as x or as the first argument",
            ),
            (
                "softmax(Tensor x, bool log) -> (Tensor, Tensor)",
                &["ROWS"],
                "softmax: its schema has 2 results, and its row 1",
            ),
            (
                "softmax(Tensor x, bool log, Tensor(a!) y, Tensor(b!) z) -> ()",
                &["ROWS", "OUTPUT", "OUTPUT"],
                "softmax: the host function writes 1 outputs, expected 2",
            ),
            (
                "softmax_backward(Tensor y, Tensor? dy, bool log) -> Tensor",
                &["ROWS", "ROWS"],
                "softmax_backward: dy is optional, and the host function needs it",
            ),
            (
                "softmax_backward(Tensor y, bool log) -> Tensor",
                &["ROWS"],
                "softmax_backward: the host function takes another tensor, which the schema does not have",
            ),
            (
                "rms_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? dsum, float a, float b) -> (Tensor, Tensor)",
                &["ROWS", "ROWS", "VECTOR", "ROWS"],
                "rms_norm_backward: its schema has 2 results, and its row 1",
            ),
        ] {
            assert_eq!(accepted(schema, roles), Err(expected.into()), "{schema}");
        }
    }
}
