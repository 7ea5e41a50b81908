#!/usr/bin/env bash
# Runs the tests marked `matrix` on each row of the support matrix, in an environment of its own that is deleted
# afterwards. Prints a line per row, and what a failed row printed; fails when a row does.
#
#   scripts/matrix.sh [PYTHON:TORCH ...]     (default: 3.12:oldest 3.13:newest 3.14:newest)
#
#   oldest has the first versions that pyproject.toml takes of torch, torchvision, NumPy, Pillow and nvtx, newest the
#   package index's; the virtual environment is a row already
#
#   FASTLOAD_REQUIRE_MATRIX  1 fails where a Python is missing instead of skipping its row; 3.14 may always be missing
#   UV_CACHE_DIR             keeps downloads between runs (default: inside the folder that is deleted; 8 GB)
set -uo pipefail
cd "$(dirname "$0")/.."
source scripts/parts.sh
export UV_CACHE_DIR=${UV_CACHE_DIR:-$PWD/build/matrix/cache}
work=$PWD/build/matrix
mapfile -t oldest < <(sed -n '/^dependencies = \[/,/^\]/s/^  "\([a-z]*\)>=\([0-9.]*\),.*/\1==\2.*/p' pyproject.toml)
[ ${#oldest[@]} = 5 ] || { echo "matrix: pyproject.toml has other dependencies than five with a first version" >&2 && exit 1; }

run_row() { # python, folder, packages
  uv venv --quiet --python "$1" "$2" &&
    uv pip install --quiet --python "$2/bin/python" --config-settings build-dir="$2/core" \
      --config-settings cmake.define.FASTLOAD_WERROR="${FASTLOAD_WERROR:-OFF}" \
      --editable . "${@:3}" pytest pytest-timeout hypothesis psutil &&
    grep -rlZ --include='test_*.py' 'mark\.matrix' tests |
    xargs -0 "$2/bin/python" -m pytest -q -p no:cacheprovider -m 'matrix and not gpu'
}

trap 'rm -rf "$work" "$scratch"' EXIT
rm -rf "$work"
mkdir -p "$work"
command -v uv >/dev/null || {
  python=$(find_python 3.12 || find_python 3.13 || command -v python3)
  "$python" -m venv "$work/uv" && "$work/uv/bin/pip" install --quiet uv || exit 1
  PATH=$work/uv/bin:$PATH
}
versions='from importlib.metadata import version as v; print("torch %s, NumPy %s, Pillow %s" % tuple(map(v, ("torch", "numpy", "pillow"))))'
failed=0
[ $# -gt 0 ] || set -- 3.12:oldest 3.13:newest 3.14:newest
for row in "$@"; do
  python=${row%%:*} packages=()
  [ "${row##*:}" = newest ] || packages=("${oldest[@]}")
  if ! found=$(find_python "$python"); then
    outcome=skipped
    if [ "${FASTLOAD_REQUIRE_MATRIX:-0}" = 1 ] && [ "$python" != 3.14 ]; then failed=1 outcome=failed; fi
    echo "matrix: Python $python, ${row##*:} torch: $outcome, there is no Python $python here"
    continue
  fi
  SECONDS=0
  if run_row "$found" "$work/$python" "${packages[@]}" >"$work/log" 2>&1; then
    outcome=$(grep -E '^[0-9]+ passed' "$work/log")
  else
    failed=1 outcome=failed
    cat "$work/log"
  fi
  installed=$("$work/$python/bin/python" -c "$versions" 2>/dev/null || echo "${row##*:} torch")
  echo "matrix: $("$found" --version), $installed: $outcome; $SECONDS s in all"
  rm -rf "${work:?}/$python"
done
exit $failed
