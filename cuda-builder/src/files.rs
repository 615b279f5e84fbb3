//! Files that the builder reads and writes.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, process};

use crate::Error;

/// Writes `text` to the file unless the file already has this content. A file that is not written keeps its
/// modification time. cargo then does not rebuild the crates that use the file.
pub(crate) fn write_if_changed(path: &Path, text: &str) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::io("create the folder", folder))?;
    }
    // Write a temporary file, and then rename it, so that a reader never finds an incomplete file. A debug
    // build and a release build may write the same file at the same time.
    let new = path.with_extension(format!("{}.new", process::id()));
    fs::write(&new, text).map_err(Error::io("write", &new))?;
    fs::rename(&new, path).map_err(Error::io("write", path))
}

/// Returns whether both paths exist and refer to the same folder.
pub(crate) fn is_same_folder(a: &Path, b: &Path) -> bool {
    fs::canonicalize(a).is_ok_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b))
}

/// Opens and locks a file. The lock ends when the returned file is dropped or the process exits.
pub(crate) fn lock(path: &Path) -> Result<File, Error> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::io("create the folder", folder))?;
    }
    let file = File::create(path).map_err(Error::io("create", path))?;
    match file.lock() {
        // Some network file systems do not support locks. On such a file system, build without a lock, as
        // cargo does.
        Err(error) if error.kind() != ErrorKind::Unsupported => Err(Error::io("lock", path)(error)),
        _ => Ok(file),
    }
}

/// Returns the name of the package in the folder `crate_dir`.
///
/// If `Cargo.toml` contains no `name = "…"` for the package, the function returns the name of the folder.
pub(crate) fn package(crate_dir: &Path) -> String {
    let manifest = fs::read_to_string(crate_dir.join("Cargo.toml")).unwrap_or_default();
    let section = manifest.lines().map(str::trim).skip_while(|line| !line.starts_with("[package]")).skip(1);
    let mut settings =
        section.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once('='));
    let name = settings.find(|(key, _)| key.trim() == "name");
    let name = name.and_then(|(_, value)| value.split(['"', '\'']).nth(1)).map(str::to_string);
    name.unwrap_or_else(|| crate_dir.file_name().unwrap_or_default().to_string_lossy().into())
}

/// Returns the folder nearest to `start` that contains a file `name`. The function searches `start` and then
/// its parent folders.
pub(crate) fn ancestor_with(start: &Path, name: &str) -> Option<PathBuf> {
    start.ancestors().find(|folder| folder.join(name).is_file()).map(Path::to_path_buf)
}

/// Returns the root folder of the crate's workspace, or the crate's folder if the crate is in no workspace.
/// The function searches for a `Cargo.toml` with `[workspace]`. It does not search for `Cargo.lock`, because
/// this file does not exist before the first build.
pub(crate) fn workspace(crate_dir: &Path) -> &Path {
    let has_workspace = |folder: &&Path| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        manifest.lines().any(|line| line.trim_start().starts_with("[workspace"))
    };
    crate_dir.ancestors().find(has_workspace).unwrap_or(crate_dir)
}

/// Returns the target folder that contains the folder `out_dir`, the `OUT_DIR` of a build script. The format
/// of `OUT_DIR` is `<target>[/<triple>]/<profile>/build/…`.
///
/// The function searches for the profile folder, which contains cargo's lock file. It cannot search for
/// `CACHEDIR.TAG` in the target folder, because cargo writes this file only if cargo itself creates the
/// folder.
pub(crate) fn target_folder(out_dir: &Path, triple: &str) -> Option<PathBuf> {
    let locks = [".cargo-lock", ".cargo-build-lock"];
    let folder = locks.iter().find_map(|lock| ancestor_with(out_dir, lock))?;
    let folder = folder.parent()?;
    let folder = if folder.ends_with(triple) && !triple.is_empty() { folder.parent()? } else { folder };
    Some(folder.to_path_buf())
}

