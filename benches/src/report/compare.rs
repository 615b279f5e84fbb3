//! Compares two runs of `bench`: divides the new time of each case (op with a tensor size) by its old time.
use std::collections::HashMap;

use super::Record;

/// A case that both runs measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The op, with its variant.
    pub op: String,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Microseconds per call in the old run and in the new run.
    pub us: [f64; 2],
}

impl Change {
    /// Returns the new time divided by the old time. The ratio is above 1 if the new run is slower.
    pub fn ratio(&self) -> f64 {
        self.us[1] / self.us[0]
    }
}

/// The comparison of two runs.
#[derive(Debug)]
pub struct Comparison {
    /// The cases (ops with tensor sizes) that both runs have measured. They have the order of the new run.
    pub changes: Vec<Change>,
    /// Number of cases that only the new run has.
    pub only_new: usize,
    /// The names of the GPUs of the old run and the new run. `None` if the runs used the same GPU model.
    pub gpus: Option<[String; 2]>,
}

impl Comparison {
    /// Compares the run `new` with the run `old`. A case is an op with a tensor size. Cases that only `old`
    /// has are ignored, because the new run may have measured only a few ops.
    ///
    /// # Errors
    /// Returns an error if the runs have no case in common.
    pub fn of(old: &[Record], new: &[Record]) -> Result<Self, String> {
        let by_key: HashMap<_, _> = old.iter().map(|record| (record.key(), record)).collect();
        let pairs = new.iter().filter_map(|record| Some((*by_key.get(&record.key())?, record)));
        let change = |(old, new): (&Record, &Record)| Change {
            op: new.op.clone(),
            rows: new.rows,
            columns: new.columns,
            us: [old.us, new.us],
        };
        let mut gpus = pairs.clone().map(|(old, new)| [&old.gpu, &new.gpu]);
        let gpus = gpus.find(|[old, new]| old != new).map(|gpus| gpus.map(Clone::clone));
        let changes: Vec<_> = pairs.map(change).collect();
        if changes.is_empty() {
            return Err("the old run and this one have no case in common".into());
        }
        Ok(Self { only_new: new.len() - changes.len(), changes, gpus })
    }

    /// Returns one entry per op, in the order of the new run. An entry has the op's name, the geometric mean
    /// of new time / old time, and the number of compared cases (tensor sizes).
    pub fn means(&self) -> Vec<(&str, f64, usize)> {
        let mut sums: Vec<(&str, f64, usize)> = vec![];
        for change in &self.changes {
            let logarithm = change.ratio().ln();
            match sums.iter_mut().find(|(op, ..)| *op == change.op) {
                Some((_, sum, count)) => (*sum, *count) = (*sum + logarithm, *count + 1),
                None => sums.push((&change.op, logarithm, 1)),
            }
        }
        sums.into_iter().map(|(op, sum, count)| (op, (sum / count as f64).exp(), count)).collect()
    }

    /// Returns the cases that are slower by more than `tolerance` percent.
    pub fn slower(&self, tolerance: f64) -> Vec<&Change> {
        self.changes.iter().filter(|change| change.ratio() > 1.0 + tolerance / 100.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::record::tests::record;

    #[test]
    fn cases_are_compared_by_op_and_size() {
        let old = [record("rope", 64, 10.0), record("softmax", 64, 5.0), record("rope", 128, 10.0)];
        let new = [record("rope", 128, 40.0), record("rope", 64, 10.0), record("rope", 256, 1.0)];
        let comparison = Comparison::of(&old, &new).expect("two cases of both");
        let ratios: Vec<_> = comparison.changes.iter().map(|c| (c.columns, c.ratio())).collect();
        assert_eq!(ratios, [(128, 4.0), (64, 1.0)]);
        assert_eq!(comparison.only_new, 1);
        let [(op, mean, count)] = comparison.means()[..] else { panic!("one op") };
        assert!((op, count) == ("rope", 2) && (mean - 2.0).abs() < 1e-12, "{op} {mean} {count}");
    }

    #[test]
    fn a_case_is_slower_only_beyond_the_tolerance() {
        let old = [record("rope", 64, 100.0), record("rope", 128, 100.0), record("rope", 256, 100.0)];
        let new = [record("rope", 64, 102.9), record("rope", 128, 103.1), record("rope", 256, 50.0)];
        let comparison = Comparison::of(&old, &new).expect("the same cases");
        let slower = |tolerance| comparison.slower(tolerance).iter().map(|c| c.columns).collect::<Vec<_>>();
        assert_eq!([slower(3.0), slower(2.0), slower(4.0)], [vec![128], vec![64, 128], vec![]]);
    }

    #[test]
    fn another_gpu_is_named_and_no_common_case_is_an_error() {
        let (old, mut new) = ([record("rope", 64, 1.0)], [record("rope", 64, 1.0)]);
        assert_eq!(Comparison::of(&old, &new).expect("the same case").gpus, None);
        new[0].gpu = "another".into();
        let gpus = Comparison::of(&old, &new).expect("the same case").gpus.expect("they differ");
        assert_eq!(gpus[1], "another");
        assert!(Comparison::of(&old, &[record("rope", 32, 1.0)]).is_err());
    }
}
