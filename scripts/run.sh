#!/usr/bin/env bash
# Runs a bundle's tests and benchmarks. They need python3, torch and a driver, but no Rust, network or checkout.
#   ./run.sh test [pytest options]       the Rust test programs, then the Python tests; -n 6: six processes
#   ./run.sh python [pytest options]     only the Python tests
#   ./run.sh bench [bench.py options]    criterion, then oxiwarp compared with torch, Liger and QuACK
#   ./run.sh bench-rust [bench options]  every op compared with a copy; --op rope, --compare old.csv
#   ./run.sh exactness [options]         the bits of every op compared with the models' classes
#   ./run.sh curve [options]             time against bytes, from one row to more than 2^32 elements
#   ./run.sh attention [options]         attention compared with torch's backends
#   ./run.sh products [options]          matrix products in long windows, with clock and power
#   ./run.sh models [bench options]      whole models, unpatched, compiled and patched; --model flux
#   ./run.sh pipelines [bench options]   whole pipelines, prompt to picture; --pipeline ltx
#   ./run.sh cold-start [options]        the first step in a new process, with an empty cache of PTX
#   ./run.sh multi-gpu [options]         checks and times of two GPUs with NCCL; --check flux
#   ./run.sh sanitize [test filter]      compute-sanitizer's four tools on each kernel test (default: sm_90::)
#   ./run.sh tune [rms_norm …]           checks and times launch configurations; --seconds N (default: 110)
#   ./run.sh demo [demo options]         a diffusers model, unpatched and patched
# Logs and results go to $OUT (default: ./out). The exit code is 0 if every step passed.
set -uo pipefail
unset CDPATH # with CDPATH, cd prints its target
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
mkdir -p "${OUT:-out}" && out=$(cd "${OUT:-out}" && pwd) || exit 1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT || exit 1
OXIWARP_COMMIT=$(cat "$here/COMMIT")
export OXIWARP_COMMIT PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
failed=0

# Runs a command with its output on the terminal and in a log, then prints whether it succeeded.
step() {
    local name=$1 start=$SECONDS code
    shift
    "$@" 2>&1 | tee "$out/$name.log"
    code=${PIPESTATUS[0]}
    if [ "$code" -eq 0 ]; then
        echo "== $name: ok ($((SECONDS - start)) s)"
    else
        echo "== $name: FAILED with exit code $code ($((SECONDS - start)) s, $out/$name.log)"
        failed=1
    fi
}

# Unpacks the test programs and benchmarks (bin), and the PTX of every architecture (ptx).
programs() {
    "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' \
        "$here/programs.tar.xz" "$work" || exit 1
}

# Puts the bundle's Python packages before the machine's packages.
packages() {
    "$python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps --no-compile --no-cache-dir \
        --target "$work/site" "$here"/wheels/*.whl || exit 1
    export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
}

# Runs one test under one tool of compute-sanitizer. Prints a line with the result, and keeps the log if the
# test failed. `--report-api-errors no`: tests provoke driver errors on purpose (an invalid module, no memory).
# These errors are not faults of a kernel.
sanitize_test() {
    local tool=$1 test=$2 code log=$out/sanitize-$1-${2//::/-}.log
    timeout "${SANITIZE_SECONDS:-85}" compute-sanitizer --tool "$tool" --error-exitcode 99 --report-api-errors no \
        "$work/bin/test-kernels" --exact "$test" >"$log" 2>&1
    code=$?
    if [ $code -eq 0 ] && grep -q 'test result: ok\. 1 passed' "$log"; then
        rm "$log"
        echo "$test: clean"
    else
        [ $code -ne 124 ] || echo "did not end within ${SANITIZE_SECONDS:-85} s" >>"$log"
        echo "$test: FAILED ($code), $(grep -oE '(ERROR|RACECHECK) SUMMARY: .*|did not end .*' "$log" | paste -sd ';'), $log"
    fi
}

# Copies its input to stdout. Each line also goes to stderr with its number, to show the progress.
count_lines() {
    local line number=0
    while IFS= read -r line; do
        number=$((number + 1))
        echo "$1, $number of $2: $line" >&2
        echo "$line"
    done
}

# Runs one tool on all tests whose names contain the filter. A tool slows down only its own process, so each
# test has a separate process. As many processes run at a time as there are cores.
sanitize() {
    local tool=$1 filter=$2 start=$SECONDS log=$out/sanitize-$1.log clean all
    export -f sanitize_test
    export out work
    "$work/bin/test-kernels" --list "$filter" 2>/dev/null | sed -n 's/: test$//p' >"$work/tests"
    all=$(wc -l <"$work/tests")
    xargs -P "$(nproc)" -I{} bash -c 'sanitize_test "$@"' bash "$tool" {} <"$work/tests" |
        count_lines "$tool" "$all" | sort >"$log"
    clean=$(grep -c ': clean$' "$log")
    [ "$clean" -eq "$all" ] && [ "$all" -gt 0 ] || failed=1
    echo "== $tool: $clean of $all tests clean, $((SECONDS - start)) s"
    grep -v ': clean$' "$log"
}

command=${1:-}
[ $# -eq 0 ] || shift
# Disables the machine's pytest plugins. The bundle contains xdist, which runs tests in parallel.
pytests() {
    OXIWARP_PTX_DIR=$work/ptx PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 step python \
        "$python" -m pytest -p xdist.plugin "$here/tests/python" "$@"
}

case $command in
test)
    packages
    programs
    step rust-oxiwarp "$work/bin/test-oxiwarp"
    step rust-kernels "$work/bin/test-kernels"
    step rust-own-kernel "$work/bin/test-l2_normalize"
    pytests "$@"
    ;;
python)
    packages
    programs
    pytests "$@"
    ;;
bench)
    packages
    programs
    CRITERION_HOME=$work/criterion step criterion "$work/bin/bench-kernels" --bench
    step bench "$python" "$here/benches/python/bench.py" --out "$out/bench" "$@"
    ;;
bench-rust)
    programs
    step bench-rust "$work/bin/bench" --csv "$out/bench.csv" "$@"
    ;;
exactness | curve | attention | products)
    packages
    step "$command" "$python" "$here/benches/python/$command.py" --out "$out/bench" "$@"
    ;;
models)
    packages
    step models "$python" -m oxiwarp bench --out "$out/bench" "$@"
    ;;
pipelines)
    packages
    step pipelines "$python" -m oxiwarp bench --out "$out/bench" "$@"
    ;;
cold-start)
    packages
    step cold-start "$python" "$here/benches/python/cold_start.py" --out "$out/bench" "$@"
    ;;
multi-gpu)
    packages
    step multi-gpu "$python" "$here/scripts/multi_gpu.py" --out "$out" "$@"
    ;;
sanitize)
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not on the PATH" >&2; exit 1; }
    programs
    for tool in memcheck racecheck initcheck synccheck; do sanitize "$tool" "${1:-sm_90::}"; done
    ;;
tune)
    programs
    step tune "$work/bin/tune" --out "$out" "$@"
    ;;
demo)
    packages
    step demo "$python" -m oxiwarp demo --out "$out/demo.png" "$@"
    ;;
*)
    sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
exit $failed
