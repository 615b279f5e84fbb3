//! Files that the builder reads and writes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, process};

use crate::{Error, PtxFile};

/// Writes `text`, unless the file already holds it: what depends on the file is then not rebuilt.
pub(crate) fn write_if_changed(path: &Path, text: &str) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::io("create the folder", folder))?;
    }
    // By a rename, because a debug and a release build may write the same file at the same time.
    let new = path.with_extension(format!("{}.new", process::id()));
    fs::write(&new, text).map_err(Error::io("write", &new))?;
    fs::rename(&new, path).map_err(Error::io("write", path))
}

/// Removes what is no longer made from the folders of these units' PTX: a unit may be renamed or deleted.
pub(crate) fn remove_others(units: &[PtxFile]) {
    let folders: BTreeSet<&Path> = units.iter().filter_map(|file| file.path.parent()).collect();
    for entry in folders.into_iter().flat_map(fs::read_dir).flatten().flatten() {
        let (path, ptx) = (entry.path(), Some(OsStr::new("ptx")));
        if path.extension() == ptx && units.iter().all(|file| file.path != path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// The nearest folder, from `start` upwards, that holds a file of this name.
pub(crate) fn ancestor_with(start: &Path, name: &str) -> Option<PathBuf> {
    start.ancestors().find(|folder| folder.join(name).is_file()).map(Path::to_path_buf)
}

/// The target folder above a build script's `OUT_DIR`, which is `<target>[/<triple>]/<profile>/build/…`: the
/// profile's folder is the one that cargo locks. (It tags the target folder itself only if it made it.)
pub(crate) fn target_folder(out_dir: &Path, triple: &str) -> Option<PathBuf> {
    let locks = [".cargo-lock", ".cargo-build-lock"];
    let folder = locks.iter().find_map(|lock| ancestor_with(out_dir, lock))?;
    let folder = folder.parent()?;
    let folder = if folder.ends_with(triple) && !triple.is_empty() { folder.parent()? } else { folder };
    Some(folder.to_path_buf())
}

/// The sources named in a dep-info file that cargo wrote: `target: source source …`.
pub(crate) fn dep_info(text: &str) -> Vec<PathBuf> {
    let Some((_, list)) = text.lines().next().and_then(|line| line.split_once(": ")) else {
        return Vec::new();
    };
    // A space within a path is written `\ `.
    let list = list.replace("\\ ", "\0");
    list.split_whitespace().map(|path| PathBuf::from(path.replace('\0', " "))).collect()
}

/// What decides the PTX besides the compiler's arguments: the sources that are not part of the
/// toolchain or the registry, the manifests of their crates and workspaces, the lock file, and cargo's settings.
pub(crate) fn inputs(sources: &[PathBuf], crate_dir: &Path) -> Vec<PathBuf> {
    let fixed = |path: &Path| {
        let path = path.to_string_lossy();
        path.contains("/lib/rustlib/src/") || path.contains("/registry/src/")
    };
    let mut inputs: Vec<PathBuf> = sources.iter().filter(|path| !fixed(path)).cloned().collect();
    let folders: Vec<PathBuf> =
        inputs.iter().filter_map(|path| path.parent()).map(Path::to_path_buf).collect();
    inputs.extend(folders.iter().map(PathBuf::as_path).chain([crate_dir]).flat_map(manifests));
    for name in ["Cargo.lock", "rust-toolchain.toml", "rust-toolchain"] {
        inputs.extend(ancestor_with(crate_dir, name).map(|folder| folder.join(name)));
    }
    for name in [".cargo/config.toml", ".cargo/config"] {
        inputs.extend(crate_dir.ancestors().map(|folder| folder.join(name)).filter(|path| path.is_file()));
    }
    inputs.sort();
    inputs.dedup();
    inputs
}

/// The manifests above a source, up to that of a workspace: versions, features and profiles may stand in any of them.
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

/// Rewrites the `.file` lines of a PTX text so that they name no folder of this machine: sources of the
/// workspace are relative to its root, the others start with `rust/` or with their crate's name.
///
/// PTX ends up inside binaries and wheels, and is to be the same wherever it is built.
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
        assert_eq!(inputs(&sources, &path("kernels")), decides);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn sources_name_no_folder_of_the_machine() {
        let ptx = "\t.file\t1 \"/w/kernels/src/lib.rs\"\n\t.file\t2 \"/h/.rustup/toolchains/n/lib/rustlib/src/rust/library/core/src/num.rs\"\n\t.file\t3 \"/h/.cargo/registry/src/index-1/half-2.7.1/src/lib.rs\"\n\tret;\n";
        let expected = "\t.file\t1 \"kernels/src/lib.rs\"\n\t.file\t2 \"rust/library/core/src/num.rs\"\n\t.file\t3 \"half-2.7.1/src/lib.rs\"\n\tret;\n";
        assert_eq!(relative_sources(ptx, Path::new("/w")), expected);
    }
}
