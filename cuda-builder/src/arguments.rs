//! Replaces the placeholder `@argument_<n>` in PTX by the name of the kernel's parameter `n`. Inline assembly
//! can then take the address of this parameter.
//!
//! Kernels use placeholders only for tensor maps. TMA reads a tensor map directly from the kernel's
//! parameters, so the kernel needs the address of the parameter. A Rust reference would point to a copy of
//! the tensor map. Therefore the kernel's inline assembly contains a placeholder, for example `@argument_0`
//! for argument 0. The function [`name`] replaces it by the name that the compiler chose for the parameter,
//! `<entry>_param_0`. A tensor map must be aligned to 64 bytes, but Rust aligns arguments to at most 16
//! bytes. [`name`] therefore also writes the alignment 64 into the declaration of the parameter.

use crate::scan::functions;

/// The text with which a placeholder starts. In the PTX, the number of the kernel argument follows.
const MARK: &str = "@argument_";

/// Replaces the placeholders `@argument_<n>` in a PTX text by parameter names. Parameters with a placeholder
/// are tensor maps, so the function also raises their alignment from 16 to 64 bytes.
pub(crate) fn name(ptx: &str) -> String {
    let mut text = String::with_capacity(ptx.len());
    let functions = functions(ptx);
    let mut start = 0;
    for (i, function) in functions.iter().enumerate() {
        let end = functions.get(i + 1).map_or(ptx.len(), |next| next.start);
        let (mut head, body) = (ptx[start..function.open].to_string(), &ptx[function.open..end]);
        let argument = format!("{}_param_", function.name);
        for found in body.split(MARK).skip(1) {
            let number: String = found.chars().take_while(char::is_ascii_digit).collect();
            let declared = |align| format!(".param .align {align} .b8 {argument}{number}[");
            head = head.replace(&declared(16), &declared(64));
        }
        text.push_str(&head);
        text.push_str(&body.replace(MARK, &argument));
        start = end;
    }
    text.push_str(&ptx[start..]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_get_their_names_and_room() {
        let entry = |name: &str, align: u32, argument: &str| {
            let param = |number, align| format!("\t.param .align {align} .b8 {name}_param_{number}[128]");
            let params = format!("{},\n{}", param(0, align), param(1, 16));
            format!(".visible .entry {name}(\n{params}\n)\n{{\n\tmov.b64 a, {argument};\n\tret;\n}}\n")
        };
        let before = entry("k", 16, "@argument_0") + &entry("l", 16, "b");
        assert_eq!(name(&before), entry("k", 64, "k_param_0") + &entry("l", 16, "b"));
    }

    #[test]
    fn a_text_without_them_is_unchanged() {
        let ptx = ".version 8.0\n.visible .entry k(\n)\n{\n\tret;\n}\n";
        assert_eq!(name(ptx), ptx);
    }
}
