#!/bin/sh
# Installs what Calla needs and nothing that is already there.
#
#   tools/setup.sh build           what `make` needs: a compiler, CMake, pkg-config, four libraries
#   tools/setup.sh test            the same, cmocka, Python and on Linux clang; makes .venv with the packages the tests
#                                  use
#   tools/setup.sh ci              the same, clang's sanitizers and clang-tidy, and gcc and QEMU for 64-bit ARM
#   tools/setup.sh --check LEVEL   installs nothing; says what is missing and fails if anything is
#
# Every need is a command that succeeds when the need is met, so a machine that has everything is left alone
# and needs no network. What is missing comes from apt (Debian, Ubuntu) or Homebrew (macOS).
set -eu
cd "$(dirname "$0")/.."

check_only=false
if [ "${1:-}" = --check ]; then
    check_only=true
    shift
fi
level=${1:-build}
case $level in
build | test | ci) ;;
*)
    echo "setup: unknown level '$level'; use build, test or ci" >&2
    exit 2
    ;;
esac

case $(uname -s) in
Darwin) system=brew ;;
*) if command -v apt-get >/dev/null; then system=apt; else system=other; fi ;;
esac
if [ $system = brew ] && command -v brew >/dev/null; then
    # Homebrew keeps its libedit out of the way of the one in macOS.
    PKG_CONFIG_PATH="$(brew --prefix)/opt/libedit/lib/pkgconfig:${PKG_CONFIG_PATH:-}"
    export PKG_CONFIG_PATH
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

have_c() { printf '#include <stdio.h>\n' | cc -x c -fsyntax-only -; }
have_cmake() { # 3.21 or later
    cmake --version | awk '/^cmake version/ { split($3, v, "."); ok = v[1] > 3 || v[1] == 3 && v[2] >= 21 } END { exit !ok }'
}
have_library() { pkg-config --exists "$1"; }
have_command() { command -v "$1"; }
have_python() { python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'; }
have_sanitizers() {
    printf 'int LLVMFuzzerTestOneInput(const void *d, unsigned long n);\nint LLVMFuzzerTestOneInput(const void *d, unsigned long n) { return d && n ? 0 : 0; }\n' |
        clang -x c -fsanitize=fuzzer,address,undefined - -o "$scratch/fuzzer" &&
        printf 'int main(void) { return 0; }\n' | clang -x c -fsanitize=thread - -o "$scratch/threads"
}

# need PACKAGES-OF-APT PACKAGES-OF-BREW CHECK...: notes the packages of a need that is not met ("-": none).
need() {
    apt_packages=$1 brew_packages=$2
    shift 2
    "$@" >/dev/null 2>&1 && return
    case $system in
    brew) [ "$brew_packages" = - ] || missing="$missing $brew_packages" ;;
    *) [ "$apt_packages" = - ] || missing="$missing $apt_packages" ;;
    esac
}

needs() {
    missing=
    need "gcc libc6-dev" - have_c
    need make - have_command make
    need cmake cmake have_cmake
    need pkg-config pkgconf have_command pkg-config
    need libjansson-dev jansson have_library jansson
    need libutf8proc-dev utf8proc have_library libutf8proc
    need libedit-dev libedit have_library libedit
    need libmicrohttpd-dev libmicrohttpd have_library libmicrohttpd
    [ $level = build ] && return
    need libcmocka-dev cmocka have_library cmocka
    need curl curl have_command curl
    need "python3 python3-venv" python3 have_python
    need clang - have_command clang # compiles the Metal kernels for their emulator
    [ $level = test ] && return
    need git git have_command git
    need clang-tidy llvm have_command clang-tidy
    need libclang-rt-dev - have_sanitizers
    need llvm llvm have_command llvm-symbolizer
    need "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" - have_command aarch64-linux-gnu-gcc
    need qemu-user - have_command qemu-aarch64
}

install_apt() {
    run=
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "setup: run this as root: apt-get install$missing" >&2
            exit 1
        fi
        run=sudo
    fi
    $run apt-get update -qq
    # shellcheck disable=SC2086 # the list is meant to be split
    $run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}

install_brew() {
    if ! command -v brew >/dev/null; then
        echo "setup: Homebrew is missing: install it from https://brew.sh, then run this again" >&2
        exit 1
    fi
    # shellcheck disable=SC2086 # the list is meant to be split
    brew install --quiet $missing
}

if [ $system = brew ] && ! have_c >/dev/null 2>&1; then
    echo "setup: the C compiler is missing: run 'xcode-select --install', then this again" >&2
    exit 1
fi
if [ $system = brew ] && [ $level = ci ]; then
    echo "setup: the checks of level 'ci' run on Linux; on macOS use 'make test'" >&2
    exit 1
fi

needs
if [ -n "$missing" ]; then
    if $check_only; then
        echo "missing:$missing (run 'make setup' to install)" >&2
        exit 1
    fi
    echo "setup: installing$missing"
    case $system in
    apt) install_apt >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; } ;;
    brew) install_brew ;;
    other)
        echo "setup: neither apt nor Homebrew is here; install what these Debian packages hold:$missing" >&2
        exit 1
        ;;
    esac
    needs
    if [ -n "$missing" ]; then
        echo "setup: installed, but still not found in PATH or by pkg-config:$missing" >&2
        exit 1
    fi
fi

# The tests' Python packages live in .venv; the copy of the list in there says what it holds.
if [ $level != build ] && ! { cmp -s tests/requirements.txt .venv/requirements.txt && .venv/bin/python -c ''; }; then
    if $check_only; then
        echo "missing: Python packages of tests/requirements.txt (run 'make test' to install)" >&2
        exit 1
    fi
    echo "setup: making .venv with the packages of tests/requirements.txt"
    python3 -m venv --clear .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/requirements.txt
    cp tests/requirements.txt .venv/requirements.txt
fi
