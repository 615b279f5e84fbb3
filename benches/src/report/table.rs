//! Formats records and changes as tables for a terminal.
use comfy_table::{Cell, CellAlignment, Table, presets};

use super::{Change, Record};

/// Returns the table of an op's cases.
pub fn of_records(records: &[Record]) -> Table {
    let row = |r: &Record| {
        vec![
            r.op.clone(),
            format!("{} x {}", r.rows, r.columns),
            format!("{:.1}", r.bytes as f64 / 1e6),
            format!("{:.2}", r.us),
            format!("{:.0}", r.gb_per_s),
            format!("{:.1}", 100.0 * r.of_copy),
        ]
    };
    table(&["op", "rows x columns", "MB", "µs", "GB/s", "% of a copy"], records.iter().map(row))
}

/// Returns the table of changes, in which slower cases are marked.
pub fn of_changes(changes: &[Change], tolerance: f64) -> Table {
    let row = |c: &Change| {
        let slower = c.ratio() > 1.0 + tolerance / 100.0;
        vec![
            c.op.clone(),
            format!("{} x {}", c.rows, c.columns),
            format!("{:.2}", c.us[0]),
            format!("{:.2}", c.us[1]),
            format!("{:.3}", c.ratio()),
            if slower { "slower".into() } else { String::new() },
        ]
    };
    table(&["op", "rows x columns", "old µs", "new µs", "new / old", ""], changes.iter().map(row))
}

/// Returns a table with one line per op: the number of compared tensor sizes, and the geometric mean of new
/// time / old time.
pub fn of_means(means: &[(&str, f64, usize)]) -> Table {
    let row =
        |(op, mean, count): &(&str, f64, usize)| vec![(*op).into(), format!("{count}"), format!("{mean:.3}")];
    table(&["op", "cases", "geometric mean of new / old"], means.iter().map(row))
}

/// Makes a table whose first column is left-aligned. All other columns are right-aligned.
fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    let aligned = |cells: Vec<String>| {
        let align = |(at, text): (usize, String)| {
            let side = if at == 0 { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(side)
        };
        cells.into_iter().enumerate().map(align).collect::<Vec<_>>()
    };
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(aligned(header.iter().map(|&name| name.into()).collect()));
    table.add_rows(rows.map(aligned));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::record::tests::record;

    #[test]
    fn a_table_has_a_line_for_each_case() {
        let text = of_records(&[record("rope", 64, 1.5), record("rope", 128, 2.5)]).to_string();
        assert!(text.contains("8 x 64") && text.contains("2.50") && text.contains("% of a copy"), "{text}");
    }

    #[test]
    fn slower_cases_are_marked() {
        let change = |us| Change { op: "rope".into(), rows: 1, columns: 64, us };
        let text = of_changes(&[change([1.0, 1.0]), change([1.0, 1.1])], 3.0).to_string();
        assert_eq!(text.matches("slower").count(), 1, "{text}");
        assert!(text.contains("1.100"), "{text}");
    }
}
