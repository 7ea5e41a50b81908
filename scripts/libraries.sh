#!/usr/bin/env bash
# Builds what a wheel links statically, libjpeg-turbo and libwebp's decoder, from the sources of their releases, whose
# checksums are here. Does nothing if they were built in the folder already.
#
#   scripts/libraries.sh FOLDER     gets include/, lib/ and licenses/
#
#   CC       the C compiler, which may be a script; cmake and, for libjpeg-turbo's SIMD code, nasm must be on the PATH
#   SOURCES  keeps the archives (default: build/sources)
#
# Debian's source packages hold the archives as they were released, so that apt can fetch them, too.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/debian.sh
mkdir -p "$1"
out=$(cd "$1" && pwd)
SOURCES=${SOURCES:-build/sources}
jpeg=2.1.5 webp=1.5.0  # those of the Debian in scripts/debian.sh

stamp=$(sha256sum scripts/libraries.sh "${CC:-/dev/null}" | cut -d ' ' -f 1)
[ "$(cat "$out/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

have() { # archive, checksum
  sha256sum --check --status <<<"$2  $SOURCES/$1" 2>/dev/null
}

from_debian() { # source package
  (cd "$SOURCES" && debian apt deb-src "$(dpkg --print-architecture 2>/dev/null)" source --download-only --tar-only "$1")
}

fetch() { # source package, version, checksum, where it is released
  local archive=$1_$2.orig.tar.gz
  mkdir -p "$SOURCES"
  have "$archive" "$3" || from_debian "$1" || true
  have "$archive" "$3" || curl -sSfL --retry 3 -o "$SOURCES/$archive" "$4" || true
  have "$archive" "$3" || {
    echo "libraries: $archive must have the SHA-256 $3, but neither apt nor $4 gave that; put it into $SOURCES" >&2
    exit 1
  }
  rm -rf "$out/$1"
  mkdir -p "$out/$1"
  tar -xzf "$SOURCES/$archive" --strip-components=1 -C "$out/$1"
}

build() { # source package, target, options
  cmake -Wno-dev -Wno-deprecated -S "$out/$1" -B "$out/$1/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_C_FLAGS=-fvisibility=hidden -DCMAKE_POLICY_VERSION_MINIMUM=3.5 "${@:3}" >"$out/$1/log"
  cmake --build "$out/$1/build" --target "$2" --parallel "$(nproc)" >>"$out/$1/log"
}

rm -f "$out/stamp"
mkdir -p "$out"/{include/webp,lib,licenses}
fetch libjpeg-turbo $jpeg 254f3642b04e309fee775123133c6464181addc150499561020312ec61c1bf7c \
  "https://downloads.sourceforge.net/project/libjpeg-turbo/$jpeg/libjpeg-turbo-$jpeg.tar.gz"
fetch libwebp $webp 7d6fab70cf844bf6769077bd5d7a74893f8ffd4dfb42861745750c63c2a5c92c \
  "https://storage.googleapis.com/downloads.webmproject.org/releases/webp/libwebp-$webp.tar.gz"

build libjpeg-turbo jpeg-static -DENABLE_SHARED=OFF -DWITH_TURBOJPEG=OFF -DREQUIRE_SIMD=ON
cd "$out/libjpeg-turbo"
cp build/libjpeg.a ../lib
cp jpeglib.h jmorecfg.h jerror.h build/jconfig.h ../include
for file in LICENSE.md README.ijg; do cp $file "../licenses/libjpeg-turbo-$file"; done

cd - >/dev/null
build libwebp webpdecoder -DWEBP_BUILD_{ANIM_UTILS,CWEBP,DWEBP,GIF2WEBP,IMG2WEBP,VWEBP,WEBPINFO,WEBPMUX,EXTRAS,LIBWEBPMUX}=OFF
cd "$out/libwebp"
cp build/libwebpdecoder.a ../lib/libwebp.a
cp src/webp/{decode,types}.h ../include/webp
for file in COPYING PATENTS; do cp $file "../licenses/libwebp-$file"; done
rm -rf "$out"/libjpeg-turbo "$out"/libwebp
echo "$stamp" >"$out/stamp"
