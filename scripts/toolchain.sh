#!/bin/sh
# Installs the toolchain that rust-toolchain.toml names, if it or one of its components is missing.
# rustup's automatic installation is not sufficient, because RUSTUP_AUTO_INSTALL=0 disables it.
set -eu
cd "$(dirname "$0")/.."
channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
components=$(sed -n 's/^components = \[\(.*\)\]/\1/p' rust-toolchain.toml | tr -d '",')

installed=$(rustup component list --installed --toolchain "$channel" 2>/dev/null || true)
missing=
for component in $components; do
    # rustup lists some components with the host's triple, for example clippy-x86_64-unknown-linux-gnu.
    echo "$installed" | grep -q "^$component" || missing="$missing $component"
done
if [ -n "$missing" ]; then
    echo "installing $channel:$missing"
    set -- "$channel" --profile minimal
    for component in $components; do set -- "$@" --component "$component"; done
    rustup toolchain install "$@"
fi
