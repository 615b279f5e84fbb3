//! Calls functions of the `oxiwarp` crate with arguments from a [`Source`]. The type of a parameter
//! determines which values this parameter takes from the source.

use oxiwarp::arguments::{Argument, Source};
use oxiwarp::{Device, Result, Stream};

/// A function `fn(&Device, A, B, ..., Stream) -> Result<()>` of the `oxiwarp` crate. Each parameter type
/// between `Device` and `Stream` implements [`Argument`]. `Arguments` is the tuple of these types.
pub trait Handler<'t, Arguments> {
    /// Takes all arguments from `source` and calls the function.
    fn call<S: Source<'t>>(self, device: &Device, source: &mut S, stream: Stream) -> Result<(), S::Error>;

    /// Takes all arguments from `source` and drops them.
    fn take<S: Source<'t>>(self, source: &mut S) -> Result<(), S::Error>;
}

macro_rules! handlers {
    ($first:ident $($more:ident)*) => {
        impl<'t, F, $first: Argument<'t>, $($more: Argument<'t>),*> Handler<'t, ($first, $($more,)*)> for F
        where
            F: Fn(&Device, $first, $($more,)* Stream) -> Result<()>,
        {
            #[expect(non_snake_case, reason = "a variable has the name of its type parameter")]
            fn call<S: Source<'t>>(self, device: &Device, source: &mut S, stream: Stream) -> Result<(), S::Error> {
                let $first = $first::take(source)?;
                $(let $more = $more::take(source)?;)*
                Ok(self(device, $first, $($more,)* stream)?)
            }

            fn take<S: Source<'t>>(self, source: &mut S) -> Result<(), S::Error> {
                $first::take(source)?;
                $($more::take(source)?;)*
                Ok(())
            }
        }
        handlers! { $($more)* }
    };
    () => {};
}
handlers! { A B C D E F0 G H }
