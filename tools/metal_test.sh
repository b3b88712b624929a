#!/bin/sh
# The Metal backend on a Mac, from the compiler to whole replies; `make metal-test`.
#
#   tools/metal_test.sh            all stages
#   tools/metal_test.sh STAGE...   these alone: machine languages build ops layers probe text
#
# Every stage runs, whatever became of the ones before; the last lines count them. All that is said is also kept in
# build/metal_test.log, which belongs into a report. This script has not run on a Mac yet.
set -u
cd "$(dirname "$0")/.." || exit 1
if [ "$(uname -s)" != Darwin ]; then
    echo "metal_test: this wants a Mac; elsewhere 'ctest --preset default -L metal' runs the kernels in an emulator" >&2
    exit 1
fi
jobs=$(getconf _NPROCESSORS_ONLN)
mkdir -p build
log=build/metal_test.log
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
kernels=src/backend/metal/kernels
calla=build/calla

stage_machine() {
    sw_vers
    sysctl -n machdep.cpu.brand_string hw.memsize iogpu.wired_limit_mb
    system_profiler SPDisplaysDataType | grep -E 'Chipset|Cores|Metal'
    git log -1 --format='commit %H'
    xcrun -sdk macosx --show-sdk-version
    xcrun -sdk macosx metal --version || echo "no Metal compiler: xcodebuild -downloadComponent MetalToolchain"
}

# Whether there is a Metal compiler that takes the version of the language; "": any.
takes() {
    printf 'kernel void nothing() {}\n' >"$scratch/nothing.metal"
    xcrun -sdk macosx metal ${1:+"-std=metal$1"} -c "$scratch/nothing.metal" -o "$scratch/nothing.air" >/dev/null 2>&1
}

# Every file for each version of the language that it is for, and all of them as the one text that is compiled at the
# first start where there is no Metal compiler.
compile() { # VERSION FILE
    if xcrun -sdk macosx metal "-std=metal$1" -fno-fast-math -Wall -Wextra -c "$2" -o "$scratch/out.air" 2>"$scratch/words"; then
        [ ! -s "$scratch/words" ] || { echo "warnings: $2 as metal$1" && cat "$scratch/words"; }
    else
        echo "FAILED: $2 as metal$1"
        cat "$scratch/words"
        return 1
    fi
}
compile_text() { # VERSION NAME FILES...
    version=$1 name=$2
    shift 2
    [ -e "$1" ] || return 0
    list=$(printf '%s;' "$@")
    cmake -D "KERNELS=${list%;}" -D "TEXT=$scratch/$name.metal" -P src/backend/metal/embed.cmake &&
        compile "$version" "$scratch/$name.metal"
}
stage_languages() {
    if ! takes ""; then
        echo "not run: there is no Metal compiler (xcodebuild -downloadComponent MetalToolchain)"
        return 0
    fi
    failures=0
    set -- # the files of the library for every GPU
    for file in "$kernels"/*.metal; do
        case $file in */tensor_*) continue ;; esac
        set -- "$@" "$file"
    done
    for version in 3.1 3.2 4.0; do
        takes $version || { echo "not tried: this compiler has no Metal $version" && continue; }
        for file; do
            compile $version "$file" || failures=$((failures + 1))
        done
        compile_text $version kernels "$@" || failures=$((failures + 1))
    done
    if takes 4.0; then
        for file in "$kernels"/tensor_*.metal tests/metal_emulator/clean/*.metal; do
            [ ! -e "$file" ] || compile 4.0 "$file" || failures=$((failures + 1))
        done
        compile_text 4.0 tensor_kernels "$kernels"/tensor_*.metal || failures=$((failures + 1))
    fi
    echo "$failures of the compilations failed"
    [ "$failures" = 0 ]
}

stage_build() {
    tools/setup.sh test && cmake --preset default && cmake --build build --parallel "$jobs"
}

# Op by op against the reference, on the GPU alone.
ops() {
    "$calla" info --backend metal >/dev/null || return 1 # else the tests would find no GPU, and pass
    CALLA_TEST_ONLY=metal ctest --test-dir build --output-on-failure --no-tests=error --label-regex ops \
        --exclude-regex 'kernels|host_kv|cuda|backend_memory'
}
stage_ops() { ops; }

# The same with the system's checks of calls and of kernels. A fault that only these name may also be theirs.
stage_layers() {
    MTL_DEBUG_LAYER=1 MTL_DEBUG_LAYER_ERROR_MODE=assert MTL_SHADER_VALIDATION=1 \
        MTL_SHADER_VALIDATION_REPORT_TO_STDERR=1 ops
}

# Which shapes of tensor operations this GPU takes, whether they are right, how they lie over the lanes.
stage_probe() { build/tests/metal_probe tests/metal_probe/probe.metal; }

# Greedy replies as on the processor.
stage_text() {
    differences=0
    while read -r prompt; do
        on_cpu=$("$calla" run --backend cpu --temperature 0 --max-tokens 64 "$prompt") || return 1
        on_gpu=$("$calla" run --backend metal --temperature 0 --max-tokens 64 "$prompt") || return 1
        if [ "$on_cpu" != "$on_gpu" ]; then
            differences=$((differences + 1))
            printf 'DIFFERENT: %s\n  cpu:   %s\n  metal: %s\n' "$prompt" "$on_cpu" "$on_gpu"
        fi
    done <<END
What is 17 plus 25?
What is the capital of France?
My name is Ada. What is my name?
Count from one to ten.
What is 9 times 8?
What colour is the sky?
END
    "$calla" info --backend metal | grep -A 3 '^Backend'
    echo "$differences of 6 replies differ"
    [ $differences = 0 ]
}

passed=0 failed=0 summary=
[ $# != 0 ] || : >"$log"
[ $# != 0 ] || set -- machine languages build ops layers probe text
for stage; do
    case $stage in
    machine | languages | build | ops | layers | probe | text) ;;
    *)
        echo "metal_test: there is no stage '$stage'" >&2
        exit 2
        ;;
    esac
    echo "=== $stage" | tee -a "$log"
    { "stage_$stage" 2>&1 </dev/null && : >"$scratch/passed"; } | tee -a "$log"
    if [ -e "$scratch/passed" ]; then
        rm "$scratch/passed"
        verdict=passed passed=$((passed + 1))
    else
        verdict=FAILED failed=$((failed + 1))
    fi
    summary="$summary$stage $verdict
"
done
printf '\n%s%s passed, %s failed; all of it is in %s\n' "$summary" "$passed" "$failed" "$log" | tee -a "$log"
[ "$failed" = 0 ]
