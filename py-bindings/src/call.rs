//! A call of a torch operator. The type `Call` owns the argument and output tensors. It passes views of these
//! tensors to the host function: the `oxiwarp` function that implements the operator.

use crate::boundary::{Failure, Stack};
use crate::device::Location;
use crate::handler::Handler;
use crate::operator::{MAX_OUTPUTS, MAX_SCALARS, MAX_TENSORS, Operator};
use crate::schema::{Argument, Kind};
use crate::tensor::Tensor;
use arrayvec::ArrayVec;
use oxiwarp::arguments::{Role, ScalarKind, Source};
use oxiwarp::{Dtype, View, ViewMut};

/// The arguments and the outputs of a call.
pub struct Call {
    /// The operator that is called.
    pub operator: &'static Operator,
    /// The device of the call. [`Call::expect_one_device`] sets it.
    pub location: Location,
    tensors: ArrayVec<Option<Tensor>, MAX_TENSORS>,
    outputs: ArrayVec<Slot, MAX_OUTPUTS>,
    floats: ArrayVec<f32, MAX_SCALARS>,
    ints: ArrayVec<i64, MAX_SCALARS>,
    bools: ArrayVec<bool, MAX_SCALARS>,
    flags: ArrayVec<bool, MAX_SCALARS>,
}

/// An output. If the caller of the operator does not need this output, its tensor has no elements, and the
/// `oxiwarp` function does not receive the tensor.
#[derive(Default)]
pub struct Slot {
    /// The tensor, or `None` if the operator lacks this output.
    pub tensor: Option<Tensor>,
    /// Whether the host function gets and writes the tensor.
    pub is_written: bool,
}

impl From<Tensor> for Slot {
    fn from(tensor: Tensor) -> Self {
        Self { tensor: Some(tensor), is_written: true }
    }
}

impl Call {
    /// Makes a call without arguments.
    #[inline]
    pub fn new(operator: &'static Operator) -> Self {
        Self {
            operator,
            location: Location { place: None, index: -1 },
            tensors: ArrayVec::new(),
            outputs: ArrayVec::new(),
            floats: ArrayVec::new(),
            ints: ArrayVec::new(),
            bools: ArrayVec::new(),
            flags: ArrayVec::new(),
        }
    }

    /// Reads all arguments from torch's argument stack and takes ownership of them.
    ///
    /// # Safety
    /// `stack` must be the argument stack of a call of this operator, and must be read only once.
    pub unsafe fn read(&mut self, stack: *const u64) {
        // SAFETY: the loop reads each argument on the stack once, in the order and with the types of the
        // schema. The caller guarantees that `stack` is the argument stack of this operator.
        let (mut stack, operator) = (unsafe { Stack::new(stack) }, self.operator);
        for Argument { name, kind } in &operator.schema.arguments {
            match *kind {
                Kind::Tensor { optional, written, role } => {
                    let handle = if optional { stack.optional_tensor() } else { Some(stack.tensor()) };
                    let tensor = handle.map(|handle| Tensor::own(handle, operator.op, name, role));
                    match written {
                        true => self.outputs.push(tensor.map(Slot::from).unwrap_or_default()),
                        false => self.tensors.push(tensor),
                    }
                }
                Kind::Scalar(ScalarKind::Float) => self.floats.push(stack.float() as f32),
                Kind::Scalar(ScalarKind::Int) => self.ints.push(stack.int()),
                Kind::Scalar(ScalarKind::Bool) => self.bools.push(stack.bool()),
                Kind::Flag => self.flags.push(stack.bool()),
            }
        }
        if let Some((tensor, names, by)) = operator.alias
            && let Some(tensor) = &mut self.tensors[tensor]
        {
            tensor.rename(names[usize::from(self.bools[by])]);
        }
    }

