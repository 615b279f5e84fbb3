#!/usr/bin/env bash
# Makes the packages of the published crates in target/package. Then builds a project from them as a user would:
# on stable Rust, without a CUDA installation, with the one setting that the README of `oxiwarp` names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
crates=(oxiwarp-cuda-std oxiwarp-cuda-builder oxiwarp-kernels-gpu oxiwarp-driver oxiwarp-runtime oxiwarp)
# The limit of the package index, in bytes.
limit=$((10 * 1024 * 1024))
stable=${STABLE:-stable}
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
for toolchain in "$stable" "$oldest"; do
    rustup run "$toolchain" rustc --version >/dev/null 2>&1 ||
        rustup toolchain install --profile minimal --no-self-update "$toolchain"
done

# The build script of `oxiwarp` leaves the compressed PTX in its OUT_DIR. The package contains a copy. The release build
# compresses more.
out=$(cargo check --quiet --release -p oxiwarp --message-format=json |
    sed -n '/"reason":"build-script-executed"/ { /oxiwarp@/ s/.*"out_dir":"\([^"]*\)".*/\1/p }' | tail -1)
[ -f "$out/ptx.rs" ] || { echo "crates: the build script of oxiwarp left no PTX in '$out'" >&2; exit 1; }
user=$(mktemp -d)
target=$PWD/target/crates
trap 'rm -rf host/ptx "$user"' EXIT
rm -rf host/ptx && mkdir host/ptx && cp "$out"/ptx.rs "$out"/*.lzma host/ptx

cargo package --allow-dirty "${crates[@]/#/--package=}"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
mkdir "$user/crates"
for crate in "${crates[@]}"; do
    file=target/package/$crate-$version.crate
    size=$(stat -c %s "$file")
    echo "$crate: $((size / 1024)) KB"
    [ "$size" -lt "$limit" ] || { echo "crates: $file has $size bytes, the limit is $limit" >&2; exit 1; }
    tar -xzf "$file" -C "$user/crates"
done

patch="[patch.crates-io]
$(for crate in "${crates[@]}"; do echo "$crate = { path = \"$user/crates/$crate-$version\" }"; done)"
mkdir -p "$user/project/src" "$user/project/.cargo"
cd "$user/project"
sed -n '/^```rust$/,/^```$/ { /^```/ d; p }' "$user/crates/oxiwarp-$version/README.md" >src/main.rs
sed -n '/^```toml$/,/^```$/ { /^```/ d; p }' "$user/crates/oxiwarp-$version/README.md" >.cargo/config.toml
cat >Cargo.toml <<TOML
[package]
name = "project"
edition = "2024"

[dependencies]
oxiwarp = "$version"

$patch
TOML
for variable in CUDA_LIBRARY_PATH CUDA_PATH CUDA_ROOT CUDA_TOOLKIT_ROOT_DIR RUSTUP_TOOLCHAIN; do unset "$variable"; done
# The target folder is not removed, so that a second run is fast.
export CARGO_TARGET_DIR=$target
cargo "+$stable" run --quiet
cargo "+$oldest" check --quiet
# The documentation host sets this variable and this flag. cargo documents several packages only of one workspace.
printf '[workspace]\nresolver = "3"\nmembers = ["crates/*"]\n%s\n' "$patch" >"$user/Cargo.toml"
mkdir "$user/.cargo" && cp .cargo/config.toml "$user/.cargo"
cd "$user"
DOCS_RS=1 RUSTDOCFLAGS="--cfg docsrs -D warnings" cargo "+$stable" doc --quiet --no-deps "${crates[@]/#/--package=}"
echo "a project on $stable and on Rust $oldest builds from the packages"
