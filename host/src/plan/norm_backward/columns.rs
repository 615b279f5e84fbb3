//! Checks of the tensors that have one element per column in the backward pass of a norm. These tensors are
//! the weight, and the gradients of weight and bias. This file also checks the workspace, in which blocks
//! store partial sums of these gradients.
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::norm_backward::params::PartialSums;
use kernels_gpu::rms::weight::Weight;

use super::plan::{Dims, GROUPS, RowSplit};
use crate::arguments::arguments;
use crate::operands::rows::Operand;
use crate::{Device, Dtype, Error, Result, View, ViewMut};

arguments! {
    /// Outputs for the gradients of a norm's weight and bias. Each output is optional. Both gradients are
    /// sums over rows and have the shape of the weight.
    #[derive(Debug, Default)]
    pub struct ParameterGradients<'a> {
        /// Gradient of the weight, in the dtype of `x` or in f32.
        pub dweight: Option<ViewMut<'a>>,
        /// Gradient of the bias, in the dtype of `x` or in f32. Only LayerNorm has a bias.
        pub dbias: Option<ViewMut<'a>>,
        /// Scratch memory in f32 for partial sums. It is required if `dweight` or `dbias` is given. Its
        /// initial contents are ignored. [`norm_backward_workspace`](crate::norm_backward_workspace) returns
        /// the required number of elements.
        pub workspace: Option<ViewMut<'a>>,
    }
}

/// The checked tensors with one element per column.
pub(super) struct Columns<'v, 'a> {
    /// Number of row groups. Each group of rows has its own weight.
    pub groups: u32,
    pub weight: Weight,
    pub dweight: Option<&'v View<'a>>,
    pub dbias: Option<&'v View<'a>>,
    pub workspace: Option<&'v View<'a>>,
}

impl<'v, 'a> Columns<'v, 'a> {
    /// Checks the weight and the gradients of weight and bias. All these tensors must have the same shape:
    /// `[columns]`, or `[groups, columns]` if each group of rows has its own weight.
    pub fn of(
        op: &'static str,
        device: &Device,
        x: &View,
        weight: Option<&View>,
        gradients: &'v ParameterGradients<'a>,
    ) -> Result<Self> {
        let view = |gradient: &'v Option<ViewMut<'a>>| gradient.as_ref().map(ViewMut::as_view);
        let (dweight, dbias) = (view(&gradients.dweight), view(&gradients.dbias));
        let all = [("weight", weight), ("dweight", dweight), ("dbias", dbias)];
        let all = all.into_iter().filter_map(|(arg, view)| Some((arg, view?)));
        let (cols, rows) =
            (x.shape()[x.shape().len() - 1], x.shape()[..x.shape().len() - 1].iter().product());
        let (mut groups, mut first) = (1, None);
        for (arg, view) in all {
            view.expect_on(op, arg, device)?;
            match first {
                Some(shape) => view.expect_shape(op, arg, shape)?,
                None => groups = expect_columns(op, arg, view, cols, rows)?,
            }
            first = Some(view.shape());
            let (last, dense) = (view.strides().len() - 1, view.strides());
            if dense[last] != 1 && cols > 1 || groups > 1 && dense[0] != cols {
                return Err(view.bad_strides(op, arg, "it must be contiguous"));
            }
            if ![x.dtype(), Dtype::F32].contains(&view.dtype()) {
                let expected = x.dtype().or_f32("x");
                return Err(Error::Dtype { op, arg, got: view.dtype(), expected });
            }
        }
        let kind = match weight {
            None => OperandKind::ABSENT,
            Some(weight) if weight.dtype() == x.dtype() => OperandKind::SAME,
            Some(_) => OperandKind::F32,
        };
        let base = weight.map_or(std::ptr::null(), |weight| weight.ptr().cast());
        let workspace = view(&gradients.workspace).filter(|_| dweight.is_some() || dbias.is_some());
        Ok(Self { groups, weight: Weight { base, kind }, dweight, dbias, workspace })
    }

    /// Returns the number of requested gradients.
    pub fn wanted(&self) -> usize {
        self.outputs().count()
    }

    /// Returns the requested gradients with their names.
    pub fn outputs(&self) -> impl Iterator<Item = Operand<'v, 'a>> {
        let both = [("dweight", self.dweight), ("dbias", self.dbias)];
        both.into_iter().filter_map(|(arg, view)| Some((arg, view?)))
    }

    /// Returns whether the weight and the workspace are aligned to 16 bytes. A tensor that is absent counts
    /// as aligned.
    pub fn aligned(&self) -> bool {
        let workspace = self.workspace.map_or(0, |workspace| workspace.ptr() as usize);
        (self.weight.base as usize | workspace).is_multiple_of(16)
    }

    /// Checks the workspace, and returns the two addresses at which blocks store their partial sums. One is
    /// for the gradient of the weight, and one for the gradient of the bias.
    pub fn workspace(
        &self,
        op: &'static str,
        device: &Device,
        plan: &RowSplit,
        dims: &Dims,
    ) -> Result<PartialSums> {
        let none = std::ptr::null_mut();
        if self.wanted() == 0 {
            return Ok(PartialSums { dweight: none, dbias: none });
        }
        let arg = "workspace";
        let each = u64::from(self.groups) * u64::from(plan.splits) * u64::from(dims.cols);
        let needed = each * self.wanted() as u64;
        let expected = || format!("[{needed}] or more, as norm_backward_workspace says");
        let Some(workspace) = self.workspace else {
            return Err(Error::Shape { op, arg, got: vec![], expected: expected() });
        };
        workspace.expect_on(op, arg, device)?;
        workspace.expect_dtype(op, arg, Dtype::F32)?;
        let (shape, strides) = (workspace.shape(), workspace.strides());
        if shape.len() != 1 || (shape[0] as u64) < needed {
            return Err(Error::Shape { op, arg, got: shape.to_vec(), expected: expected() });
        }
        if strides[0] != 1 && shape[0] > 1 {
            return Err(workspace.bad_strides(op, arg, "it must be contiguous"));
        }
        let first: *mut u8 = workspace.ptr().cast_mut().cast();
        let second = first.wrapping_add(each as usize * 4);
        Ok(match (self.dweight, self.dbias) {
            (Some(_), Some(_)) => PartialSums { dweight: first, dbias: second },
            (Some(_), None) => PartialSums { dweight: first, dbias: none },
            _ => PartialSums { dweight: none, dbias: first },
        })
    }
}

/// Returns the number of row groups (groups of rows with a weight of their own). It is 1 for a weight of
/// shape `[columns]`, and `groups` for a weight of shape `[groups, columns]`. Fails if the number of rows is
/// not divisible by the number of groups.
fn expect_columns(op: &'static str, arg: &'static str, view: &View, cols: i64, rows: i64) -> Result<u32> {
    match *view.shape() {
        [own] if own == cols => Ok(1),
        [groups, own] if own == cols && groups > 0 && groups as u64 <= GROUPS && rows % groups == 0 => {
            Ok(groups as u32)
        }
        ref got => {
            let expected =
                format!("[{cols}], or [groups, {cols}] with up to {GROUPS} groups that divide {rows} rows");
            Err(Error::Shape { op, arg, got: got.to_vec(), expected })
        }
    }
}