    /// Calls the host function `host`. All outputs must exist.
    pub fn host<'t, A>(&'t self, host: impl Handler<'t, A>) -> Result<(), Failure> {
        let (device, stream) = self.location.device_and_stream()?;
        host.call(&device, &mut self.source(), stream)
    }

    /// Returns a source that yields all arguments in order.
    #[inline]
    pub fn source(&self) -> Arguments<'_> {
        Arguments { call: self, tensors: 0, outputs: 0, floats: 0, ints: 0, bools: 0 }
    }

    /// Returns the reference tensor (`x`, or the first input), which determines the device and dtype of the
    /// call.
    pub fn reference(&self) -> Result<&Tensor, Failure> {
        self.tensor(self.operator.reference).ok_or_else(|| self.missing(self.operator.reference))
    }

    /// Returns input tensor number `at`, or `None` if it is absent.
    pub fn tensor(&self, at: usize) -> Option<&Tensor> {
        self.tensors.get(at)?.as_ref()
    }

    /// Returns all tensors that are present.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().flatten()
    }

    /// Returns the input tensor `name`, or `None` if it is absent.
    pub fn named(&self, name: &str) -> Option<&Tensor> {
        self.tensor(self.operator.schema.input(name)?)
    }

    /// Returns the outputs that exist so far.
    pub fn outputs(&self) -> &[Slot] {
        &self.outputs
    }

    /// Adds an output.
    pub fn add_output(&mut self, output: Slot) {
        self.outputs.push(output);
    }

    /// Returns the flag with index `at`. A flag is a `bool` argument of the operator, such as `with_lse`,
    /// that says whether the caller needs an output. The `oxiwarp` function does not receive flags.
    pub fn flag(&self, at: usize) -> bool {
        self.flags[at]
    }

    /// Returns true if the queries, keys and values have the shape `[B, heads, S, D]`, and false if the shape
    /// is `[B, S, heads, D]`.
    pub fn heads_first(&self) -> bool {
        self.operator.heads_first.is_some_and(|at| self.bools[at])
    }

    /// Checks that all tensors are on the device of the reference tensor (`x`, or the first input). Stores
    /// this device as the device of the call.
    pub fn expect_one_device(&mut self) -> Result<(), Failure> {
        let reference = self.reference()?;
        let (location, name) = (reference.location()?, reference.name());
        for (at, tensor) in self.tensors.iter().enumerate() {
            if let Some(tensor) = tensor
                && at != self.operator.reference
            {
                tensor.expect_on(location, name)?;
            }
        }
        for output in self.outputs.iter().filter_map(|output| output.tensor.as_ref()) {
            output.expect_on(location, name)?;
        }
        self.location = location;
        Ok(())
    }

    /// Replaces rows and heads whose columns are not adjacent in memory by contiguous copies. An example is
    /// the input `x.flatten(2).transpose(1, 2)` of a vision model.
    ///
    /// A kernel that reads such rows would have to transpose them in shared memory. A model has such a tensor
    /// only once, because the results of the operators are contiguous. One copy is therefore cheap.
    pub fn copy_scattered(&mut self) -> Result<(), Failure> {
        for tensor in self.tensors.iter_mut().flatten() {
            if matches!(tensor.role(), Role::Rows | Role::Branch | Role::Heads) && tensor.is_scattered()? {
                *tensor = tensor.copied()?;
            }
        }
        Ok(())
    }

    /// Returns the handles of the result tensors, in the order of the schema. The caller owns these handles.
    pub fn into_results(self) -> impl Iterator<Item = u64> {
        let results = self.operator.schema.results;
        self.outputs.into_iter().take(results).map(|output| output.tensor.map_or(0, Tensor::into_raw))
    }

    fn missing(&self, at: usize) -> Failure {
        Failure(format!("{}: {} is missing", self.operator.op, self.operator.name(at)))
    }

    /// Returns the view of an input tensor. Returns an error if the tensor's role in the operator does not
    /// permit its dtype. Target classes, indices, rows of tables and offsets of packed sequences must be
    /// integers. A mask may be bool, f32, f16 or bf16. All other tensors must be f32, f16 or bf16. The
    /// `oxiwarp` function later checks whether the dtypes of the tensors fit together.
    #[inline]
    fn view<'t>(&'t self, tensor: &'t Tensor, at: usize) -> Result<View<'t>, Failure> {
        let dtype = match (tensor.float_dtype()?, tensor.role()) {
            (Some(dtype), role) if !is_of_integers(role) => dtype,
            (_, role) => self.other_dtype(tensor, at, role)?,
        };
        tensor.view_as(dtype)
    }

    /// Returns the mutable view of an output.
    #[inline]
    fn view_mut<'t>(&'t self, tensor: &'t Tensor) -> Result<ViewMut<'t>, Failure> {
        match tensor.float_dtype()? {
            Some(dtype) => tensor.view_mut_as(dtype),
            None => tensor.view_mut_as(self.other_output_dtype(tensor)?),
        }
    }

    /// Returns the dtype of an output that is not f32, f16 or bf16, if its role permits this dtype. Otherwise
    /// returns an error that lists the permitted dtypes.
    #[cold]
    fn other_output_dtype(&self, tensor: &Tensor) -> Result<Dtype, Failure> {
        let expected = match (tensor.role(), tensor.fp8_dtype()?) {
            (Role::Quantized, Some(dtype)) => return Ok(dtype),
            (Role::Quantized, None) => "float8_e4m3fn or float8_e5m2".into(),
            (Role::Scales, _) => "f32".into(),
            _ => self.dtype_of_result()?,
        };
        Err(Failure(tensor.wrong_dtype(&expected)))
    }

    /// Returns the dtype of the result as text for an error message: the dtype of the reference tensor, or of
    /// the output if the reference tensor has 8-bit floats.
    fn dtype_of_result(&self) -> Result<String, Failure> {
        let reference = self.reference()?;
        if reference.role() != Role::Quantized {
            return Ok(reference.dtype()?.to_string());
        }
        let out = self.outputs.first().and_then(|slot| slot.tensor.as_ref());
        Ok(match out.map(Tensor::float_dtype).transpose()?.flatten() {
            Some(dtype) if dtype != Dtype::F32 => dtype.to_string(),
            _ => "f16 or bf16".into(),
        })
    }

    /// Returns the dtype of a tensor of integers, such as target classes, of a mask if it is bool, and of an
    /// operand in 8-bit floats. Otherwise returns an error that lists the permitted dtypes.
    #[cold]
    fn other_dtype(&self, tensor: &Tensor, at: usize, role: Role) -> Result<Dtype, Failure> {
        let reference = self.reference()?;
        let expected = match role {
            role if is_of_integers(role) => return Ok(tensor.index_dtype()?),
            Role::Mask => return Ok(tensor.mask_dtype()?),
            Role::Quantized | Role::QuantizedMatrix => match tensor.fp8_dtype()? {
                Some(dtype) => return Ok(dtype),
                None => Dtype::E4m3.to_string(),
            },
            Role::Vector | Role::Broadcast | Role::ProductGate | Role::HeadVector => {
                reference.dtype()?.or_f32(reference.name())
            }
            Role::Table => reference.dtype()?.or_f32("the heads"),
            Role::PerRow | Role::PerHead | Role::Scales | Role::MatrixScales => "f32".into(),
            Role::Branch | Role::AnyVector | Role::Modulation => "f32, f16 or bf16".into(),
            _ if at == self.operator.reference => "f32, f16 or bf16".into(),
            _ => self.dtype_of_result()?,
        };
        Err(Failure(tensor.wrong_dtype(&expected)))
    }
}

