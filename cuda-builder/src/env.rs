//! The environment variables of the nested cargo, which compiles the device crate. The nested cargo gets the
//! variables of the build script, except two groups. The first group consists of variables that the outer
//! cargo and rustup set for the build script. The second group consists of variables that apply only to the
//! host build.
//!
//! The removed variables would change the PTX or cause errors when the nested cargo compiles it. They
//! contain, for example, the host's `RUSTFLAGS`, the `clippy-driver` wrapper of `cargo clippy`, the outer
//! build's profile, and the toolchain of the outer rustup proxy.

use std::process::Command;

/// Environment variables that the nested cargo (for device code) must not get. The nested cargo does not get
/// `CARGO_*` and `DEP_*` either. cargo or rustup set some of the listed variables for a build script. The
/// others apply only to the host build.
const LEAKS: &[&str] = &[
    "RUSTC",
    "RUSTC_LINKER",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOC",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
    "RUST_RECURSION_COUNT",
    "RUST_TARGET_PATH",
    "RUSTUP_TOOLCHAIN",
    "RUSTUP_TOOLCHAIN_SOURCE",
    "CARGO",
    "CLIPPY_ARGS",
    "DEBUG",
    "HOST",
    "MAKEFLAGS",
    "MFLAGS",
    "NUM_JOBS",
    "OPT_LEVEL",
    "OUT_DIR",
    "PROFILE",
    "TARGET",
];

/// Prefixes of environment variables that the nested cargo (for device code) gets although they start with
/// `CARGO_`. The nested cargo needs these variables to find cargo's home folder and to access registries.
const KEPT: &[&str] =
    &["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_REGISTRY_", "CARGO_SOURCE_"];

/// Returns whether the builder must remove the variable `name` from the environment of the nested cargo (for
/// device code).
fn leaks(name: &str) -> bool {
    let kept = KEPT.iter().any(|kept| name.starts_with(kept));
    let cargos = name.starts_with("CARGO_") || name.starts_with("DEP_");
    LEAKS.contains(&name) || (cargos && !kept)
}

/// Removes variables of the outer build from the environment of `command`, so that they do not affect the
/// nested cargo (for device code).
pub(crate) fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(leaks) {
            command.env_remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_build_does_not_leak() {
        let leaking = [
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_TARGET",
            "CARGO_MANIFEST_DIR",
            "CARGO_MAKEFLAGS",
            "CARGO_PROFILE_RELEASE_LTO",
            "CARGO_CFG_TARGET_ARCH",
            "RUSTFLAGS",
            "RUSTDOCFLAGS",
            "RUSTC",
            "RUSTC_WRAPPER",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTUP_TOOLCHAIN",
            "OUT_DIR",
            "DEP_Z_INCLUDE",
        ];
        for name in leaking {
            assert!(leaks(name), "{name}");
        }
    }

    #[test]
    fn the_users_own_settings_stay() {
        let kept = ["PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME", "CARGO_NET_OFFLINE", "CARGO_HTTP_PROXY"];
        for name in kept {
            assert!(!leaks(name), "{name}");
        }
    }

    #[test]
    fn cleaning_removes_cargos_variables() {
        // This test runs under cargo, which sets CARGO_MANIFEST_DIR.
        let mut command = Command::new("true");
        clean(&mut command);
        assert!(command.get_envs().any(|(name, value)| name == "CARGO_MANIFEST_DIR" && value.is_none()));
        assert!(!command.get_envs().any(|(name, _)| name == "PATH"));
    }
}
