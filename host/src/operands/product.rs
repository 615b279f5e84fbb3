//! The operands of a matrix product, `y = epilogue(x wᵀ + bias)`.
use crate::operands::matrix::Matrix;
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::Operand;
use crate::{Device, Dtype, Error, Result, View};

/// Rows of all operands must have a multiple of this number of bytes.
const ROW_BYTES: i64 = 16;
/// The number of columns of `y`, which has 16-bit elements, must be a multiple of this number.
const MULTIPLE: i64 = ROW_BYTES / 2;

/// The tensors of a call.
pub(crate) struct ProductViews<'v, 'a> {
    pub x: &'v View<'a>,
    pub weight: &'v View<'a>,
    pub bias: Option<&'v View<'a>>,
    pub y: &'v View<'a>,
}

/// The checked operands of a matrix product.
pub(crate) struct Product {
    pub op: &'static str,
    pub x: Matrix,
    pub weight: Matrix,
    pub y: Matrix,
    pub bias: *const u8,
    /// If the epilogue combines two halves of the columns of `x wᵀ`: the first row of `weight` for each half.
    /// Otherwise, both numbers are 0.
    pub starts: [u32; 2],
    /// Whether kernels can read two adjacent elements of the epilogue's operands (such as a residual) with
    /// one access. If false, only the general kernel, which reads single elements, supports the call.
    pub reads_pairs: bool,
    /// Whether `x` and `weight` have 8-bit floats, for which there are only kernels for Hopper.
    pub is_fp8: bool,
}

impl ProductViews<'_, '_> {
    /// Checks the operands of a matrix product, which must be f16 or bf16. If `halves` is true, the epilogue
    /// combines two halves of `x wᵀ`, so `y` has half as many columns as `weight` has rows.
    pub fn check(&self, op: &'static str, device: &Device, halves: bool) -> Result<Product> {
        self.check_dtypes(op, device, ("x", self.x), self.x.dtype())?;
        self.check_operands(op, halves)
    }

    /// Checks the operands of a matrix product of 8-bit floats. `y` and the bias must be f16 or bf16. In the
    /// result, `x` and `weight` are matrices of pairs of elements.
    pub fn check_fp8(&self, op: &'static str, device: &Device) -> Result<Product> {
        self.check_dtypes(op, device, ("out", self.y), Dtype::E4m3)?;
        let product = self.check_operands(op, false)?;
        Ok(Product { x: product.x.pairs(), weight: product.weight.pairs(), is_fp8: true, ..product })
    }

    /// Checks devices and dtypes. `x` and `weight` must have the dtype `input`, and the other operands the
    /// dtype of `result`, which must be f16 or bf16.
    fn check_dtypes(
        &self,
        op: &'static str,
        device: &Device,
        (arg, result): (&'static str, &View),
        input: Dtype,
    ) -> Result<()> {
        let Self { x, weight, bias, y } = *self;
        let dtype = result.dtype();
        if !matches!(dtype, Dtype::F16 | Dtype::Bf16) {
            return Err(Error::Dtype { op, arg, got: dtype, expected: "f16 or bf16".into() });
        }
        let operands = [
            ("x", Some(x), input),
            ("weight", Some(weight), input),
            ("bias", bias, dtype),
            ("out", Some(y), dtype),
        ];
        for (arg, view, dtype) in operands {
            if let Some(view) = view {
                view.expect_on(op, arg, device)?;
                view.expect_dtype(op, arg, dtype)?;
            }
        }
        Ok(())
    }

    /// Checks shapes, strides and overlaps.
    fn check_operands(&self, op: &'static str, halves: bool) -> Result<Product> {
        let Self { x, weight, bias, y } = *self;
        let rows = self.expect_shapes(op, if halves { 2 } else { 1 })?;
        if let Some(bias) = bias {
            bias.expect_shape(op, "bias", &[rows])?;
            if bias.strides()[0] != 1 && rows > 1 {
                return Err(bias.bad_strides(op, "bias", "it must be contiguous"));
            }
        }
        let product = Product {
            op,
            x: Matrix::of(op, "x", x)?,
            weight: Matrix::of(op, "weight", weight)?,
            y: Matrix::of(op, "out", y)?,
            bias: bias.map_or(std::ptr::null(), |bias| bias.ptr().cast()),
            starts: [0, 0],
            reads_pairs: true,
            is_fp8: false,
        };
        self.expect_disjoint(
            op,
            &[Some(("x", x)), Some(("weight", weight)), bias.map(|bias| ("bias", bias))],
        )?;
        Ok(product)
    }

    /// Checks the shapes of `x`, `weight` and `y`, and returns the number of rows of `weight`. This number
    /// must be `parts` times the number of columns of `y`.
    fn expect_shapes(&self, op: &'static str, parts: i64) -> Result<i64> {
        let Self { x, weight, y, .. } = *self;
        let depth = x.shape().last().copied().unwrap_or(0);
        let wrong =
            |arg, view: &View, expected| Err(Error::Shape { op, arg, got: view.shape().to_vec(), expected });
        let multiple = ROW_BYTES / x.dtype().size() as i64;
        if depth == 0 || depth % multiple != 0 {
            return wrong("x", x, format!("[..., K] with K a positive multiple of {multiple}"));
        }
        let &[rows, _] = weight.shape() else {
            return wrong("weight", weight, format!("[N, {depth}]"));
        };
        weight.expect_shape(op, "weight", &[rows, depth])?;
        let multiple = parts * MULTIPLE;
        if rows % multiple != 0 {
            return wrong("weight", weight, format!("[N, {depth}] with N a multiple of {multiple}"));
        }
        let mut shape = x.shape().to_vec();
        shape.splice(x.shape().len() - 1.., [rows / parts]);
        y.expect_shape(op, "out", &shape)?;
        Ok(rows)
    }

    /// Returns an error if `y` overlaps one of `others`, which are further operands of the epilogue, such as
    /// a residual.
    pub fn expect_disjoint(&self, op: &'static str, others: &[Option<Operand>]) -> Result<()> {
        expect_disjoint(op, ("out", self.y), others)
    }
}

impl Product {
    /// Returns whether the result has no elements.
    pub fn is_empty(&self) -> bool {
        self.y.rows == 0 || self.y.columns == 0
    }

    /// Returns whether the epilogue combines two halves.
    pub fn has_halves(&self) -> bool {
        self.y.columns != self.weight.rows
    }
}