/// Returns whether a tensor of this role contains integers.
fn is_of_integers(role: Role) -> bool {
    matches!(role, Role::Classes | Role::Index | Role::TableRows | Role::Offsets)
}

/// A [`Source`] from which the operator's `oxiwarp` function takes the arguments of a call. There are five
/// kinds of arguments: tensors, outputs, floats, integers and bools. For each kind, a field stores the index
/// of the next argument to take.
pub struct Arguments<'t> {
    call: &'t Call,
    tensors: usize,
    outputs: usize,
    floats: usize,
    ints: usize,
    bools: usize,
}

impl<'t> Arguments<'t> {
    #[inline]
    fn next_output(&mut self) -> Option<&'t Tensor> {
        self.outputs += 1;
        let slot = self.call.outputs.get(self.outputs - 1).filter(|slot| slot.is_written);
        slot.and_then(|slot| slot.tensor.as_ref())
    }
}

/// Returns the value with index `at`, and increments `at`. The function can fail only because of a bug in
/// this crate: [`crate::fit`] compared the operator's schema with the `oxiwarp` function at registration.
fn next<T: Copy>(values: &[T], at: &mut usize) -> Result<T, Failure> {
    *at += 1;
    values.get(*at - 1).copied().ok_or_else(|| Failure("an argument is missing".into()))
}

impl<'t> Source<'t> for Arguments<'t> {
    type Error = Failure;

    fn op(&self) -> &'static str {
        self.call.operator.op
    }

    #[inline]
    fn tensor(&mut self) -> Result<View<'t>, Failure> {
        self.tensors += 1;
        let at = self.tensors - 1;
        match self.call.tensor(at) {
            Some(tensor) => self.call.view(tensor, at),
            None => Err(self.missing(at)),
        }
    }

    #[inline]
    fn optional(&mut self) -> Result<Option<View<'t>>, Failure> {
        self.tensors += 1;
        let at = self.tensors - 1;
        match self.call.tensor(at) {
            Some(tensor) => self.call.view(tensor, at).map(Some),
            None => Ok(None),
        }
    }

    #[inline]
    fn output(&mut self) -> Result<ViewMut<'t>, Failure> {
        match self.next_output() {
            Some(tensor) => self.call.view_mut(tensor),
            None => Err(Failure(format!("{}: an output is missing", self.op()))),
        }
    }

    #[inline]
    fn optional_output(&mut self) -> Result<Option<ViewMut<'t>>, Failure> {
        self.next_output().map(|tensor| self.call.view_mut(tensor)).transpose()
    }

    #[inline]
    fn float(&mut self) -> Result<f32, Failure> {
        next(&self.call.floats, &mut self.floats)
    }

    #[inline]
    fn int(&mut self) -> Result<i64, Failure> {
        next(&self.call.ints, &mut self.ints)
    }

    #[inline]
    fn bool(&mut self) -> Result<bool, Failure> {
        next(&self.call.bools, &mut self.bools)
    }

    #[inline]
    fn has(&self, scalar: ScalarKind) -> bool {
        match scalar {
            ScalarKind::Float => self.floats < self.call.floats.len(),
            ScalarKind::Int => self.ints < self.call.ints.len(),
            ScalarKind::Bool => self.bools < self.call.bools.len(),
        }
    }

    fn role(&self) -> Option<Role> {
        self.call.operator.schema.inputs().nth(self.tensors)?.role()
    }

    fn position(&self) -> usize {
        self.tensors
    }

    fn given_without(&self, given: usize, lacking: usize) -> Failure {
        let operator = self.call.operator;
        let [given, lacking] = [given, lacking].map(|at| operator.name(at));
        Failure(format!("{}: {given} is given without {lacking}", operator.op))
    }

    fn missing(&self, at: usize) -> Failure {
        self.call.missing(at)
    }
}
