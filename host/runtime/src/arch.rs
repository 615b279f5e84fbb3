//! The GPU architectures for which PTX can be compiled.

/// An architecture for which PTX can be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// Turing, for example the T4. Turing has no instructions for bf16 arithmetic and conversion. An SM runs
    /// at most 1024 threads.
    Sm75,
    /// Ampere (A100) and Ada.
    Sm80,
    /// Hopper (H100, H200) and, by forward compatibility, newer GPUs.
    Sm90,
    /// PTX that runs only on Hopper, because it uses the instructions `wgmma` and `setmaxnreg`. Only some ops
    /// have such PTX. For all other ops, a Hopper GPU loads the PTX for `Sm90`.
    Sm90a,
}

impl Arch {
    /// The architectures whose PTX also runs on newer GPUs, oldest first.
    pub const PORTABLE: [Self; 3] = [Self::Sm75, Self::Sm80, Self::Sm90];

    /// Returns the names of [`Arch::PORTABLE`], for error messages.
    pub(crate) fn portable_names() -> String {
        Self::PORTABLE.map(Self::name).join(", ")
    }

    /// Returns the name that PTX uses, for example `sm_90`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm75 => "sm_75",
            Self::Sm80 => "sm_80",
            Self::Sm90 => "sm_90",
            Self::Sm90a => "sm_90a",
        }
    }
    /// Returns the compute capability.
    pub const fn capability(self) -> (u32, u32) {
        match self {
            Self::Sm75 => (7, 5),
            Self::Sm80 => (8, 0),
            Self::Sm90 | Self::Sm90a => (9, 0),
        }
    }
    /// Returns whether PTX for this architecture runs on a GPU with the compute capability `capability`.
    pub fn runs_on(self, capability: (u32, u32)) -> bool {
        if self.is_native() { self.capability() == capability } else { self.capability() <= capability }
    }
    /// Returns whether PTX for this architecture runs on only one compute capability. For example, PTX for
    /// `sm_90a` does not run on newer GPUs.
    pub const fn is_native(self) -> bool {
        matches!(self, Self::Sm90a)
    }

    /// Returns the portable architecture of the same compute capability, for example `sm_90` for `sm_90a`.
    /// Portable PTX also runs on newer GPUs. If a user limits the architecture of the PTX, the result is
    /// compared with this limit. The limit `sm_90` therefore also permits PTX for `sm_90a`.
    pub(crate) fn limit(self) -> Self {
        if let Self::Sm90a = self { Self::Sm90 } else { self }
    }
}
