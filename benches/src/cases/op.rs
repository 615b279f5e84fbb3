//! The description of a benchmarked op, and the selection of the ops and cases (tensor sizes) to measure.
use oxiwarp::{Device, Result, Stream};

use super::ops::OPS;
use super::{Case, Choices, ELEMENTS, Operands};

/// Number of elements (or bytes) per row of a tensor, as a function of the number of columns. For example:
/// `|cols| 2 * cols`.
pub type Width = fn(usize) -> usize;

/// A small number of rows: as many as FLUX.1 has text and image tokens together. For few rows, norms that
/// load four elements at a time use a different launch configuration.
const FEW_ROWS: usize = 4_608;

/// Columns per value of [`Singles::OfBlocks`].
pub(super) const BLOCK: usize = 128;

/// Number and shape of an op's f32 results.
#[derive(Clone, Copy, Debug)]
pub enum Singles {
    /// This many results with one value per row.
    OfRows(usize),
    /// One result with one value per row and 128 columns.
    OfBlocks,
    /// Number of f32 results with one value per column. Each value is a sum over all rows.
    OfColumns(usize),
}

/// Op names that results files used up to 2026-11-25. Each entry is a pair: the old name and the current
/// name.
const OLD_NAMES: &[(&str, &str)] = &[
    ("ada_norm LayerNorm", "ada_norm-layernorm"),
    ("ada_norm RMSNorm", "ada_norm-rmsnorm"),
    ("gated_residual_ada_norm LayerNorm", "gated_residual_ada_norm-layernorm"),
    ("gated_residual_ada_norm RMSNorm", "gated_residual_ada_norm-rmsnorm"),
    ("qk_norm_rope across heads", "qk_norm_rope-across-heads"),
];

/// Returns the current name of an op. `name` may be an old name from a results file.
pub fn current_name(name: &str) -> &str {
    OLD_NAMES.iter().find(|(old, _)| *old == name).map_or(name, |(_, current)| current)
}

/// An op on bf16 tensors.
pub struct Op {
    /// The op's name. It may end with a hyphen and the measured variant, e.g. `ada_norm-rmsnorm`.
    pub name: &'static str,
    /// Elements per row of each input.
    pub reads: &'static [Width],
    /// Elements per row of each result.
    pub writes: &'static [Width],
    /// Number of elements of each parameter vector, for example a weight or a scale. All rows use the same
    /// vectors.
    pub vectors: &'static [Width],
    /// Bytes per row of all inputs that are not bf16 (target classes, log-sum-exp values), as a function of
    /// the number of columns.
    pub others: Width,
    /// The op's f32 results.
    pub singles: Singles,
    /// The kind of launch configurations of the op.
    pub choices: Choices,
    /// The measured numbers of columns.
    pub columns: &'static [usize],
    /// Maximum number of measured rows.
    pub max_rows: usize,
    /// Whether the CPU executor can compute a few rows, with the measured numbers of columns, in a short
    /// time.
    pub light: bool,
    /// Launches the op.
    pub call: fn(&Device, Operands, Stream) -> Result<()>,
}

impl Op {
    /// Returns the function's name, without the variant.
    pub fn function(&self) -> &'static str {
        self.name.split('-').next().unwrap_or(self.name)
    }

    /// Returns whether `name` is the op's name or its function's name.
    pub fn is_called(&self, name: &str) -> bool {
        [self.name, self.function()].contains(&name)
    }

    /// Returns the cases (tensor sizes) of this op that are measured.
    pub fn cases(&'static self) -> Vec<Case<'static>> {
        let rows = |&cols: &usize| {
            let rows = self.rows_of(cols).into_iter();
            rows.map(move |rows| Case { op: self, rows, cols })
        };
        self.columns.iter().flat_map(rows).collect()
    }

    /// Returns the numbers of rows to measure. The largest number is limited by `max_rows` and by the size of
    /// the buffers. Ops with `Choices::Vec4s` or `Choices::Heads` are also measured with `FEW_ROWS` rows.
    fn rows_of(&self, cols: usize) -> Vec<usize> {
        let widest = self.reads.iter().chain(self.writes).map(|width| width(cols)).max().unwrap_or(1);
        let max = (ELEMENTS / widest).clamp(1, self.max_rows);
        match self.choices {
            Choices::Vec4s | Choices::Heads if max > 2 * FEW_ROWS => vec![FEW_ROWS, max],
            _ => vec![max],
        }
    }
}

/// The selection of measured cases. An empty selection means all cases.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Names of ops, with or without the variant.
    pub ops: Vec<String>,
    /// Text that a case's id, `<op>/<rows>x<columns>`, must contain.
    pub filter: Option<String>,
}

impl Selection {
    /// Checks an op name that a user typed. Returns the op's current name, because the user may type an old
    /// one.
    ///
    /// # Errors
    /// Returns an error if no op has this name. The message lists all names.
    pub fn op_name(name: &str) -> std::result::Result<String, String> {
        let name = current_name(name);
        if OPS.iter().any(|op| op.is_called(name)) {
            return Ok(name.into());
        }
        let mut names: Vec<_> = OPS.iter().map(Op::function).collect();
        names.dedup();
        Err(format!("no op has this name, expected one of {}", names.join(", ")))
    }

    /// Returns the ops that have selected cases, each with these cases.
    pub fn cases(&self) -> Vec<(&'static Op, Vec<Case<'static>>)> {
        let wanted = |op: &&Op| self.ops.is_empty() || self.ops.iter().any(|name| op.is_called(name));
        let of_op = |op: &'static Op| {
            let mut cases = op.cases();
            cases.retain(|case| self.filter.as_ref().is_none_or(|part| case.id().contains(part)));
            (op, cases)
        };
        OPS.iter().filter(wanted).map(of_op).filter(|(_, cases)| !cases.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(ops: &[&str], filter: Option<&str>) -> Vec<String> {
        let ops = ops.iter().map(|&name| name.into()).collect();
        let selection = Selection { ops, filter: filter.map(Into::into) };
        selection.cases().into_iter().flat_map(|(_, cases)| cases).map(|case| case.id()).collect()
    }

    #[test]
    fn ops_and_a_part_of_the_id_select_cases() {
        let all: usize = OPS.iter().map(|op| op.cases().len()).sum();
        assert_eq!(selected(&[], None).len(), all);
        assert!(selected(&["ada_norm"], None).iter().all(|id| id.starts_with("ada_norm-")));
        assert_eq!(selected(&["ada_norm-rmsnorm"], Some("4608x3072")), ["ada_norm-rmsnorm/4608x3072"]);
        assert!(selected(&[], Some("x3072")).iter().all(|id| id.ends_with("x3072")));
        assert!(selected(&["rope"], Some("no such part")).is_empty());
    }

    #[test]
    fn an_unknown_op_is_refused_with_the_known_ones() {
        assert_eq!(Selection::op_name("qk_norm_rope").as_deref(), Ok("qk_norm_rope"));
        let error = Selection::op_name("rms").expect_err("there is none");
        assert!(error.contains("rms_norm, add_rms_norm"), "{error}");
    }

    #[test]
    fn names_need_no_quotes_and_old_names_are_understood() {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
        for op in OPS {
            assert!(op.name.chars().all(plain), "{}", op.name);
        }
        for (old, current) in OLD_NAMES {
            assert_eq!(Selection::op_name(old).as_deref(), Ok(*current));
        }
    }

    #[test]
    fn ids_are_unique() {
        let mut ids = selected(&[], None);
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
