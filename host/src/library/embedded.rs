//! The PTX that is embedded in this library. There is one PTX text per op and architecture. All texts are
//! compressed.
use std::sync::LazyLock;

use crate::{Arch, Ptx, Unit};

/// The type of the table that `build.rs` generates. The first field of the table lists the ops of each
/// architecture: name, first lines of the PTX text, and an index into the second field. The second field
/// contains the remaining lines of all PTX texts, compressed.
type Table = (&'static [(Arch, &'static [(&'static str, &'static str, usize)])], &'static [&'static [u8]]);

/// The PTX of each architecture, oldest first. A GPU uses the newest PTX that it can run. A Hopper GPU also
/// uses the PTX for `sm_90a`, which runs only on Hopper.
pub(super) static EMBEDDED: LazyLock<Vec<Ptx>> = LazyLock::new(|| {
    // `build.rs` writes this file.
    let (archs, codes): Table = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
    let unit = |&(op, head, code): &(_, _, usize)| Unit::packed(op, head, codes[code]);
    archs.iter().map(|&(arch, units)| Ptx { arch, units: units.iter().map(unit).collect() }).collect()
});

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::kernel_info;

    #[test]
    fn every_kernel_is_there_under_the_name_of_its_op() {
        let of = |native: bool| kernels_gpu::kernels().filter(move |kernel| kernel.only.is_some() == native);
        let names_of = |native| of(native).map(|kernel| kernel.name).collect::<BTreeSet<_>>();
        for ptx in EMBEDDED.iter() {
            let entries: Vec<_> = ptx.units.iter().flat_map(Unit::entries).collect();
            let names: BTreeSet<_> = entries.iter().copied().collect();
            assert_eq!(entries.len(), names.len(), "an entry of two ops");
            let tiled = |name: &&str| ["attention", "linear"].iter().any(|op| name.starts_with(op));
            let here = |name: &&str| ptx.arch != Arch::Sm75 || !tiled(name);
            let expected: BTreeSet<_> = names_of(ptx.arch.is_native()).into_iter().filter(here).collect();
            assert_eq!(names, expected, "{}", ptx.arch.name());
            let target = format!("\n.target {}\n", ptx.arch.name());
            for unit in &ptx.units {
                assert!(unit.as_str().contains(&target), "{} is not for {target}", unit.name);
                let ours = |n: &&str| n.strip_prefix(unit.name).is_some_and(|rest| rest.starts_with('_'));
                let other: Vec<_> = unit.entries().filter(|name| !ours(name)).collect();
                assert!(other.is_empty(), "{other:?} in the PTX of {}", unit.name);
            }
        }
        let listed: usize = kernel_info().iter().map(|kernel| kernel.entries.len()).sum();
        let all: usize = EMBEDDED.iter().flat_map(|ptx| &ptx.units).map(|unit| unit.entries().count()).sum();
        assert_eq!(listed, all, "an entry that ends with no element type");
    }
}
