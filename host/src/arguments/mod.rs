//! The arguments of the public functions, taken one after the other from a call in another language.
//!
//! A binding implements [`Source`] for its calls. [`Argument`] is implemented for the types that the ops take,
//! apart from `Device` and `Stream`, so that a binding does not list the arguments of an op again. Those of `rope` and
//! `qk_norm_rope` are taken in groups. Tensors, outputs, floats,
//! integers and truth values are five queues: only arguments of one kind must have the order of the call.
use crate::{Error, View, ViewMut};

/// What a tensor is to an op, relative to the other tensors: those of `oxiwarp/ops/_roles.py` that kernels in Rust have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Rows of one shape and dtype.
    Rows,
    /// A parameter of the columns, in the dtype of the rows or in f32.
    Vector,
    /// A parameter of the columns, in the dtype of the rows.
    Bias,
    /// Broadcasts to the rows, in their dtype or in f32.
    Broadcast,
    /// One number for each row.
    PerRow,
    /// The class of each row: an integer.
    Classes,
    /// Queries, keys or values.
    Heads,
    /// A parameter of a head's columns, in the dtype of the heads or in f32.
    HeadVector,
    /// One number for each token of each head.
    PerHead,
    /// Cosines or sines, in the dtype of the heads or in f32.
    Table,
    /// Truth values, or numbers that are added to scores.
    Mask,
    /// Where packed sequences begin and end: integers.
    Offsets,
    /// An output that the caller gives.
    Output,
}

/// The kinds of arguments that are no tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarKind {
    /// A floating-point number.
    Float,
    /// An integer.
    Int,
    /// A truth value.
    Bool,
}

/// A call that arguments are taken from. Each method takes the next argument of its kind.
pub trait Source<'t> {
    /// Why an argument cannot be taken.
    type Error: From<Error>;

    /// The name of the op, for errors.
    fn op(&self) -> &'static str;
    /// Takes a tensor that is always given.
    ///
    /// # Errors
    /// It is absent, or no [`View`] can be made of it.
    fn tensor(&mut self) -> Result<View<'t>, Self::Error>;
    /// Takes a tensor that may be absent.
    ///
    /// # Errors
    /// It is there, and no view can be made of it.
    fn optional(&mut self) -> Result<Option<View<'t>>, Self::Error>;
    /// Takes an output that is always given.
    ///
    /// # Errors
    /// As [`Source::tensor`].
    fn output(&mut self) -> Result<ViewMut<'t>, Self::Error>;
    /// Takes an output that may be absent.
    ///
    /// # Errors
    /// It is there, and no view can be made of it.
    fn optional_output(&mut self) -> Result<Option<ViewMut<'t>>, Self::Error>;
    /// Takes a floating-point number.
    ///
    /// # Errors
    /// None is left.
    fn float(&mut self) -> Result<f32, Self::Error>;
    /// Takes an integer.
    ///
    /// # Errors
    /// None is left.
    fn int(&mut self) -> Result<i64, Self::Error>;
    /// Takes a truth value.
    ///
    /// # Errors
    /// None is left.
    fn bool(&mut self) -> Result<bool, Self::Error>;
    /// Whether the call has another argument of this kind.
    fn has(&self, scalar: ScalarKind) -> bool;
    /// The role of the next tensor.
    fn role(&self) -> Option<Role>;
    /// The index of the next tensor, for the two errors below.
    fn position(&self) -> usize;
    /// The error of a call that gives tensor `given` without tensor `lacking`, which the first one needs.
    fn given_without(&self, given: usize, lacking: usize) -> Self::Error;
    /// The error of a tensor that must be given, by its index.
    fn missing(&self, at: usize) -> Self::Error;
}

/// An argument of a public function, or several.
pub trait Argument<'t>: Sized {
    /// Takes the argument from a call.
    ///
    /// # Errors
    /// The call does not have it, or it has a value that the type does not have.
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error>;

    /// Whether the call has the argument. A parameter with a default may be absent from a call.
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

/// Two tensors, both given or both absent.
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

/// Implements [`Argument`] for a number of a call.
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

/// Implements [`Argument`] for types of two values, which a call gives as truth values: that of `true`, and of `false`.
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

/// Defines a struct and implements [`Argument`] for it: its fields are taken in their order. A field with a default may
/// be absent from a call.
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
