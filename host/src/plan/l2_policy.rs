//! The L2 policy of a launch. It determines whether a kernel loads its inputs with `evict_last`. It also
//! determines which blocks demote the cache lines of their inputs, which means that they reset these lines to
//! normal eviction priority.
use cuda_std::l2::L2Policy;

use crate::Device;
use crate::launch::Rung;
use crate::operands::rows::RowLayout;

impl<const N: usize> RowLayout<N> {
    /// Returns the L2 policy for a launch that reads the rows of the operands `inputs` once.
    ///
    /// If these rows are together larger than L2, the kernel loads them with `evict_last`. The last blocks of
    /// the launch reset the cache lines of their inputs to normal eviction priority after they have written
    /// their results. Together, these last blocks read half as many bytes as L2 can store. In measurements, a
    /// quarter of L2 and all of L2 gave the same times as half of L2
    /// (docs/internals/launch-configuration.md).
    ///
    /// Launches with thread block clusters use the default L2 policy, because `evict_last` does not make
    /// these launches faster.
    pub fn l2_policy(&self, device: &Device, rung: Rung, inputs: &[usize]) -> L2Policy {
        let element = self.dtype.size();
        let read = u64::from(self.cols) * (element * inputs.len()) as u64;
        let lines = || inputs.iter().all(|&input| self.operands[input].is_lines(self.cols, element));
        // Measurements showed a benefit of `evict_last` only on Hopper. The CPU executor has no compute
        // capability. It gets the same policy as Hopper, so that tests can check the policy without a GPU.
        if device.capability().is_some_and(|(major, _)| major != 9) {
            return L2Policy::PLAIN;
        }
        let l2 = device.l2_bytes();
        if rung.cluster > 0 || self.rows.saturating_mul(read) < l2 || !lines() {
            return L2Policy::PLAIN;
        }
        let row = self.rows.saturating_sub((l2 / 2).div_ceil(read));
        let block = row / u64::from(rung.rows_per_block);
        u32::try_from(block).map_or(L2Policy::PLAIN, L2Policy::kept_until)
    }
}

#[cfg(test)]
mod tests {
    use cuda_std::l2::Policy;

    use super::*;
    use crate::launch::{cluster, rung};
    use crate::{Arch, Kernels, Launch, Stream};

    #[test]
    fn the_last_half_of_l2_is_demoted() {
        let device = Device::cpu();
        let x = device.alloc::<f32>(2 * 100 * 128 + 4).unwrap();
        // The CPU executor reports 4 KiB of L2, so the last 2 KiB of the inputs are demoted (reset to normal
        // eviction priority). A row has 512 bytes. With one input, 2 KiB are four rows. With two inputs, 2
        // KiB are two rows of each input.
        let l2_policy = |offset, rows, cols, rung, inputs: &[usize]| {
            let view = x.view_strided(offset, &[rows, cols], &[128, 1]).unwrap();
            RowLayout::of("op", &device, [("x", &view), ("y", &view)])
                .unwrap()
                .l2_policy(&device, rung, inputs)
        };
        let one = rung(32, 4, 32, 32);
        // Buffers are aligned to `cuda_std::l2::LINE`.
        assert_eq!(l2_policy(0, 100, 128, one, &[0]), L2Policy::kept_until(96));
        assert_eq!(l2_policy(0, 100, 128, one, &[0, 1]), L2Policy::kept_until(98));
        assert_eq!(
            l2_policy(0, 99, 128, rung(32, 4, 32, 128), &[0]),
            L2Policy::kept_until(23),
            "95 rows, four a block"
        );
        assert_eq!(l2_policy(0, 100, 128, cluster(32, 32), &[0]), L2Policy::PLAIN, "not in clusters");
        assert_eq!(l2_policy(0, 8, 128, one, &[0]), L2Policy::kept_until(4));
        assert_eq!(l2_policy(0, 7, 128, one, &[0]), L2Policy::PLAIN, "L2 holds them");
        assert_eq!(l2_policy(4, 100, 128, one, &[0]), L2Policy::PLAIN, "they begin within a line");
        assert_eq!(l2_policy(0, 100, 120, one, &[0]), L2Policy::PLAIN, "they end within one");
        assert_eq!(l2_policy(0, 100, 128, one, &[]), L2Policy::PLAIN);
    }

    const POLICIES: &str = "
.version 7.8
.target sm_90
.address_size 64
.visible .entry policies_f32(.param .u64 out)
{
    .reg .b64 %out, %policy;
    ld.param.u64 %out, [out];
    createpolicy.fractional.L2::evict_normal.b64 %policy, 1.0;
    st.global.b64 [%out], %policy;
    createpolicy.fractional.L2::evict_last.b64 %policy, 1.0;
    st.global.b64 [%out + 8], %policy;
    ret;
}
";
    cuda_std::entry!(@only(sm_90) policies<T: [f32]>(out: *mut i64) => ());

    /// If there is no GPU of sm_90 or newer, this test checks nothing and passes.
    #[test]
    fn a_policy_is_what_the_gpu_makes() {
        let recent = |device: &Device| device.capability() >= Some((9, 0));
        let Some(device) = Device::cuda(0).ok().filter(recent) else { return };
        let mut made = device.alloc::<i64>(2).unwrap();
        let kernels = Kernels::load(&device, &[(Arch::Sm90, POLICIES)], KERNELS).unwrap();
        let site = kernels.on(Stream::default(), Launch::of([1; 3], [1; 3]));
        // SAFETY: the kernel writes the two i64 of `made`.
        unsafe { launch::policies::<f32, _>(site, made.as_mut_ptr()) }.unwrap();
        let expected = [Policy::NORMAL, Policy::LAST].map(|policy| policy.0 as i64);
        assert_eq!(made.download().unwrap(), expected);
    }
}
