//! Launch plans for element-wise ops. A plan treats the operands as rows, and divides each row into parts. A
//! part is a pack (16-byte vector) or a single element. The plan assigns the parts to threads.
use crate::launch::launch_override;
use crate::library::LaunchSite;
use cuda_std::row::Rows;

use crate::Launch;
use crate::View;
use crate::operands::rows::{Operand, RowLayout};
use crate::{Device, Error, Result, Stream};
use kernels_gpu::elementwise::partition::{Divisor, Extent};

/// Number of columns per row if all operands are contiguous. In this case, a plan ignores the shape of the
/// operands, and treats their elements as rows of this length.
const RUN: u64 = 1 << 20;
/// Maximum number of parts (16-byte packs or elements) per launch and per row. A thread processes several
/// parts. To get the index of its next part, it adds the number of threads per block to its current index.
/// The maximum ensures that this sum stays below 2^31.
const MAX_SPLITS: u64 = 1 << 30;

/// An element-wise launch.
pub(crate) struct Elementwise<const N: usize> {
    pub layout: RowLayout<N>,
    /// The range of elements for a launch. Its number of parts and its first part are 0 until
    /// [`Self::launch`] sets them for each launch.
    extent: Extent,
    /// Total number of parts. A part is a 16-byte vector, or an element if the rows cannot be read in such
    /// vectors.
    parts: u64,
}

impl<const N: usize> Elementwise<N> {
    /// Checks that all operands have the dtype and shape of the first operand, and plans the launch. If all
    /// operands are contiguous and `keep_rows` is false, the plan ignores their rows and treats the elements
    /// as one sequence. Pass `keep_rows` as true if the kernel needs the rows, for example to add a bias to
    /// each row.
    ///
    /// `aligned` says whether kernels can read tensors that are not in `operands`, such as a bias, in 16-byte
    /// vectors.
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
        Self::of_rows(op, layout)
    }

    fn of_run(operands: [Operand; N]) -> Self {
        let (_, first) = operands[0];
        let elements = first.shape().iter().product::<i64>() as u64;
        let len = 16 / first.dtype().size() as u64;
        let aligned = |(_, view): &Operand| (view.ptr() as usize).is_multiple_of(16);
        let vector = elements.is_multiple_of(len) && operands.iter().all(aligned);
        let operands = operands.map(|(_, view)| Rows {
            base: view.ptr().cast_mut().cast(),
            inner_stride: RUN as i64,
            outer_stride: 0,
        });
        let (dtype, rows, cols) = (first.dtype(), elements.div_ceil(RUN), RUN as u32);
        let layout = RowLayout { rows, inner: 0, cols, dtype, vector, vec4s: false, operands };
        Self::of_parts(layout, elements)
    }

    /// Plans the launch for rows that the caller has checked. Fails with [`Error::Value`] if there are too
    /// many rows or columns.
    pub fn of_rows(op: &'static str, layout: RowLayout<N>) -> Result<Self> {
        if layout.rows > i32::MAX as u64 {
            let (got, expected) = (layout.rows as f64, "at most 2^31 - 1");
            return Err(Error::Value { op, arg: "rows", got, expected });
        }
        if !layout.vector && u64::from(layout.cols) > MAX_SPLITS {
            let (got, expected) =
                (f64::from(layout.cols), "at most 2^30 where rows are not aligned to 16 bytes");
            return Err(Error::Value { op, arg: "columns", got, expected });
        }
        let elements = layout.rows * u64::from(layout.cols);
        Ok(Self::of_parts(layout, elements))
    }

    fn of_parts(layout: RowLayout<N>, elements: u64) -> Self {
        let len = if layout.vector { 16 / layout.dtype.size() as u32 } else { 1 };
        let rows_of_group = if layout.inner == 0 { i32::MAX as u32 } else { layout.inner };
        let extent = Extent {
            parts: 0,
            first_row: 0,
            first_part: 0,
            row: Divisor::new(layout.cols / len),
            group: Divisor::new(rows_of_group),
        };
        Self { parts: elements / u64::from(len), layout, extent }
    }

    /// Calls the function `launch` with three arguments:
    ///
    /// - the kernel, which is `vector_pack`, or `any_layout` if the rows cannot be read in 16-byte vectors;
    /// - a `LaunchSite` (device, stream, launch shape and element type) with `threads` threads per block;
    /// - the extent (the range of elements that the kernel processes).
    ///
    /// For each 2^30 parts (16-byte packs or elements), the function calls `launch` once, with a different
    /// extent. If there are no elements, it does not call `launch`.
    pub fn launch<K: Copy>(
        &self,
        device: &Device,
        [any_layout, vector_pack]: [K; 2],
        threads: u32,
        stream: Stream,
        launch: impl Fn(K, LaunchSite, Extent) -> Result<()>,
    ) -> Result<()> {
        let RowLayout { vector, cols, dtype, .. } = self.layout;
        let threads = launch_override(device).threads.unwrap_or(threads);
        let len = 16 / dtype.size() as u64;
        let (kernel, of_thread, of_row) =
            if vector { (vector_pack, 1, u64::from(cols) / len) } else { (any_layout, len, u64::from(cols)) };
        for first in (0..self.parts).step_by(MAX_SPLITS as usize) {
            let parts = MAX_SPLITS.min(self.parts - first);
            let extent = Extent {
                parts: parts as u32,
                first_row: (first / of_row) as u32,
                first_part: (first % of_row) as u32,
                ..self.extent
            };
            let blocks = parts.div_ceil(u64::from(threads) * of_thread) as u32;
            let shape = Launch::of([blocks, 1, 1], [threads, 1, 1]);
            launch(kernel, LaunchSite::new(device, dtype, shape, stream)?, extent)?;
        }
        Ok(())
    }
}

/// Returns whether the tensor is contiguous. A tensor without elements counts as contiguous.
fn is_dense(view: &View) -> bool {
    let mut next = 1;
    let in_order = view.shape().iter().zip(view.strides()).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == next;
        next *= size;
        fits
    });
    in_order || view.shape().contains(&0)
}
