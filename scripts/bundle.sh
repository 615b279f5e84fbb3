#!/usr/bin/env bash
# Makes dist/bundle: the tests and benchmarks of this checkout, for a machine with a GPU, python3 and torch. This
# machine needs no Rust, network or checkout. `make bundle` builds the wheel first. PYTHON names a Python with pip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
bundle=dist/bundle
limit_mb=55

shopt -s nullglob
wheel=(dist/oxiwarp-*.whl)
[ ${#wheel[@]} -eq 1 ] || { echo "bundle: expected one dist/oxiwarp-*.whl, found ${#wheel[@]}: run make wheel" >&2; exit 1; }
ptx=target/ptx/oxiwarp-kernels-gpu
[ -d "$ptx" ] || { echo "bundle: there is no $ptx: run make ptx" >&2; exit 1; }

rm -rf "$bundle"
mkdir -p "$bundle"/{wheels,tests,benches,scripts}
unpacked=$(mktemp -d) && trap 'rm -rf "$unpacked"' EXIT
mkdir "$unpacked"/{bin,ptx}
cp "${wheel[0]}" "$bundle/wheels"
"$python" -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: \
    --python-version 3.11 --implementation py --abi none --platform any \
    --dest "$bundle/wheels" --requirement scripts/bundle-wheels.txt

# Builds programs with cargo and copies them to bin/. cargo's messages name the files. Test "kernels" becomes
# bin/test-kernels, the unit tests of library "oxiwarp" become bin/test-oxiwarp, and bench "kernels" becomes
# bin/bench-kernels. A binary keeps its name: bin/bench, bin/tune.
programs() {
    cargo "$@" --release --locked --quiet --message-format=json |
        "$python" -c '
import json, sys
for message in map(json.loads, sys.stdin):
    if message.get("reason") == "compiler-message":
        sys.stderr.write(message["message"].get("rendered") or "")
    if path := message.get("executable"):
        name, kind = message["target"]["name"], message["target"]["kind"][0]
        print(path, {"bin": "", "lib": "test-"}.get(kind, f"{kind}-") + name)
' |
        while read -r program name; do
            cp "$program" "$unpacked/bin/$name"
            strip "$unpacked/bin/$name"
        done
}
programs build -p oxiwarp-tests -p oxiwarp-benches --test kernels --bench kernels --bins
programs test --no-run -p oxiwarp --lib
programs test --no-run -p own-kernel --test l2_normalize

# Every program contains all PTX. In one archive, xz stores the PTX only once, because its dictionary is larger
# than a program.
cp -r "$ptx" "$unpacked/ptx"
"$python" -c '
import lzma, sys, tarfile
how = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]
with lzma.open(sys.argv[2], "wb", filters=how) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
    for part in ("bin", "ptx"):
        archive.add(f"{sys.argv[1]}/{part}", part)
' "$unpacked" "$bundle/programs.tar.xz"
cp -r tests/python tests/shapes.json "$bundle/tests"
cp -r benches/python "$bundle/benches"
find "$bundle" -name __pycache__ -prune -exec rm -r {} +
cp scripts/multi_gpu.py "$bundle/scripts"
cp scripts/run.sh "$bundle/run.sh"
git describe --always --dirty --abbrev=40 --exclude='*' >"$bundle/COMMIT" 2>/dev/null || echo unknown >"$bundle/COMMIT"

size_mb=$(($(du -sk "$bundle" | cut -f1) / 1024 + 1))
du -sk "$bundle"/* | sort -rn | awk '{ sub(".*/", "", $2); printf "%8.1f MB  %s\n", $1 / 1024, $2 }'
echo "$bundle: $size_mb MB, commit $(cat "$bundle/COMMIT"); there: ./run.sh, which prints what it does"
[ "$size_mb" -lt "$limit_mb" ] || { echo "bundle: $size_mb MB, must be under $limit_mb MB" >&2; exit 1; }
