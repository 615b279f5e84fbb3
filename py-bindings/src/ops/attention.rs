//! `oxiwarp::attention` and the one with an output: unpack, allocate the result and the logarithms of its sums, call the host.

use crate::boundary::{Args, run};
use crate::device::Location;
use crate::tensor::Tensor;
use oxiwarp::{Attention, AttentionInputs, HeadsOrder};
use std::ffi::CStr;

const OP: &CStr = c"attention";

/// `attention(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, bool heads_first,
/// bool causal, float scale, int before, int after, float softcap, bool with_lse) -> (Tensor, Tensor)`
pub unsafe extern "C-unwind" fn attention(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: torch calls with the schema's arguments on the stack; they are read in its order.
    let mut args = unsafe { Args::new(stack, OP) };
    let tensors = Tensors::read(&mut args);
    let (params, with_lse) = (params(&mut args), args.bool());
    run(OP, move || {
        let (out, lse) = launch(&tensors, params, with_lse)?;
        // SAFETY: the schema has two results, so the stack has places for them.
        unsafe { (*stack, *stack.add(1)) = (out.into_raw(), lse.into_raw()) };
        Ok(())
    });
}

/// `attention_out(<as attention, without with_lse>, Tensor(a!) out) -> ()`
pub unsafe extern "C-unwind" fn attention_out(stack: *mut u64, _inputs: u64, _outputs: u64) {
    // SAFETY: as above.
    let mut args = unsafe { Args::new(stack, OP) };
    let tensors = Tensors::read(&mut args);
    let (params, out) = (params(&mut args), args.tensor("out"));
    run(OP, move || {
        let place = tensors.location()?;
        out.expect_beside(place, "q")?;
        attend(&tensors.q, tensors.inputs()?, params, place, (&out, None))
    });
}

/// The tensors that the operator and its gradient begin with.
pub(super) struct Tensors {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub mask: Option<Tensor>,
    pub cu_seqlens: [Option<Tensor>; 2],
}

impl Tensors {
    pub fn read(args: &mut Args) -> Self {
        Self {
            q: args.tensor("q"),
            k: args.tensor("k"),
            v: args.tensor("v"),
            mask: args.optional_tensor("mask"),
            cu_seqlens: [args.optional_tensor("cu_seqlens_q"), args.optional_tensor("cu_seqlens_k")],
        }
    }

    /// The place that all of them share.
    pub fn location(&self) -> Result<Location, String> {
        let place = self.q.location()?;
        let optional = [self.mask.as_ref(), self.cu_seqlens[0].as_ref(), self.cu_seqlens[1].as_ref()];
        for tensor in [&self.k, &self.v].into_iter().chain(optional.into_iter().flatten()) {
            tensor.expect_beside(place, "q")?;
        }
        Ok(place)
    }

    /// The host's argument.
    pub fn inputs(&self) -> Result<AttentionInputs<'_>, String> {
        let cu_seqlens = match &self.cu_seqlens {
            [Some(q), Some(k)] => Some([q.index_view()?, k.index_view()?]),
            [None, None] => None,
            [Some(q), None] => return Err(q.given_without("cu_seqlens_k")),
            [None, Some(k)] => return Err(k.given_without("cu_seqlens_q")),
        };
        let mask = self.mask.as_ref().map(Tensor::mask_view).transpose()?;
        let q = self.q.view()?;
        Ok(AttentionInputs { q, k: self.k.view_like(&q)?, v: self.v.view_like(&q)?, mask, cu_seqlens })
    }
}

/// `bool heads_first, bool causal, float scale, int before, int after, float softcap`: a negative limit is none.
pub(super) fn params(args: &mut Args) -> Attention {
    let order = if args.bool() { HeadsOrder::HeadsFirst } else { HeadsOrder::TokensFirst };
    let (causal, scale) = (args.bool(), args.float() as f32);
    let window = [args.int(), args.int()];
    let window = window.map(|keys| (keys >= 0).then(|| u32::try_from(keys).unwrap_or(u32::MAX)));
    let softcap = args.float() as f32;
    let softcap = (softcap != 0.0).then_some(softcap);
    Attention { order, scale: Some(scale), causal, window, softcap }
}

fn launch(tensors: &Tensors, params: Attention, with_lse: bool) -> Result<(Tensor, Tensor), String> {
    let place = tensors.location()?;
    let (inputs, heads_first) = (tensors.inputs()?, params.order == HeadsOrder::HeadsFirst);
    let out = tensors.q.empty_heads("out", heads_first)?;
    let sizes = tensors.q.sizes()?;
    let mut rows = sizes[..sizes.len().saturating_sub(1)].to_vec();
    if !heads_first && rows.len() > 1 {
        let last = rows.len() - 1;
        rows.swap(last - 1, last);
    }
    let lse = tensors.q.empty_f32("lse", if with_lse { &rows } else { &[0] })?;
    attend(&tensors.q, inputs, params, place, (&out, with_lse.then_some(&lse)))?;
    Ok((out, lse))
}

fn attend(
    q: &Tensor,
    inputs: AttentionInputs,
    params: Attention,
    place: Location,
    (out, lse): (&Tensor, Option<&Tensor>),
) -> Result<(), String> {
    let (device, stream) = place.device_and_stream()?;
    let (out, lse) = (out.view_mut_like(&inputs.q)?, lse.map(Tensor::view_mut).transpose()?);
    let result = match oxiwarp::attention_decode_workspace(&inputs, &params) {
        None => oxiwarp::attention(&device, inputs, out, lse, params, stream),
        Some(numbers) => {
            let workspace = q.empty_f32("workspace", &[numbers])?;
            let workspace = workspace.view_mut()?;
            oxiwarp::attention_decode(&device, inputs, out, lse, workspace, params, stream)
        }
    };
    result.map_err(|error| error.to_string())
}
