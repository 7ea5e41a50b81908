#!/usr/bin/env bash
# Makes a Python for aarch64 that qemu runs on this machine, of Debian's packages, and prints the path of the program that
# starts it. So do environments of it, made without pip: uv installs into them, and is not emulated.
#
#   scripts/emulated_python.sh FOLDER
#
# Needs qemu-aarch64, which is in Debian's package qemu-user.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/debian.sh
mkdir -p "$1"
out=$(cd "$1" && pwd)
root=$out/root program=$out/root/usr/bin/python
[ -x "$program" ] || {
  rm -rf "$root"
  mkdir "$root"
  debian "$out" deb arm64 install --yes --download-only --no-install-recommends python3.13-venv libgomp1 libstdc++6 >&2
  for package in "$out"/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
  ln -s usr/lib "$root/lib"
  printf '#!/bin/sh\nexec qemu-aarch64 -L "%s" -0 "$0" "%s.13" "$@"\n' "$root" "$root/usr/bin/python3" >"$program"
  chmod +x "$program"
}
echo "$program"
