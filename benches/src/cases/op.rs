//! An op of the table, and which of the table are measured.
use oxiwarp::{Device, Result, Stream};

use super::ops::OPS;
use super::{Case, Choices, ELEMENTS, Operands};

/// Elements of a tensor for a row of so many columns.
pub type Width = fn(usize) -> usize;

/// Rows of a FLUX.1 image: norms over quads are launched otherwise if rows are few.
const FEW_ROWS: usize = 4_608;

/// Results in f32, and how many.
#[derive(Clone, Copy, Debug)]
pub enum Singles {
    /// A number for each row.
    OfRows(usize),
    /// A number for each column: a sum over all rows.
    OfColumns(usize),
}

/// Names of variants in the results files of 2026-11-25 and before, and the names of today.
const OLD_NAMES: &[(&str, &str)] = &[
    ("ada_norm LayerNorm", "ada_norm-layernorm"),
    ("ada_norm RMSNorm", "ada_norm-rmsnorm"),
    ("gated_residual_ada_norm LayerNorm", "gated_residual_ada_norm-layernorm"),
    ("gated_residual_ada_norm RMSNorm", "gated_residual_ada_norm-rmsnorm"),
    ("qk_norm_rope across heads", "qk_norm_rope-across-heads"),
];

/// The name of today for the name of an op in any results file.
pub fn current_name(name: &str) -> &str {
    OLD_NAMES.iter().find(|(old, _)| *old == name).map_or(name, |(_, current)| current)
}

/// An op, for tensors of bf16.
pub struct Op {
    /// Its name, and with a hyphen after it the variant that is measured: `ada_norm-rmsnorm`.
    pub name: &'static str,
    /// Elements of each input for a row.
    pub reads: &'static [Width],
    /// Elements of each result for a row.
    pub writes: &'static [Width],
    /// Elements of each parameter that all rows share: a weight, a scale.
    pub vectors: &'static [Width],
    /// Bytes that a row has in inputs of other types: a target, the logarithm of a softmax's sum.
    pub others: Width,
    /// Results in f32.
    pub singles: Singles,
    /// What there is to choose.
    pub choices: Choices,
    /// Columns of the rows that are measured.
    pub columns: &'static [usize],
    /// The most rows that are measured.
    pub max_rows: usize,
    /// Can the CPU executor compute a few rows of the measured sizes?
    pub light: bool,
    /// Launches it.
    pub call: fn(&Device, Operands, Stream) -> Result<()>,
}

impl Op {
    /// The name of the function: without the variant.
    pub fn function(&self) -> &'static str {
        self.name.split('-').next().unwrap_or(self.name)
    }

    /// Is `name` its name, or the name of its function?
    pub fn is_called(&self, name: &str) -> bool {
        [self.name, self.function()].contains(&name)
    }

    /// The cases that are measured.
    pub fn cases(&'static self) -> Vec<Case<'static>> {
        let rows = |&cols: &usize| {
            let rows = self.rows_of(cols).into_iter();
            rows.map(move |rows| Case { op: self, rows, cols })
        };
        self.columns.iter().flat_map(rows).collect()
    }

    /// The numbers of rows that are measured: as many as the largest tensors hold, and few.
    fn rows_of(&self, cols: usize) -> Vec<usize> {
        let widest = self.reads.iter().chain(self.writes).map(|width| width(cols)).max().unwrap_or(1);
        let max = (ELEMENTS / widest).clamp(1, self.max_rows);
        match self.choices {
            Choices::Vec4s | Choices::Heads if max > 2 * FEW_ROWS => vec![FEW_ROWS, max],
            _ => vec![max],
        }
    }
}

/// Which cases are measured: all if nothing is named.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Ops, by the name of the function or with its variant.
    pub ops: Vec<String>,
    /// A part of `<op>/<rows>x<columns>`.
    pub filter: Option<String>,
}

impl Selection {
    /// Checks a name that a user gave.
    ///
    /// # Errors
    /// No op has this name; the message lists all names.
    pub fn op_name(name: &str) -> std::result::Result<String, String> {
        let name = current_name(name);
        if OPS.iter().any(|op| op.is_called(name)) {
            return Ok(name.into());
        }
        let mut names: Vec<_> = OPS.iter().map(Op::function).collect();
        names.dedup();
        Err(format!("no op has this name, expected one of {}", names.join(", ")))
    }

    /// The ops that have selected cases, with these.
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
