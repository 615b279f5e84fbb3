//! The GPU architectures that PTX can be built for.

use std::fmt;

macro_rules! archs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, ptx $isa:literal;)*) => {
        /// A GPU architecture, named as in the `.target` directive of PTX.
        ///
        /// PTX for `sm_75`, `sm_80`, … also runs on every newer GPU. PTX for a name that ends in `a`, such as
        /// `sm_90a`, runs only on this compute capability.
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

            /// Returns the PTX ISA version that the compiler writes for this architecture, times ten.
            ///
            /// An old driver rejects newer PTX. For each architecture, the function therefore returns the
            /// lowest version that has all instructions of the kernels:
            /// - 7.4 up to `sm_87`, for `ld.global.nc.L1::no_allocate` (driver R470 and newer). The other
            ///   instructions need at most 7.2.
            /// - 7.8 for `sm_89`. This version introduced `sm_89`.
            /// - 8.1 for `sm_90` (driver R530), for `st.async`. The blocks of a cluster exchange partial sums
            ///   with this instruction.
            /// - 8.0 for `sm_90a` (driver R525), for `wgmma`, `setmaxnreg` and TMA tensor copies.
            /// - 8.6 for `sm_100` and 8.7 for `sm_120`. These versions introduced the two architectures.
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
