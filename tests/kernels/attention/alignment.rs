//! Tests `attention` on tensors that do not start at a multiple of 16 bytes, or that have a gap after each
//! head. Some kernels copy 16 bytes at a time and need aligned addresses. For unaligned tensors, the op must
//! run other kernels.
use half::{bf16, f16};
use oxiwarp::{Device, Dtype};

use crate::support::attention_case::{AttentionCase, check};
use crate::support::heads::Layout;
use crate::support::test::Test;

pub const TESTS: &[Test] =
    &[("attention_alignment::each_tensor", each_tensor), ("attention_alignment::masks", masks)];

/// Gives one tensor at a time (queries, keys, values or result) an offset in its buffer, or a gap after each
/// head. With an offset or gap of 8 elements (16 bytes), the tensor is still aligned.
///
/// On Hopper GPUs, the op runs a Hopper kernel for 70 queries if all tensors are aligned. For 6 queries, it
/// always runs a kernel that all GPUs support.
fn each_tensor(device: &Device) {
    for (queries, dim) in [(6, 64), (70, 64), (70, 72), (70, 128)] {
        for tensor in 0..4 {
            for (offset, gap) in [(1, 0), (2, 0), (3, 0), (4, 0), (7, 0), (8, 0), (0, 1), (0, 4), (0, 8)] {
                let layout = Layout::At { offset, gap };
                check::<bf16>(
                    device,
                    &AttentionCase::of([2, queries, 40, 2, 1, dim]).laid_out_alone(tensor, layout),
                );
            }
        }
    }
}

/// Tests unaligned masks. A mask row has 37 elements (one per key), so most mask rows start at unaligned
/// addresses.
fn masks(device: &Device) {
    for dtype in [Some(Dtype::Bool), Some(Dtype::F32), None] {
        for full in [[true, false, false, true], [true, true, false, true], [true; 4]] {
            for queries in [6, 70] {
                let case = AttentionCase::of([2, queries, 37, 2, 2, 64]).masked(dtype, full);
                check::<f16>(device, &case);
                check::<bf16>(device, &case.laid_out(Layout::At { offset: 4, gap: 0 }));
            }
        }
    }
}
