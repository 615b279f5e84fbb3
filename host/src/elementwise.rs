//! Element-wise ops: which rows their operands are cut into, and how the grid shares them out.
use std::cmp::Reverse;
use std::ffi::c_void;

use cuda_std::row::Rows;
use kernels_gpu::elementwise::{Extent, HELD, MAX_THREADS};

use crate::launch::Launch;
use crate::rows::{Operand, RowLayout};
use crate::view::View;
use crate::{Device, Error, Result, Stream};

/// Blocks that keep a large GPU busy for several rounds (an H200 holds 660 of the largest). What is beyond gives each
/// block more to do, up to `MOST_PARTS`: working out where its rows are costs a block as much as half a pack.
const ENOUGH_BLOCKS: u64 = 4_096;
const MOST_PARTS: u64 = 4;

/// An element-wise launch.
pub(crate) struct Elementwise<const N: usize> {
    pub layout: RowLayout<N>,
    pub extent: Extent,
    grid: [u64; 2],
    block: [u32; 2],
}

impl<const N: usize> Elementwise<N> {
    /// Checks that all operands have the first one's dtype and shape; says how to launch. Operands without gaps are one
    /// run of elements, unless `keep_rows`; others are rows as every row op takes them.
    ///
    /// `aligned`: whatever else the kernel reads (a bias) can be read 16 bytes at a time.
    pub fn of(
        op: &'static str,
        device: &Device,
        operands: [Operand; N],
        keep_rows: bool,
        aligned: bool,
    ) -> Result<Self> {
        let (_, first) = operands[0];
        for (arg, view) in operands {
            view.expect_on(op, arg, device)?;
            view.expect_dtype(op, arg, first.dtype())?;
            view.expect_shape(op, arg, first.shape())?;
        }
        if !keep_rows && operands.iter().all(|(_, view)| is_dense(view)) {
            return Ok(Self::of_run(operands));
        }
        let mut layout = RowLayout::of(op, device, operands)?;
        layout.vector &= aligned;
        Ok(Self::of_rows(layout))
    }

    fn of_run(operands: [Operand; N]) -> Self {
        let (_, first) = operands[0];
        let elements = first.shape().iter().product::<i64>() as u64;
        let len = 16 / first.dtype().size() as u64;
        let aligned = |(_, view): &Operand| (view.ptr() as usize).is_multiple_of(16);
        let vector = elements.is_multiple_of(len) && operands.iter().all(aligned);
        let held = if vector { u64::from(HELD) } else { 1 };
        let part = u64::from(MAX_THREADS) * held * len;
        let parts = (elements.div_ceil(part) / ENOUGH_BLOCKS).clamp(1, MOST_PARTS);
        let (cols, rows) = (part * parts, elements.div_ceil(part * parts));
        let operands = operands.map(|(_, view)| Rows {
            base: view.ptr().cast_mut().cast(),
            inner_stride: cols as i64,
            outer_stride: 0,
        });
        let (dtype, quads) = (first.dtype(), false);
        let layout = RowLayout { rows, inner: 0, cols: cols as u32, dtype, vector, quads, operands };
        let last = elements - rows.saturating_sub(1) * cols;
        let tiles = (held * parts) as u32;
        let extent = Extent { rows: rows as u32, inner: 0, cols: cols as u32, last: last as u32, tiles };
        Self { layout, extent, grid: [rows, 1], block: [MAX_THREADS, 1] }
    }

    /// For rows that were checked already.
    pub fn of_rows(layout: RowLayout<N>) -> Self {
        let held = if layout.vector { u64::from(HELD) } else { 1 };
        let (packs, threads) = (layout.packs(), u64::from(MAX_THREADS));
        // Parts of a row: each a few packs of a team. As few as fit, or more where there are blocks to spare.
        let fewest = packs.div_ceil(threads * held);
        let at_once = (layout.rows * fewest / ENOUGH_BLOCKS).clamp(1, MOST_PARTS);
        let most = fewest.max(at_once.min(packs.div_ceil(32 * held)));
        let team = |parts: u64| match packs.div_ceil(parts * held) {
            few @ 0..=32 => few.next_power_of_two(),
            many => many.next_multiple_of(32),
        };
        let least_idle = |parts: &u64| (team(*parts) * parts, Reverse(*parts));
        let parts = (fewest..=most).min_by_key(least_idle).unwrap_or(fewest);
        let (team, teams) = (team(parts), (threads / 2 / team(parts)).max(1));
        let grid = [layout.rows.div_ceil(teams), parts.div_ceil(at_once).min(65_535)];
        let tiles = packs.div_ceil(team) as u32;
        let RowLayout { rows, inner, cols, .. } = layout;
        let extent = Extent { rows: rows as u32, inner, cols, last: cols, tiles };
        Self { layout, extent, grid, block: [team as u32, teams as u32] }
    }

    /// Launches `held`, or `any_layout` where the rows are no vectors; with no elements, nothing.
    ///
    /// # Safety
    /// As [`Device::launch`].
    pub unsafe fn launch<const ARGS: usize>(
        &self,
        device: &Device,
        [any_layout, held]: [&'static str; 2],
        stream: Stream,
        args: [*const c_void; ARGS],
    ) -> Result<()> {
        let ([x, y], [team, teams]) = (self.grid, self.block);
        let rows_fit = self.layout.rows <= u64::from(u32::MAX - 1_024);
        let Some(blocks) = i32::try_from(x).ok().filter(|_| rows_fit) else {
            let expected = "fewer than 2^32 - 1024, in at most 2^31 - 1 blocks";
            return Err(Error::Value { op: any_layout, arg: "rows", got: self.layout.rows as f64, expected });
        };
        if blocks == 0 {
            return Ok(());
        }
        let (grid, block) = ([blocks as u32, y as u32, 1], [team, teams, 1]);
        let shape = Launch { grid, block, shared_bytes: 0, carveout: None };
        let kernel = if self.layout.vector { held } else { any_layout };
        // SAFETY: as the caller promises.
        unsafe { device.launch(kernel, self.layout.dtype, shape, stream, args) }
    }
}

/// Do the elements lie one after the other, in order? True where there are none.
fn is_dense(view: &View) -> bool {
    let mut next = 1;
    let in_order = view.shape().iter().zip(view.strides()).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == next;
        next *= size;
        fits
    });
    in_order || view.shape().contains(&0)
}
