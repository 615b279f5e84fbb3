#!/usr/bin/env bash
# What a bundle runs on a machine with python3, torch and a driver; no Rust, network or checkout is needed.
#   ./run.sh test [pytest options]       the Rust test programs, then the Python tests; -n 6: six at a time
#   ./run.sh python [pytest options]     the Python tests alone
#   ./run.sh bench [bench.py options]    criterion, then oxiwarp beside torch and its peers
#   ./run.sh bench-rust [bench options]  every op beside a device copy, without Python packages; --op rope, --compare old.csv
#   ./run.sh exactness [options]         every op's bits beside those of the models' own classes
#   ./run.sh curve [options]             time against bytes, from one row to more than 2^32 elements
#   ./run.sh attention [options]         attention beside torch's backends
#   ./run.sh models [bench options]      whole models, stock, compiled and patched; --model flux
#   ./run.sh sanitize [test filter]      compute-sanitizer's four tools on each test of test-kernels (default: sm_90::)
#   ./run.sh tune [rms_norm …]           launch configurations of every op, checked and timed; --seconds N, else 110
#   ./run.sh demo [demo options]         a diffusers model, stock and patched
# Logs and results go to $OUT, else ./out. The exit code is 0 if every step passed.
set -uo pipefail
unset CDPATH # with it, cd says where it went
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
mkdir -p "${OUT:-out}" && out=$(cd "${OUT:-out}" && pwd) || exit 1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT || exit 1
OXIWARP_COMMIT=$(cat "$here/COMMIT")
export OXIWARP_COMMIT PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
failed=0

# Runs a command with its output on the terminal and in a log, then says how it went.
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

# Unpacks the test programs and benchmarks, bin, and the PTX of every architecture, ptx.
programs() {
    "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' \
        "$here/programs.tar.xz" "$work" || exit 1
}

# Puts the carried packages before the machine's own.
packages() {
    "$python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps --no-compile --no-cache-dir \
        --target "$work/site" "$here"/wheels/*.whl || exit 1
    export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
}

# One test under one tool of compute-sanitizer: a line that says how it went, and a log where it did not go well. Errors that the
# tests provoke on purpose (a module that does not load, no memory) are returned by the driver and are not faults of a kernel:
# --report-api-errors no.
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

# Copies its input. Each line goes to stderr as well, with its number: progress.
count_lines() {
    local line number=0
    while IFS= read -r line; do
        number=$((number + 1))
        echo "$1, $number of $2: $line" >&2
        echo "$line"
    done
}

# One tool over all tests whose names have the filter in them. A tool slows a process down, not those beside it: each test has its
# own, one for each core.
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
# Plugins that happen to be on the machine stay out; the one that runs tests side by side is carried.
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
exactness | curve | attention)
    packages
    step "$command" "$python" "$here/benches/python/$command.py" --out "$out/bench" "$@"
    ;;
models)
    packages
    step models "$python" -m oxiwarp bench --out "$out/bench" "$@"
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
    sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
exit $failed
