//! Registration and calls of a row of the table of operators.

use crate::boundary::{self, Failure};
use crate::call::{Call, Slot};
use crate::fit::{Fit, expect_fit};
use crate::operator::{MAX_OUTPUTS, Operator};
use crate::outputs::Output;
use crate::schema::{Kind, Schema};
use crate::shim::Boxed;
use std::ffi::CStr;
use std::sync::OnceLock;

/// A row of the table of operators.
pub struct Row {
    /// The name of the operator.
    pub name: &'static CStr,
    /// The operator name in error messages. Operators in the same line of the table share this name: errors
    /// of `rms_norm_out` say `rms_norm`.
    pub op: &'static str,
    /// The outputs in the order of the `oxiwarp` function's parameters. If the schema has `n` output
    /// arguments such as `out`, they replace the first `n` of these outputs.
    pub outputs: &'static [Output],
    /// Calls the host function with the arguments of a call.
    pub host: fn(&Call) -> Result<(), Failure>,
    /// Takes the arguments of the `oxiwarp` function from a [`Fit`]. The `Fit` checks that the schema has the
    /// same arguments.
    pub take: fn(&mut Fit<'_>) -> Result<(), Failure>,
    /// The kernel that torch calls: [`Row::call`] of this row.
    pub kernel: Boxed,
    /// The operator, once it is registered.
    pub registered: OnceLock<Registered>,
}

/// An operator whose schema fits its row.
pub struct Registered {
    operator: Operator,
    /// The outputs that each call allocates. An element is `None` if the row lists an output that this
    /// operator does not have.
    allocated: Vec<Option<Allocated>>,
}

/// An output that a call allocates. `flag` is the index of the bool argument that says whether the caller
/// needs the output. `like` is the index of the tensor whose shape and dtype the output has.
struct Allocated {
    output: Output,
    flag: Option<usize>,
    like: Option<usize>,
}

impl Row {
    /// Executes one call of this row's operator. torch calls this function through the function in the field
    /// `kernel`.
    ///
    /// # Safety
    /// `stack` must be the argument stack of a call of this operator, with room for the results.
    pub unsafe fn call(&'static self, stack: *mut u64) {
        let registered = self.registered.get();
        let registered = registered.expect("torch gets the kernels of registered operators only");
        boundary::run(self.op, || {
            let mut call = Call::new(&registered.operator);
            // SAFETY: torch passes the arguments of the registered schema.
            unsafe { call.read(stack) };
            call.expect_one_device()?;
            call.copy_scattered()?;
            for allocated in &registered.allocated {
                call.add_output(match allocated {
                    Some(allocated) => allocated.allocate(&call)?,
                    None => Slot::default(),
                });
            }
            (self.host)(&call)?;
            for (at, result) in call.into_results().enumerate() {
                // SAFETY: the stack has room for each result of the schema.
                unsafe { *stack.add(at) = result };
            }
            Ok(())
        });
    }

    /// Stores the operator with the schema `schema` in this row of the operator table. Fails if the schema
    /// does not match the `oxiwarp` function and the outputs of this row.
    pub fn register(&self, schema: Schema) -> Result<(), String> {
        let flags: Vec<_> = self.outputs.iter().filter_map(|output| output.flag()).collect();
        let operator = Operator::of(self.op, schema, &flags)?;
        let schema = &operator.schema;
        let allocated: Vec<_> =
            self.outputs.iter().skip(schema.outs()).map(|output| Allocated::of(*output, schema)).collect();
        let results = allocated.iter().flatten().filter(|allocated| allocated.output.is_result()).count();
        if results != schema.results {
            return Err(format!("its schema has {} results, and its row {results}", schema.results));
        }
        let given = std::iter::repeat_n(true, schema.outs());
        let outputs: Vec<_> = given.chain(allocated.iter().map(Option::is_some)).collect();
        if outputs.len() > MAX_OUTPUTS {
            return Err(format!("expected at most {MAX_OUTPUTS} outputs, got {}", outputs.len()));
        }
        expect_fit(self.op, schema, &outputs, self.take)?;
        let _ = self.registered.set(Registered { operator, allocated }); // set before by another namespace
        Ok(())
    }
}

impl Allocated {
    /// Finds the arguments on which the allocation of an output depends. These are a flag, which says whether
    /// the output is needed, and a tensor whose shape and dtype the output has. If `schema` lacks one of
    /// these arguments, the operator does not have this output, and the function returns `None`.
    fn of(output: Output, schema: &Schema) -> Option<Self> {
        let flag = output.flag().map(|name| schema.index(Kind::Flag, name));
        let like = output.tensor().map(|name| schema.input(name));
        (flag != Some(None) && like != Some(None)).then_some(Self {
            output,
            flag: flag.flatten(),
            like: like.flatten(),
        })
    }

    fn allocate(&self, call: &Call) -> Result<Slot, Failure> {
        let flag = self.flag.is_none_or(|flag| call.flag(flag));
        self.output.allocate(call, flag, self.like.and_then(|like| call.tensor(like)))
    }
}
