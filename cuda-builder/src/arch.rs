//! The GPU architectures that PTX can be built for.

use std::fmt;

macro_rules! archs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, ptx $isa:literal;)*) => {
        /// A GPU architecture, named as in the `.target` directive of PTX.
        ///
        /// PTX for `sm_75`, `sm_80`, … also runs on every newer GPU. PTX for a name with the suffix `a` runs
        /// only on GPUs of exactly this compute capability, for example `sm_90a` on 9.0.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Arch { $($(#[$doc])* $variant,)* }

        impl Arch {
            /// Every architecture that the builder knows.
            pub const ALL: &'static [Arch] = &[$(Arch::$variant),*];

            /// Returns the name of the architecture in PTX and in file names, such as `sm_90`.
            pub const fn name(self) -> &'static str {
                match self { $(Arch::$variant => $name,)* }
            }

            /// Returns ten times the PTX ISA version of the PTX for this architecture, for example 74 for
            /// 7.4.
            ///
            /// A driver rejects PTX whose ISA version is newer than the driver supports. The function
            /// therefore returns the lowest version that has all instructions of oxiwarp's kernels for this
            /// architecture:
            /// - 7.4 for all architectures up to `sm_87`. `ld.global.nc.L1::no_allocate` needs this version,
            ///   which drivers from R470 on accept. The other instructions need at most 7.2.
            /// - 7.8 for `sm_89`. It is the first version that supports `sm_89`.
            /// - 8.1 for `sm_90` (driver R530). `st.async` needs this version. The blocks of a cluster
            ///   exchange partial sums with this instruction.
            /// - 8.0 for `sm_90a` (driver R525). `wgmma`, `setmaxnreg` and TMA tensor copies need this
            ///   version. The kernels for `sm_90a` do not use `st.async`.
            /// - 8.6 for `sm_100` and 8.7 for `sm_120`. Each version is the first that supports its
            ///   architecture.
            pub const fn ptx_isa(self) -> u32 {
                match self { $(Arch::$variant => $isa,)* }
            }
        }
    };
}

archs! {
    /// Turing (T4, RTX 20).
    Sm75 = "sm_75", ptx 74;
    /// Ampere (A100).
    Sm80 = "sm_80", ptx 74;
    /// Ampere (A10, RTX 30).
    Sm86 = "sm_86", ptx 74;
    /// Ampere (Jetson Orin).
    Sm87 = "sm_87", ptx 74;
    /// Ada (L4, L40, RTX 40).
    Sm89 = "sm_89", ptx 78;
    /// Hopper (H100, H200).
    Sm90 = "sm_90", ptx 81;
    /// Hopper with architecture-specific instructions (`wgmma`, `setmaxnreg`).
    Sm90a = "sm_90a", ptx 80;
    /// Blackwell (B100, B200).
    Sm100 = "sm_100", ptx 86;
    /// Blackwell with architecture-specific instructions (`tcgen05`).
    Sm100a = "sm_100a", ptx 86;
    /// Blackwell (RTX 50).
    Sm120 = "sm_120", ptx 87;
}

impl Arch {
    /// Returns the architecture with this name, or `None` if the name is unknown.
    pub fn from_name(name: &str) -> Option<Arch> {
        Arch::ALL.iter().copied().find(|arch| arch.name() == name)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for &arch in Arch::ALL {
            assert_eq!(Arch::from_name(arch.name()), Some(arch));
        }
        assert_eq!(Arch::from_name("sm_60"), None);
    }
}
