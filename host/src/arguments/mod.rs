//! Converts the arguments of a call from another language to the arguments of this crate's public functions.
//!
//! For each call, a language binding such as the Python extension provides a value of the trait [`Source`].
//! This source has the argument values in five queues: tensors, outputs, floats, integers and bools. A type
//! that implements the trait [`Argument`] takes its values from the front of these queues. Within a queue,
//! the values must have the order in which the op declares its arguments. Between the queues, there is no
//! order: for example, a tensor may be declared before or after an integer.
//!
//! All parameter types of the ops except `Device` and `Stream` implement [`Argument`]. A binding therefore
//! needs no separate code for each op. Some ops, such as `rope`, have structs as parameters. Such a struct
//! takes several values from the queues.
use crate::{Error, View, ViewMut};

/// The role of a tensor in an op, for example "bias". The role and the other tensors of the op determine the
/// shape and dtype of the tensor. The Python file `oxiwarp/ops/_roles.py` gives each tensor of an operator a
/// role. This enum has the roles that occur in operators with Rust kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Rows of one shape and dtype.
    Rows,
    /// A vector, such as the weight of a norm, with one element per column of the rows. It has the dtype of
    /// the rows or f32.
    Vector,
    /// A per-column parameter in the dtype of the rows.
    Bias,
    /// An operand that broadcasts to the shape of the rows, in the dtype of the rows or in f32.
    Broadcast,
    /// One number per row.
    PerRow,
    /// The class of each row, an integer.
    Classes,
    /// The row of a modulation for each row, an integer.
    Index,
    /// A tensor with the shape of the rows, in f32, f16 or bf16.
    Branch,
    /// A vector with one element per column of the rows, in f32, f16 or bf16.
    AnyVector,
    /// An operand that broadcasts to the rows, also in their last dimension, in f32, f16 or bf16.
    Modulation,
    /// Queries, keys or values.
    Heads,
    /// A weight or bias vector for norms of queries or keys, in the dtype of the heads or in f32. It has one
    /// element per column of a head, or one per column of all heads together.
    HeadVector,
    /// One number per token and head.
    PerHead,
    /// Cosines or sines of rotary embedding, in the dtype of the heads or in f32.
    Table,
    /// The row of the tables of cosines and sines for each token, an integer.
    TableRows,
    /// An attention mask. It has dtype bool, or it has numbers that are added to the scores.
    Mask,
    /// The weight of a matrix product, in the dtype of the rows. It has as many columns as the rows, and one
    /// row per column of the result.
    Matrix,
    /// A tensor with the shape of the result of a matrix product, in the dtype of the rows.
    Product,
    /// An operand that broadcasts to the result of a matrix product, in the dtype of the rows or in f32.
    ProductGate,
    /// Start offsets of packed sequences, integers.
    Offsets,
    /// An output that the caller passes.
    Output,
    /// Quantized rows, in an 8-bit float dtype.
    Quantized,
    /// The f32 scales of quantized rows.
    Scales,
    /// The weight of a matrix product of quantized rows, in their dtype.
    QuantizedMatrix,
    /// The f32 scales of a quantized matrix.
    MatrixScales,
}

/// The kinds of arguments that are not tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarKind {
    /// A floating-point number.
    Float,
    /// An integer.
    Int,
    /// A bool.
    Bool,
}

/// The arguments of one call, as queues of tensors, outputs, floats, integers and bools. Each method takes
/// the next value of one queue.
pub trait Source<'t> {
    /// The error type for an argument that cannot be taken.
    type Error: From<Error>;

    /// Returns the name of the op for error messages.
    fn op(&self) -> &'static str;
    /// Takes a required tensor.
    ///
    /// # Errors
    /// Returns an error if the tensor is absent or cannot be converted to a [`View`].
    fn tensor(&mut self) -> Result<View<'t>, Self::Error>;
    /// Takes an optional tensor.
    ///
    /// # Errors
    /// Returns an error if the tensor is present but cannot be converted to a [`View`].
    fn optional(&mut self) -> Result<Option<View<'t>>, Self::Error>;
    /// Takes a required output.
    ///
    /// # Errors
    /// Returns the errors of [`Source::tensor`].
    fn output(&mut self) -> Result<ViewMut<'t>, Self::Error>;
    /// Takes an optional output.
    ///
    /// # Errors
    /// Returns an error if the output is present but cannot be converted to a [`ViewMut`].
    fn optional_output(&mut self) -> Result<Option<ViewMut<'t>>, Self::Error>;
    /// Takes a floating-point number.
    ///
    /// # Errors
    /// Returns an error if the call has no further floating-point number.
    fn float(&mut self) -> Result<f32, Self::Error>;
    /// Takes an integer.
    ///
    /// # Errors
    /// Returns an error if the call has no further integer.
    fn int(&mut self) -> Result<i64, Self::Error>;
    /// Takes a bool.
    ///
    /// # Errors
    /// Returns an error if the call has no further bool.
    fn bool(&mut self) -> Result<bool, Self::Error>;
    /// Returns whether the call has another argument of the kind `scalar`.
    fn has(&self, scalar: ScalarKind) -> bool;
    /// Returns the role of the next tensor.
    fn role(&self) -> Option<Role>;
    /// Returns the index of the next tensor in the call. Pass such an index to [`Source::missing`] or
    /// [`Source::given_without`].
    fn position(&self) -> usize;
    /// Returns the error for a call that has tensor number `given` but lacks tensor number `lacking`. The op
    /// accepts the tensor `given` only together with the tensor `lacking`.
    fn given_without(&self, given: usize, lacking: usize) -> Self::Error;
    /// Returns the error for a call that lacks its required tensor number `at`.
    fn missing(&self, at: usize) -> Self::Error;
}

