#!/bin/sh
# tests/metal_emulator/sweep.sh [FIRST [LAST]]: the Metal tests of ops in the emulator under seeds FIRST to LAST, 1 to 16
# unless given. Four seeds in turn are four ways to order lanes; which of the orders of sums and layouts of cooperative
# tensors goes with a seed is dealt out so that every pair of two of the three comes up; the tests for other machines (_MAX_BUFFER
# and so on) are left out. Forty minutes of one core: not a part of ctest, but for who changes kernels. Needs what `cmake --build build` makes.
set -u
cd "$(dirname "$0")/../.." || exit 1
first=${1:-1} last=${2:-16} failed=0
for seed in $(seq "$first" "$last"); do
    case $((seed % 3)) in
    0) sums=m5 ;;
    1) sums=sequential ;;
    2) sums=reversed ;;
    esac
    padded=$((seed / 5 % 2))
    if CALLA_EMULATOR_SEED=$seed CALLA_EMULATOR_SUMS=$sums CALLA_EMULATOR_PADDED_LAYOUT=$padded \
        ctest --test-dir "${BUILD:-build}" --label-regex metal --tests-regex metal_test_ --exclude-regex "gpu_model|_[A-Z]" \
        --output-on-failure; then
        verdict=passed
    else
        verdict=FAILED failed=$((failed + 1))
    fi
    echo "seed $seed, sums $sums, layout $padded: $verdict"
done
echo "$failed of $((last - first + 1)) seeds failed"
[ $failed = 0 ]
