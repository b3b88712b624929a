#!/bin/sh
# The headers and libraries of a Debian for arm64 that Calla is built with, unpacked into a folder: for a cross
# build, whose tests QEMU runs. Needs a Debian of any architecture; installs nothing.
#
#   tools/aarch64/sysroot.sh FOLDER
set -eu
[ $# = 1 ] || { echo "usage: tools/aarch64/sysroot.sh FOLDER" >&2; exit 2; }
packages="libc6-dev libgcc-s1 libjansson-dev libutf8proc-dev libedit-dev libmicrohttpd-dev libcmocka-dev"
[ "$(cat "$1/packages" 2>/dev/null)" != "$packages" ] || exit 0

# An apt of its own, of that architecture, for which nothing is installed yet.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
: >"$scratch/status"
apt() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Acquire::Languages=none \
        -o APT::Sandbox::User=root -o Dir::State::lists="$scratch/lists" -o Dir::State::status="$scratch/status" \
        -o Dir::Cache="$scratch/cache" "$@"
}
apt update
# shellcheck disable=SC2086 # the list is meant to be split
apt install --yes --no-install-recommends --download-only $packages

rm -rf "$1"
mkdir -p "$1"
for package in "$scratch"/cache/archives/*.deb; do
    dpkg -x "$package" "$1"
done
# A link to /lib/... leads to this machine's.
find "$1" -type l -lname '/*' | while read -r link; do
    ln -sfn "$1$(readlink "$link")" "$link"
done
echo "$packages" >"$1/packages"
