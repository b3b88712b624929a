#!/bin/sh
# Builds every fuzzer and runs each for some time, one a core side by side, from its seeds:
#
#   tests/fuzz/run.sh [SECONDS] [NAME...]     60 seconds and all of them without
#
# What a run finds lies in build-fuzz/findings/NAME-crash-*; `build-fuzz/tests/fuzz/fuzz_NAME FILE` repeats it.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-60}
[ $# = 0 ] || shift
jobs=$(getconf _NPROCESSORS_ONLN)

cmake --preset fuzz >/dev/null
MAKEFLAGS='' cmake --build build-fuzz --parallel "$jobs" >/dev/null
mkdir -p build-fuzz/findings
if [ $# = 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        name=$(basename "$source" .c)
        set -- "$@" "${name#fuzz_}"
    done
fi

fuzz_one='
seconds=$1 name=$2
seeds=tests/fuzz/seeds/$name
[ -n "$(ls "$seeds")" ] || { echo "fuzz: $name has no seeds in $seeds"; exit 1; }
corpus=build-fuzz/corpus/$name
mkdir -p "$corpus"
log=build-fuzz/findings/$name.log
if build-fuzz/tests/fuzz/fuzz_$name "$corpus" "$seeds" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="build-fuzz/findings/$name-" -print_final_stats=1 >"$log" 2>&1; then
    echo "fuzz: $name: $(awk "/number_of_executed_units/ { print \$2 }" "$log") inputs, no finding"
else
    tail -n 40 "$log"
    echo "fuzz: $name failed; the whole log is $log"
    exit 1
fi
'
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 sh -c "$fuzz_one" fuzz "$seconds"