/// Returns the source paths that the first line of a dep-info file (`.d`) lists. The format of this line is
/// `target: source source …`.
pub(crate) fn dep_info(text: &str) -> Vec<PathBuf> {
    let Some((_, list)) = text.lines().next().and_then(|line| line.split_once(": ")) else {
        return Vec::new();
    };
    // In a dep-info file, a space in a path is written as `\ `.
    let list = list.replace("\\ ", "\0");
    list.split_whitespace().map(|path| PathBuf::from(path.replace('\0', " "))).collect()
}

/// Returns `sources` without files of the toolchain and of packages from a registry. The omitted files never
/// change.
pub(crate) fn own_sources(sources: Vec<PathBuf>) -> Vec<PathBuf> {
    let fixed = |path: &PathBuf| {
        let path = path.to_string_lossy();
        path.contains("/lib/rustlib/src/") || path.contains("/registry/src/")
    };
    sources.into_iter().filter(|path| !fixed(path)).collect()
}

/// Returns the files on which the PTX depends.
///
/// These files are the sources, the `Cargo.toml` files of the sources' crates and workspaces, `Cargo.lock`,
/// and the settings files of cargo and rustup.
pub(crate) fn inputs(sources: &[PathBuf], crate_dir: &Path) -> Vec<PathBuf> {
    let folders = sources.iter().filter_map(|path| path.parent()).chain([crate_dir]);
    let mut inputs: Vec<PathBuf> = folders.flat_map(manifests).collect();
    inputs.extend_from_slice(sources);
    inputs.extend(ancestor_with(crate_dir, "Cargo.lock").map(|folder| folder.join("Cargo.lock")));
    inputs.extend(settings(crate_dir));
    inputs.sort();
    inputs.dedup();
    inputs
}

/// Returns the cargo and rustup settings files that apply in the folder `crate_dir`.
pub(crate) fn settings(crate_dir: &Path) -> Vec<PathBuf> {
    let nearest = |name| ancestor_with(crate_dir, name).map(|folder| folder.join(name));
    let mut settings: Vec<_> =
        ["rust-toolchain.toml", "rust-toolchain"].into_iter().filter_map(nearest).collect();
    for name in [".cargo/config.toml", ".cargo/config"] {
        settings.extend(crate_dir.ancestors().map(|folder| folder.join(name)).filter(|path| path.is_file()));
    }
    settings
}

/// Returns the existing `.cargo` folders in the crate's folder and its parent folders, up to the workspace
/// root.
///
/// cargo must watch these folders, because someone may create a settings file in a `.cargo` folder. The
/// function omits a `.cargo` folder that is also cargo's home folder, because the packages in the home folder
/// change often.
pub(crate) fn settings_folders(crate_dir: &Path) -> Vec<PathBuf> {
    let root = ancestor_with(crate_dir, "Cargo.lock").unwrap_or_else(|| crate_dir.into());
    let folders = crate_dir.ancestors().take_while(|folder| folder.starts_with(&root));
    let folders = folders.map(|folder| folder.join(".cargo"));
    folders.filter(|folder| folder.is_dir() && !folder.join("registry").exists()).collect()
}

/// Returns the `Cargo.toml` files in `folder` and its parent folders, up to the `Cargo.toml` of the
/// workspace. Each of these files may set versions, features or profiles.
fn manifests(folder: &Path) -> Vec<PathBuf> {
    let is_workspace = |path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.trim_start().starts_with("[workspace"))
    };
    let mut manifests = Vec::new();
    for manifest in folder.ancestors().map(|folder| folder.join("Cargo.toml")).filter(|path| path.is_file()) {
        manifests.push(manifest);
        if manifests.last().is_some_and(|manifest| is_workspace(manifest)) {
            break;
        }
    }
    manifests
}

/// Rewrites the `.file` lines of a PTX text so that they contain no absolute path.
///
/// A path in the workspace becomes relative to the workspace root. A path in the toolchain's sources becomes
/// `rust/…`, and a path in a registry becomes `<crate>-<version>/…`. The PTX is embedded in binaries and
/// wheels, so it must not depend on the build machine.
pub(crate) fn relative_sources(ptx: &str, workspace: &Path) -> String {
    let workspace = format!("{}/", workspace.display());
    let mut text = String::with_capacity(ptx.len());
    for line in ptx.split_inclusive('\n') {
        match line.split_once('"').filter(|_| line.trim_start().starts_with(".file")) {
            Some((head, path)) => text.extend([head, "\"", &relative(path, &workspace)]),
            None => text.push_str(line),
        }
    }
    text
}

