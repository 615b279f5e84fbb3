//! The shape of a launch: grid size, block size and bytes of dynamic shared memory.

/// Maximum shared memory of a block in bytes, as on GPUs of compute capability 9.0.
pub const MAX_SHARED_BYTES: u32 = 227 * 1024;

/// The shape of a launch on the CPU executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Number of blocks, `[x, y, z]`.
    pub grid: [u32; 3],
    /// Number of threads per block, `[x, y, z]`.
    pub block: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
}

impl Launch {
    /// Returns the number of threads per block. The type is `u128`, because the product of the three `u32`
    /// block dimensions has up to 96 bits.
    pub(super) fn threads(&self) -> u128 {
        self.block.iter().map(|&n| u128::from(n)).product()
    }

    /// Checks the limits of a CUDA driver. If the driver would reject this launch shape, returns an error
    /// message with the reason.
    pub(super) fn check(&self) -> Result<(), String> {
        let [_, y, z] = self.grid;
        if self.grid.contains(&0) {
            return Err(format!("grid is {:?}, expected at least one block in each dimension", self.grid));
        }
        if self.grid[0] > i32::MAX as u32 || y > 65_535 || z > 65_535 {
            return Err(format!("grid is {:?}, expected at most [2147483647, 65535, 65535]", self.grid));
        }
        if self.block.contains(&0) {
            return Err(format!("block is {:?}, expected at least one thread in each dimension", self.block));
        }
        if self.threads() > 1_024 {
            return Err(format!(
                "block is {:?}, {} threads, expected at most 1024",
                self.block,
                self.threads()
            ));
        }
        if self.block[2] > 64 {
            return Err(format!("block is {:?}, expected at most 64 in z", self.block));
        }
        if self.shared_bytes > MAX_SHARED_BYTES {
            return Err(format!(
                "{} bytes of shared memory, expected at most {MAX_SHARED_BYTES}",
                self.shared_bytes
            ));
        }
        Ok(())
    }
}
