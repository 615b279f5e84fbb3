//! The table of all benchmarked ops. Each entry contains the numbers of columns with which the op is
//! measured.
use super::attention::{self, KEYS, LOGARITHMS, QUERY, TOKENS};
use super::linear::{self, OF_HALF, OF_TOKENS, WEIGHT};
use super::{Choices, Op, Singles, Width, norms, rows};

const ROW: Width = |cols| cols;
const TWO_ROWS: Width = |cols| 2 * cols;
const HALF_ROW: Width = |cols| cols / 2;
const ONE: Width = |_| 1;
const OF_HEAD: Width = |_| attention::HEAD as usize;
/// Bytes per row of the inputs of cross-entropy that are not logits: the target class. `TARGET_AND_LOSS` also
/// has the bytes of the row's log-sum-exp and of the incoming gradient of its loss.
const TARGET: Width = |_| size_of::<i64>();
const TARGET_AND_LOSS: Width = |_| size_of::<i64>() + 2 * size_of::<f32>();

/// Row widths of models, and widths between them.
const WIDTHS: &[usize] = &[128, 640, 1_280, 1_536, 2_048, 3_072, 4_096, 5_120, 8_192];
const LONG: &[usize] = &[512, 1_024, 2_048, 3_072, 4_096, 5_120, 8_192, 16_384, 32_768];
const VOCABULARIES: &[usize] = &[1_024, 4_096, 8_192, 16_384, 32_768, 65_536, 128_256, 151_936, 262_144];
const MODULATED: &[usize] = &[1_536, 2_048, 3_072, 5_120];
const INNER: &[usize] = &[2_560, 12_288];
const MANY_HEADS: &[usize] = &[1_536, 2_048, 3_072, 5_120];
const TOKEN_COUNTS: &[usize] = &[1_024, 4_608, 16_384];
const FEWER_TOKENS: &[usize] = &[1_024, 4_608];
const CONTEXTS: &[usize] = &[2_048, 8_192, 32_768];

const NONE: Singles = Singles::OfRows(0);
const IN_REGISTERS: &[(u32, u32)] = &[(2, 256), (4, 512), (8, 1_024)];
const TWO_IN_REGISTERS: &[(u32, u32)] = &[(2, 256), (4, 1_024)];

/// Makes the table entry of an op without parameter vectors. Rows of the op are independent. Checks may
/// therefore compute only a few of the rows on the CPU executor, which is slow.
const fn op(name: &'static str, reads: &'static [Width], writes: &'static [Width], choices: Choices) -> Op {
    Op {
        name,
        reads,
        writes,
        vectors: &[],
        others: |_| 0,
        singles: NONE,
        choices,
        columns: WIDTHS,
        max_rows: 1 << 18,
        light: true,
        call: rows::rms_norm,
    }
}

