#!/bin/sh
# test_misuse.sh CLANG PYTHON OPTIONS...: every file of misuse/ is refused, with the words of its first line.
set -eu
clang=$1 python=$2
shift 2
emulator=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
for source in "$emulator"/misuse/*.metal; do
    expected=$(sed -n '1s,^// expect: ,,p' "$source")
    [ -n "$expected" ]
    if "$emulator/compile.sh" "$clang" "$python" 400 "$source" "$scratch/out" >"$scratch/words" 2>&1 &&
        "$clang" "$@" -c "$scratch/out.cpp" -o "$scratch/out.o" >>"$scratch/words" 2>&1; then
        echo "$source: it was accepted; expected '$expected'"
        failed=1
    elif ! grep -qF -- "$expected" "$scratch/words"; then
        echo "$source: expected '$expected', but the compiler said:"
        cat "$scratch/words"
        failed=1
    fi
done
exit $failed