fn relative(path: &str, workspace: &str) -> String {
    if let Some(path) = path.strip_prefix(workspace) {
        return path.into();
    }
    if let Some((_, path)) = path.split_once("/lib/rustlib/src/rust/") {
        return format!("rust/{path}");
    }
    match path.split_once("/registry/src/").and_then(|(_, path)| path.split_once('/')) {
        Some((_index, path)) => path.into(),
        None => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dep_info_lists_the_sources() {
        let text = "/t/k.ptx: /w/k/src/lib.rs /w/a\\ b/src/x.rs\n\n/w/k/src/lib.rs:\n";
        assert_eq!(dep_info(text), [PathBuf::from("/w/k/src/lib.rs"), PathBuf::from("/w/a b/src/x.rs")]);
        assert!(dep_info("").is_empty());
    }

    #[test]
    fn a_package_has_the_name_of_its_manifest() {
        let folder = std::env::temp_dir().join(format!("cuda-builder-package-{}", process::id()));
        let name = |manifest: &str| {
            write_if_changed(&folder.join("Cargo.toml"), manifest).unwrap();
            package(&folder)
        };
        assert_eq!(name("[lib]\nname = \"a\"\n\n[package]\nversion = \"1\"\nname=\"b-c\" # d\n"), "b-c");
        assert_eq!(name("[package] # e\nname = 'f'\n"), "f");
        let fallback = folder.file_name().unwrap().to_str().unwrap();
        assert_eq!(name("[package]\nversion = \"1\"\n[lib]\nname = \"a\"\n"), fallback);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_target_folder_is_above_the_profile() {
        let root = std::env::temp_dir().join(format!("cuda-builder-target-{}", process::id()));
        for (profile, triple) in [("debug", ""), ("debug", "x86_64"), ("x86_64/release", "x86_64")] {
            let out_dir = root.join(profile).join("build/oxiwarp-0123/out");
            fs::create_dir_all(&out_dir).unwrap();
            fs::write(root.join(profile).join(".cargo-lock"), "").unwrap();
            assert_eq!(target_folder(&out_dir, triple), Some(root.clone()), "{profile}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_decides_the_ptx_is_an_input() {
        let root = std::env::temp_dir().join(format!("cuda-builder-inputs-{}", process::id()));
        let path = |name: &str| root.join("a b").join(name);
        let decides = [
            ".cargo/config.toml",
            "Cargo.lock",
            "Cargo.toml",
            "base/Cargo.toml",
            "base/src/lib.rs",
            "kernels/.cargo/config.toml",
            "kernels/Cargo.toml",
            "kernels/src/lib.rs",
            "rust-toolchain.toml",
        ]
        .map(path);
        for input in &decides {
            write_if_changed(input, if *input == path("Cargo.toml") { "[workspace]\n" } else { "" }).unwrap();
        }
        write_if_changed(&root.join("Cargo.toml"), "").unwrap();
        let toolchains = PathBuf::from("/r/lib/rustlib/src/rust/library/core/src/lib.rs");
        let sources = [path("kernels/src/lib.rs"), path("base/src/lib.rs"), toolchains];
        assert_eq!(inputs(&own_sources(sources.into()), &path("kernels")), decides);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn sources_name_no_folder_of_the_machine() {
        let ptx = "\t.file\t1 \"/w/kernels/src/lib.rs\"\n\t.file\t2 \"/h/.rustup/toolchains/n/lib/rustlib/src/rust/library/core/src/num.rs\"\n\t.file\t3 \"/h/.cargo/registry/src/index-1/half-2.7.1/src/lib.rs\"\n\tret;\n";
        let expected = "\t.file\t1 \"kernels/src/lib.rs\"\n\t.file\t2 \"rust/library/core/src/num.rs\"\n\t.file\t3 \"half-2.7.1/src/lib.rs\"\n\tret;\n";
        assert_eq!(relative_sources(ptx, Path::new("/w")), expected);
    }
}
