//! The attention op `softmax(scale q kT + mask) v`. It also supports sliding windows, softcaps, and packed
//! sequences (several sequences in one tensor).
use kernels_gpu::attention::mma::params::AttentionParams;
use kernels_gpu::attention::mma::tiling::Tiling;
use kernels_gpu::ops::attention::{launch, tiles};

use super::attention_hopper::attention_hopper;
use crate::launch::launch_override;
use crate::library::{LaunchSite, library};
use crate::operands::attention::{Attention, AttentionInputs};
use crate::operands::attention_layout::AttentionLayout;
use crate::operands::overlap::expect_disjoint;
use crate::plan::attention::{TiledRows, block_shape};
use crate::{Arch, Device, Error, Result, Stream, ViewMut};

const OP: &str = "attention";

/// A function that launches a kernel.
type AttentionLaunch = unsafe fn(LaunchSite, AttentionParams) -> Result<()>;
/// A kernel and its tile sizes.
type AttentionKernel = (AttentionLaunch, Tiling);

/// The kernels for head dimensions (columns per head) up to `dim`.
struct AttentionKernels {
    /// Largest head dimension.
    dim: u32,
    /// Kernels that do not support a mask or a softcap. For a call without mask and softcap, the first of
    /// these kernels whose tiles fit in the GPU's shared memory is launched.
    plain: &'static [AttentionKernel],
    /// The kernel that supports masks, softcaps, every scale and every alignment.
    general: AttentionKernel,
}

/// All kernels, in ascending order of the head dimension.
const KERNELS_BY_DIM: [AttentionKernels; 5] = [
    AttentionKernels {
        dim: 64,
        plain: &[(launch::attention_d64_smem, tiles::D64)],
        general: (launch::attention_d64_general_smem, tiles::G64),
    },
    AttentionKernels {
        dim: 80,
        plain: &[(launch::attention_d80_smem, tiles::D80)],
        general: (launch::attention_d80_general_smem, tiles::G80),
    },
    AttentionKernels {
        dim: 96,
        plain: &[(launch::attention_d96_smem, tiles::D96)],
        general: (launch::attention_d96_general_smem, tiles::G96),
    },
    AttentionKernels {
        dim: 128,
        plain: &[(launch::attention_d128_smem, tiles::D128)],
        general: (launch::attention_d128_general_smem, tiles::G128),
    },
    AttentionKernels {
        dim: 256,
        plain: &[
            (launch::attention_d256_smem, tiles::D256),
            (launch::attention_d256_small_smem, tiles::S256),
        ],
        general: (launch::attention_d256_general_smem, tiles::G256),
    },
];

/// Computes `out = softmax(scale * q kᵀ + mask) v`, the formula of
/// `torch.nn.functional.scaled_dot_product_attention`.
///
/// The optional output `lse` receives the log-sum-exp `ln(sum(exp(scores)))` of each query's scores, in f32
/// with the shape `[B, H, Sq]`. For packed sequences (several sequences in one tensor), the shape is `[H,
/// Sq]`.
///
/// The tensor cores multiply f16 or bf16 and accumulate in f32. Scores and softmax are computed in f32. The
/// attention probabilities are rounded to the dtype of `q` before they are multiplied by `v`. The result is
/// rounded once.
///
/// If a query sees no key, its `out` is 0 and its `lse` is minus infinity. The result of a query does not
/// depend on the values of other queries or on the batch size. The result may depend on the number of
/// queries, because on Hopper, calls with fewer than 64 queries may use other kernels. The results of
/// different kernels can differ in the last bits.
///
/// # Errors
/// Returns an error in these cases:
///
/// - An argument does not have the shape, dtype or device that [`AttentionInputs`] specifies.
/// - A head has more than 256 columns.
/// - A last dimension is not contiguous.
/// - An output overlaps another argument.
/// - The GPU is older than sm_80.
pub fn attention(
    device: &Device,
    inputs: AttentionInputs,
    out: ViewMut,
    lse: Option<ViewMut>,
    params: Attention,
    stream: Stream,
) -> Result<()> {
    let (out, lse) = (out.as_view(), lse.as_ref().map(ViewMut::as_view));
    let layout = AttentionLayout::of(OP, device, &inputs, (out, lse), &params)?;
    expect_disjoint(OP, ("out", out), &inputs.operands())?;
    if let Some(lse) = lse {
        expect_disjoint(OP, ("lse", lse), &inputs.operands())?;
        expect_disjoint(OP, ("lse", lse), &[Some(("out", out))])?;
    }
    expect_tensor_cores(OP, device)?;
    let mut skip = launch_override(device).skip;
    if attention_hopper(device, &layout, &mut skip, stream)? {
        return Ok(());
    }
    launch_portable(device, &layout, skip, stream)
}

/// Returns an error if the GPU is older than sm_80. The tensor cores of older GPUs lack the instructions that
/// the attention kernels use.
pub(crate) fn expect_tensor_cores(op: &'static str, device: &Device) -> Result<()> {
    if library(device)?.arch() != Some(Arch::Sm75) {
        return Ok(());
    }
    let why = format!(
        "{} runs the PTX for sm_75, and the attention kernels need sm_80 or newer; use torch's F.scaled_dot_product_attention",
        device.name()
    );
    Err(Error::Unsupported { op, why })
}

/// Launches an attention kernel that also runs on GPUs other than Hopper. Of the specialized kernels that
/// support the call, the function skips the first `skip` kernels, and launches the next kernel. If no kernel
/// is left, it launches the general kernel, which supports every call.
pub(crate) fn launch_portable(
    device: &Device,
    a: &AttentionLayout,
    skip: usize,
    stream: Stream,
) -> Result<()> {
    let kernels = KERNELS_BY_DIM.iter().find(|kernels| a.dim <= kernels.dim);
    let kernels = kernels.expect("heads were checked to have at most 256 columns");
    let fits =
        |(_, tiling): &&AttentionKernel| a.is_plain() && tiling.shared_bytes() <= device.max_shared_bytes();
    // The general kernel has the smallest tiles. The general kernel therefore also runs on GPUs whose shared
    // memory is too small for the specialized kernels.
    let mut able = kernels.plain.iter().filter(fits);
    let (kernel, tiling) = able.nth(skip).unwrap_or(&kernels.general);
    let Some((tiles, blocks)) = a.blocks(OP, tiling.rows(), TiledRows::Queries)? else { return Ok(()) };
    let site = LaunchSite::new(device, a.dtype, block_shape(blocks, tiling.threads()), stream)?;
    // SAFETY: the kernel accesses only the tensors that its parameters point to. The caller has checked the
    // shape, dtype, strides and device of each of these tensors.
    unsafe { kernel(site, a.params(tiles)) }
}