/// All ops.
pub const OPS: &[Op] = &[
    Op {
        columns: LONG,
        vectors: &[ROW],
        call: rows::rms_norm,
        ..op(
            "rms_norm",
            &[ROW],
            &[ROW],
            Choices::Rungs { in_registers: IN_REGISTERS, clusters: &[(8, 1_024)] },
        )
    },
    Op {
        columns: LONG,
        vectors: &[ROW],
        call: rows::add_rms_norm,
        ..op(
            "add_rms_norm",
            &[ROW; 2],
            &[ROW; 2],
            Choices::Rungs { in_registers: TWO_IN_REGISTERS, clusters: &[] },
        )
    },
    Op {
        vectors: &[ROW],
        call: rows::rms_norm_gated,
        ..op(
            "rms_norm_gated",
            &[ROW; 2],
            &[ROW],
            Choices::Rungs { in_registers: TWO_IN_REGISTERS, clusters: &[] },
        )
    },
    Op {
        columns: LONG,
        singles: Singles::OfRows(1),
        call: rows::quantize_fp8,
        ..op(
            "quantize_fp8",
            &[ROW],
            &[HALF_ROW],
            Choices::Rungs { in_registers: IN_REGISTERS, clusters: &[] },
        )
    },
    Op {
        columns: LONG,
        singles: Singles::OfBlocks,
        call: rows::quantize_fp8_per_block,
        ..op("quantize_fp8-per_block", &[ROW], &[HALF_ROW], Choices::Nothing)
    },
    Op {
        columns: VOCABULARIES,
        call: rows::softmax,
        ..op(
            "softmax",
            &[ROW],
            &[ROW],
            Choices::Rungs { in_registers: IN_REGISTERS, clusters: &[(8, 1_024), (7, 384)] },
        )
    },
    Op {
        columns: VOCABULARIES,
        call: rows::softmax_backward,
        ..op(
            "softmax_backward",
            &[ROW; 2],
            &[ROW],
            Choices::Rungs { in_registers: TWO_IN_REGISTERS, clusters: &[] },
        )
    },
    Op {
        columns: VOCABULARIES,
        others: TARGET,
        singles: Singles::OfRows(2),
        call: rows::cross_entropy,
        ..op("cross_entropy", &[ROW], &[], Choices::Passes)
    },
    Op {
        columns: VOCABULARIES,
        others: TARGET_AND_LOSS,
        call: rows::cross_entropy_backward,
        ..op("cross_entropy_backward", &[ROW], &[ROW], Choices::Nothing)
    },
    Op {
        columns: VOCABULARIES,
        vectors: &[ROW],
        others: TARGET,
        singles: Singles::OfRows(2),
        call: rows::cross_entropy_weight,
        ..op("cross_entropy-weight", &[ROW], &[], Choices::Passes)
    },
    Op {
        columns: VOCABULARIES,
        vectors: &[ROW],
        others: TARGET_AND_LOSS,
        call: rows::cross_entropy_backward_weight,
        ..op("cross_entropy_backward-weight", &[ROW], &[ROW], Choices::Nothing)
    },
    Op { vectors: &[ROW; 2], call: norms::layer_norm, ..op("layer_norm", &[ROW], &[ROW], Choices::Vec4s) },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 2],
        call: norms::ada_norm_layer,
        ..op("ada_norm-layernorm", &[ROW], &[ROW], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 2],
        call: norms::ada_norm_rms,
        ..op("ada_norm-rmsnorm", &[ROW], &[ROW], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 2],
        call: norms::ada_norm_fused_rms,
        ..op("ada_norm-torch_rmsnorm", &[ROW], &[ROW], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[TWO_ROWS; 2],
        others: TARGET,
        call: norms::ada_norm_index,
        ..op("ada_norm-index", &[ROW], &[ROW], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 4],
        call: norms::ada_norm_pair,
        ..op("ada_norm_pair", &[ROW], &[ROW; 2], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 3],
        call: norms::gated_residual_ada_norm_layer,
        ..op("gated_residual_ada_norm-layernorm", &[ROW; 2], &[ROW; 2], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 3],
        call: norms::gated_residual_ada_norm_rms,
        ..op("gated_residual_ada_norm-rmsnorm", &[ROW; 2], &[ROW; 2], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 3],
        call: norms::gated_residual_ada_norm_fused_rms,
        ..op("gated_residual_ada_norm-torch_rmsnorm", &[ROW; 2], &[ROW; 2], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 2],
        call: norms::gated_residual_ada_norm_per_row,
        ..op("gated_residual_ada_norm-per_row", &[ROW, ROW, ONE], &[ROW; 2], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 3],
        call: norms::norm_gated_residual_layer,
        ..op("norm_gated_residual-layernorm", &[ROW; 2], &[ROW], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 2],
        call: norms::norm_gated_residual_rms,
        ..op("norm_gated_residual-rmsnorm", &[ROW; 2], &[ROW], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW],
        call: norms::tanh_gated,
        ..op("residual_tanh_gated_rms_norm", &[ROW; 2], &[ROW], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 2],
        call: norms::tanh_gated_modulated,
        ..op("residual_tanh_gated_rms_norm_modulated", &[ROW; 2], &[ROW; 2], Choices::Vec4s)
    },
    Op {
        columns: MANY_HEADS,
        call: rows::rope,
        ..op("rope", &[ROW, ROW, OF_HEAD, OF_HEAD], &[ROW; 2], Choices::Heads)
    },
    // Not tuned: `tune` computes a few rows by themselves, but positions choose among all rows of the tables.
    Op {
        columns: MANY_HEADS,
        others: TARGET,
        call: rows::rope_positions,
        ..op("rope-positions", &[ROW, ROW, OF_HEAD, OF_HEAD], &[ROW; 2], Choices::Nothing)
    },
    Op {
        columns: MANY_HEADS,
        vectors: &[OF_HEAD],
        call: rows::qk_norm_rope,
        ..op("qk_norm_rope", &[ROW, ROW, OF_HEAD, OF_HEAD], &[ROW; 2], Choices::Heads)
    },
    Op {
        columns: MANY_HEADS,
        vectors: &[OF_HEAD],
        others: TARGET,
        call: rows::qk_norm_rope_positions,
        ..op("qk_norm_rope-positions", &[ROW, ROW, OF_HEAD, OF_HEAD], &[ROW; 2], Choices::Nothing)
    },
    Op {
        columns: MANY_HEADS,
        vectors: &[ROW],
        call: rows::qk_norm_rope_across,
        ..op("qk_norm_rope-across-heads", &[ROW, ROW, OF_HEAD, OF_HEAD], &[ROW; 2], Choices::Heads)
    },
    Op { columns: INNER, call: rows::activation, ..op("activation", &[ROW], &[ROW], Choices::Threads(128)) },
    Op {
        columns: INNER,
        call: rows::activation_backward,
        ..op("activation_backward", &[ROW; 2], &[ROW], Choices::Threads(128))
    },
    Op {
        columns: INNER,
        call: rows::gated_activation,
        ..op("gated_activation", &[ROW; 2], &[ROW], Choices::Threads(128))
    },
    Op {
        columns: INNER,
        call: rows::gated_activation_backward,
        ..op("gated_activation_backward", &[ROW; 3], &[TWO_ROWS], Choices::Threads(128))
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW],
        call: rows::gated_residual,
        ..op("gated_residual", &[ROW; 2], &[ROW], Choices::Threads(256))
    },
    Op {
        columns: MODULATED,
        call: rows::gated_residual_per_row,
        ..op("gated_residual-per_row", &[ROW, ROW, ONE], &[ROW], Choices::Threads(256))
    },
    Op {
        columns: MODULATED,
        vectors: &[TWO_ROWS],
        others: TARGET,
        call: norms::gated_residual_index,
        ..op("gated_residual-index", &[ROW; 2], &[ROW], Choices::Vec4s)
    },
    Op {
        columns: MODULATED,
        singles: Singles::OfColumns(1),
        vectors: &[ROW],
        call: norms::gated_residual_backward,
        ..op("gated_residual_backward", &[ROW; 2], &[ROW], Choices::Nothing)
    },
    Op {
        columns: MODULATED,
        call: norms::gated_residual_backward_per_token,
        ..op("gated_residual_backward-per_token", &[ROW; 3], &[ROW; 2], Choices::Nothing)
    },
    Op {
        columns: MODULATED,
        call: norms::gated_residual_backward_per_row,
        ..op("gated_residual_backward-per_row", &[ROW, ROW, ONE], &[ROW, ONE], Choices::Nothing)
    },
    Op {
        columns: MODULATED,
        vectors: &[ROW; 2],
        call: rows::modulate,
        ..op("modulate", &[ROW], &[ROW], Choices::Threads(256))
    },
    Op {
        columns: MODULATED,
        vectors: &[TWO_ROWS; 2],
        others: TARGET,
        call: norms::modulate_index,
        ..op("modulate-index", &[ROW], &[ROW], Choices::Vec4s)
    },
    Op {
        singles: Singles::OfColumns(1),
        vectors: &[ROW],
        call: norms::rms_norm_backward,
        ..op("rms_norm_backward", &[ROW; 2], &[ROW], Choices::Gradient)
    },
    Op {
        singles: Singles::OfColumns(2),
        vectors: &[ROW],
        call: norms::layer_norm_backward,
        ..op("layer_norm_backward", &[ROW; 2], &[ROW], Choices::Gradient)
    },
    Op {
        columns: TOKEN_COUNTS,
        max_rows: 1,
        light: false,
        call: attention::attention,
        ..op("attention", &[TOKENS; 3], &[TOKENS], Choices::Nothing)
    },
    Op {
        columns: FEWER_TOKENS,
        max_rows: 1,
        light: false,
        others: LOGARITHMS,
        call: attention::attention_backward,
        ..op("attention_backward", &[TOKENS; 5], &[TOKENS; 3], Choices::Nothing)
    },
    Op {
        columns: CONTEXTS,
        light: false,
        call: attention::attention_decode,
        ..op("attention_decode", &[QUERY, KEYS, KEYS], &[QUERY], Choices::Decode)
    },
    Op {
        columns: TOKEN_COUNTS,
        max_rows: 1,
        light: false,
        call: linear::linear,
        ..op("linear", &[OF_TOKENS, WEIGHT], &[OF_TOKENS], Choices::Nothing)
    },
    Op {
        columns: TOKEN_COUNTS,
        max_rows: 1,
        light: false,
        call: linear::linear_activation,
        ..op("linear_activation", &[OF_TOKENS, WEIGHT], &[OF_TOKENS], Choices::Nothing)
    },
    Op {
        columns: TOKEN_COUNTS,
        max_rows: 1,
        light: false,
        call: linear::linear_gated_activation,
        ..op("linear_gated_activation", &[OF_TOKENS, WEIGHT], &[OF_HALF], Choices::Nothing)
    },
    Op {
        columns: TOKEN_COUNTS,
        max_rows: 1,
        light: false,
        call: linear::linear_gated_residual,
        ..op("linear_gated_residual", &[OF_TOKENS, WEIGHT, OF_TOKENS], &[OF_TOKENS], Choices::Nothing)
    },
];
