//! The tested combinations of the operands of a norm: scale, shift, table (a vector that is added to scale
//! and shift), weight and bias.
use oxiwarp::{Device, Element};
use oxiwarp_tests::operand::{Form, Kind, Norming, Operand, Side};
use rand::rngs::StdRng;

use super::layer_norm_case::PARAMETERS;

/// Describes the operands of a norm with scale and shift. `form` is the shape of scale and shift, and
/// `single` says whether they are in f32. For `table` and the two `parameters` (weight and bias),
/// `Some(true)` means f32, `Some(false)` means the dtype of the rows, and `None` means absent.
#[derive(Clone, Copy, Debug)]
pub struct ModulationCase {
    pub form: Form,
    pub single: bool,
    pub table: Option<bool>,
    pub shift: bool,
    pub parameters: [Option<bool>; 2],
}

impl ModulationCase {
    /// The operands in LTX-Video, FLUX.1 and most other models.
    pub const USUAL: Self =
        Self { form: Form::BatchSlice, single: false, table: None, shift: true, parameters: [None; 2] };

    /// Returns whether an operand is in f32.
    pub fn is_f32(&self) -> bool {
        self.single || [self.table, self.parameters[0], self.parameters[1]].contains(&Some(true))
    }

    /// Makes one scale, shift or gate for rows of shape `shape`, with the table (a vector) that is added to
    /// it. The values start at element `offset` of a buffer.
    pub fn side<T: Element>(
        &self,
        device: &Device,
        random: &mut StdRng,
        shape: [i64; 3],
        offset: usize,
    ) -> Side<T> {
        let kind = Kind { form: self.form, single: self.single, offset };
        Side::new(device, random, shape, kind, self.table)
    }

    /// Makes all operands.
    pub fn make<T: Element>(
        &self,
        device: &Device,
        random: &mut StdRng,
        shape: [i64; 3],
        offset: usize,
    ) -> Norming<T> {
        let [weight, bias] = self
            .parameters
            .map(|single| single.map(|single| Operand::vector(device, random, shape[2], single, offset)));
        let scale = self.side(device, random, shape, offset);
        let shift = self.shift.then(|| self.side(device, random, shape, offset));
        Norming { weight, bias, scale, shift }
    }
}

/// Returns all tested combinations of operands.
pub fn forms() -> Vec<ModulationCase> {
    let mut all = vec![];
    for form in Form::ALL {
        for single in [false, true] {
            for table in [None, Some(false), Some(true)] {
                for shift in [true, false] {
                    for parameters in PARAMETERS {
                        all.push(ModulationCase { form, single, table, shift, parameters });
                    }
                }
            }
        }
    }
    all
}

/// Splits `rows` into batches and tokens.
pub fn in_batches(rows: i64, cols: i64) -> [i64; 3] {
    if rows % 2 == 0 { [2, rows / 2, cols] } else { [1, rows, cols] }
}
