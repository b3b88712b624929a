#!/bin/sh
# compile.sh CLANG PYTHON VERSION FILE.metal BASE: what CMake does with a .metal file before it generates code. Makes
# BASE.cpp and BASE.d; fails with the compiler's words if the file is no Metal, address spaces included.
set -eu
clang=$1 python=$2 version=$3 source=$4 base=$5
emulator=$(cd "$(dirname "$0")" && pwd)

preprocess() {
    "$clang" -x c++ -E "-D__METAL_VERSION__=$version" -isystem "$emulator/include" -I "$(dirname "$source")" "$@" "$source"
}
preprocess -MD -MT "$base.cpp" -MF "$base.d" -o "$base.ii"
"$python" "$emulator/prepare.py" "$base.ii" "$base.cpp"
preprocess -DEMULATOR_SYNTAX -o "$base.syntax.ii"
"$python" "$emulator/prepare.py" --syntax "$base.syntax.ii" "$base.syntax.cpp"
# Another architecture only because its clang has half vectors of its own; nothing is generated.
"$clang" --target=aarch64-linux-gnu -fsyntax-only -std=c++20 -Xclang -cl-single-precision-constant -Wall -Wvla -Werror=vla -DEMULATOR_SYNTAX -Wno-unused \
    -Wno-unknown-attributes -Wno-unknown-pragmas -Wno-duplicate-decl-specifier -Wno-user-defined-literals \
    -Wno-undefined-internal -Wno-unneeded-internal-declaration '-Ddevice=__attribute__((address_space(1)))' \
    '-Dconstant=const __attribute__((address_space(2)))' '-Dthreadgroup=__attribute__((address_space(3)))' -Dthread= \
    "$base.syntax.cpp"
