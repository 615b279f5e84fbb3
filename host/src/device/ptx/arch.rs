//! The architectures of the embedded PTX.

/// An architecture that there is PTX for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// Turing (T4): no bf16 arithmetic or conversion, 1024 threads a multiprocessor.
    Sm75,
    /// Ampere (A100) and Ada.
    Sm80,
    /// Hopper (H100, H200) and, by forward compatibility, what came after.
    Sm90,
    /// Hopper alone: `wgmma`, `setmaxnreg`. Only some ops have it, and a device loads it beside the PTX that it runs.
    Sm90a,
}

impl Arch {
    /// As the PTX files are named: `sm_90`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm75 => "sm_75",
            Self::Sm80 => "sm_80",
            Self::Sm90 => "sm_90",
            Self::Sm90a => "sm_90a",
        }
    }
    /// Its compute capability.
    pub const fn capability(self) -> (u32, u32) {
        match self {
            Self::Sm75 => (7, 5),
            Self::Sm80 => (8, 0),
            Self::Sm90 | Self::Sm90a => (9, 0),
        }
    }
    /// Does its PTX run on a GPU of this compute capability?
    pub fn runs_on(self, capability: (u32, u32)) -> bool {
        if self.is_native() { self.capability() == capability } else { self.capability() <= capability }
    }
    /// Does it run on its own compute capability alone, not on newer ones?
    pub const fn is_native(self) -> bool {
        matches!(self, Self::Sm90a)
    }
}
