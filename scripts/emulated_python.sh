#!/usr/bin/env bash
# Makes a Python for aarch64 that runs on this machine, of Debian's packages, and prints the path of the program that
# starts it. So do environments of it, made without pip: uv installs into them, and is not emulated.
#
#   scripts/emulated_python.sh FOLDER
#
# qemu is Debian's, too: torch crashes under versions as old as 7.2.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/debian.sh
mkdir -p "$1"
out=$(cd "$1" && pwd)
root=$out/root program=$out/root/usr/bin/python
[ -x "$program" ] || {
  rm -rf "$root" "$out/qemu"
  mkdir "$root"
  cd "$out"
  debian own deb "$(dpkg --print-architecture 2>/dev/null)" download qemu-user >&2
  dpkg -x qemu-user_*.deb qemu
  debian theirs deb arm64 install --yes --download-only --no-install-recommends python3.13-venv libgomp1 libstdc++6 >&2
  for package in theirs/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
  ln -s usr/lib "$root/lib"
  printf '#!/bin/sh\nexec "%s" -L "%s" -0 "$0" "%s" "$@"\n' \
    "$out/qemu/usr/bin/qemu-aarch64" "$root" "$root/usr/bin/python3.13" >"$program"
  chmod +x "$program"
}
echo "$program"