/// One argument or several arguments of a public function.
pub trait Argument<'t>: Sized {
    /// Takes the argument from a source.
    ///
    /// # Errors
    /// Returns an error if the call lacks the argument, or if its value is invalid for the type.
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error>;

    /// Returns whether `source` still has a value for this argument. If it has none, and the parameter has a
    /// default, the macro `arguments!` uses the default.
    fn is_left<S: Source<'t>>(source: &S) -> bool {
        let _ = source;
        true
    }
}

impl<'t> Argument<'t> for View<'t> {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        source.tensor()
    }
}

impl<'t> Argument<'t> for Option<View<'t>> {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        source.optional()
    }
}

impl<'t> Argument<'t> for ViewMut<'t> {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        source.output()
    }
}

impl<'t> Argument<'t> for Option<ViewMut<'t>> {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        source.optional_output()
    }
}

/// Two tensors, both present or both absent.
impl<'t> Argument<'t> for Option<[View<'t>; 2]> {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        let at = source.position();
        match [source.optional()?, source.optional()?] {
            [Some(first), Some(second)] => Ok(Some([first, second])),
            [None, None] => Ok(None),
            [Some(_), None] => Err(source.given_without(at, at + 1)),
            [None, Some(_)] => Err(source.given_without(at + 1, at)),
        }
    }
}

impl<'t, T: Argument<'t>, const N: usize> Argument<'t> for [T; N] {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        let mut failed = None;
        let taken: [Option<T>; N] = std::array::from_fn(|_| match &failed {
            Some(_) => None,
            None => T::take(source).map_err(|error| failed = Some(error)).ok(),
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(taken.map(|argument| argument.expect("none has failed"))),
        }
    }
}

/// Implements [`Argument`] for a scalar type.
macro_rules! scalars {
    ($($t:ty: $take:ident, $kind:ident;)*) => { $(
        impl<'t> Argument<'t> for $t {
            #[inline]
            fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
                source.$take()
            }
            fn is_left<S: Source<'t>>(source: &S) -> bool {
                source.has(ScalarKind::$kind)
            }
        }
    )* };
}
scalars! {
    f32: float, Float;
    i64: int, Int;
    bool: bool, Bool;
}

/// Implements the trait [`Argument`] for enums with two variants. For such an enum, the call of the op passes
/// a bool: `true` means the variant `$yes`, and `false` means the variant `$no`.
macro_rules! choices {
    ($($t:ident: $yes:ident, $no:ident;)*) => { $(
        impl<'t> $crate::arguments::Argument<'t> for $t {
            #[inline]
            fn take<S: $crate::arguments::Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
                Ok(if source.bool()? { $t::$yes } else { $t::$no })
            }
            fn is_left<S: $crate::arguments::Source<'t>>(source: &S) -> bool {
                source.has($crate::arguments::ScalarKind::Bool)
            }
        }
    )* };
}
pub(crate) use choices;

/// Defines a struct and implements the trait [`Argument`] for it. The implementation takes the values of the
/// fields from the call, in the order of the fields. If the call has no value left for a field with a
/// default, the field gets the default.
macro_rules! arguments {
    (
        $(#[$doc:meta])*
        pub struct $name:ident $(<$view:lifetime>)? {
            $($(#[$field_doc:meta])* pub $field:ident: $t:ty $(= $default:expr)?,)*
        }
    ) => {
        $(#[$doc])*
        pub struct $name $(<$view>)? { $($(#[$field_doc])* pub $field: $t,)* }

        $crate::arguments::arguments! { @implement $name [$($view)?] $($field: $t $(= $default)?,)* }
    };
    (@implement $name:ident [] $($fields:tt)*) => {
        impl<'t> $crate::arguments::Argument<'t> for $name {
            $crate::arguments::arguments! { @take 't $name $($fields)* }
        }
    };
    (@implement $name:ident [$view:lifetime] $($fields:tt)*) => {
        impl<$view> $crate::arguments::Argument<$view> for $name<$view> {
            $crate::arguments::arguments! { @take $view $name $($fields)* }
        }
    };
    (@take $view:lifetime $name:ident $($field:ident: $t:ty $(= $default:expr)?,)*) => {
        #[inline]
        fn take<S: $crate::arguments::Source<$view>>(source: &mut S) -> Result<Self, S::Error> {
            Ok($name { $(
                $field: match () {
                    $(() if !<$t as $crate::arguments::Argument<$view>>::is_left(source) => $default,)?
                    () => <$t as $crate::arguments::Argument<$view>>::take(source)?,
                },
            )* })
        }
    };
}
pub(crate) use arguments;
