#!/usr/bin/env bash
# The native core under sanitizers: the fuzz targets, the pool's stress test, random transforms of images, and
# coefficients and points of random files, and what is staged of them for a GPU, with address and undefined behaviour, the stress test with threads. Needs clang with libFuzzer.
#
#   scripts/sanitize.sh [SECONDS OF FUZZING EACH]     (default: 60)
#
# What the fuzzer finds is left in build/fuzz/found; the corpora stay in build/fuzz for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
stress=$((seconds < 20 ? seconds : 20))
python=${PYTHON:-python3}

build() { # folder, sanitizers
  cmake -S . -B "build/$1" -G "${CMAKE_GENERATOR:-Ninja}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++ \
    -DFASTLOAD_PYTHON=OFF -DFASTLOAD_CHECKS=ON -DFASTLOAD_SANITIZE="$2" -DFASTLOAD_WERROR="${FASTLOAD_WERROR:-OFF}" >/dev/null
  cmake --build "build/$1"
}

build sanitize-address address,undefined
build sanitize-thread thread
"$python" scripts/fuzz_seeds.py build/fuzz/seeds
mkdir -p build/fuzz/found

echo "pool, thread sanitizer, $stress s"
build/sanitize-thread/pool_stress "$stress" build/fuzz/seeds/*.{jpg,png,webp}
echo "pool, address and undefined-behaviour sanitizers, $stress s"
build/sanitize-address/pool_stress "$stress" build/fuzz/seeds/*.{jpg,png,webp}
echo "transforms, address and undefined-behaviour sanitizers"
build/sanitize-address/transforms 20000
echo "coefficients, address and undefined-behaviour sanitizers"
build/sanitize-address/coefficients 3000
echo "coefficients of progressive files, address and undefined-behaviour sanitizers"
build/sanitize-address/progressive 3000
echo "points of files, address and undefined-behaviour sanitizers"
build/sanitize-address/points 1000
echo "files staged for a GPU, address and undefined-behaviour sanitizers"
build/sanitize-address/staging 3000
echo "pixels of coefficients, address and undefined-behaviour sanitizers"
build/sanitize-address/pixels 3000
fuzz() { # target, most bytes of an input
  echo "${1%_fuzzer}, address and undefined-behaviour sanitizers, $seconds s of fuzzing"
  local corpus="build/fuzz/corpus-$1"
  mkdir -p "$corpus"
  if ! build/sanitize-address/"$1" -max_total_time="$seconds" -max_len="$2" -timeout=20 -rss_limit_mb=2048 \
    -artifact_prefix=build/fuzz/found/ -print_final_stats=1 "$corpus" build/fuzz/seeds >build/fuzz/log 2>&1; then
    tail -60 build/fuzz/log
    exit 1
  fi
  grep -E '^Done|^stat::' build/fuzz/log
}

fuzz decode_fuzzer 4096
fuzz codecs_fuzzer 6144
