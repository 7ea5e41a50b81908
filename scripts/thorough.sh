#!/usr/bin/env bash
# What takes too long for every merge: every test as thoroughly as it can, each row of the support matrix, the bits
# against other Pillows, long fuzzing, hostile trials. CONTRIBUTING.md says after which changes to run it.
#
#   FUZZ_SECONDS  of each target (default: 600)
#   SHARE         of the hostile trials (default: 0.1)
set -euo pipefail
cd "$(dirname "$0")/.."
export FASTLOAD_WERROR=ON FASTLOAD_REQUIRE_MATRIX=1
source scripts/parts.sh

# The core follows the installed Pillow. The newest is in the environment; these are the other majors that pyproject.toml
# takes, and each order in which a Pillow runs the passes of a resize.
other_pillow() { # version
  "$python" -m pip install -q --no-deps --target "$scratch/pillow-$1" "pillow==$1"
  PYTHONPATH=$scratch/pillow-$1 "$python" -m pytest -q --all -k "not sanitizers" \
    tests/unit/test_resample.py tests/unit/test_calibration.py tests/property/test_any_resize.py tests/property/test_jpeg_bits.py \
    tests/unit/test_codecs.py tests/property/test_codec_bits.py tests/unit/test_lazy_images.py tests/unit/test_orientation.py
}

part make test-all
part make matrix
part other_pillow 11.0.0
part other_pillow 12.1.1
part other_pillow 12.3.0
part sanitizers "${FUZZ_SECONDS:-600}"
part make torture ARGS="--share ${SHARE:-0.1} --json $scratch/torture.json"
part make bench ARGS="--json $scratch"
echo "== all: $SECONDS s"
