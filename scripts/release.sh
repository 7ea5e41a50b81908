#!/usr/bin/env bash
# Builds a release in dist/ and checks it: the sources, a wheel for each Python that pyproject.toml names (but 3.14 where
# there is none), for this machine and, where one of them can be run, for aarch64, one of Python alone, and the notes,
# which are the changelog's newest section. Publishes nothing; `make tag` tags it.
#
#   scripts/release.sh [--quick]
#
#   --quick leaves out `make thorough`, and runs of the sources' own tests those marked matrix only
set -euo pipefail
cd "$(dirname "$0")/.."
case "$*" in "" | --quick) ;; *) echo "release: takes --quick or nothing, got $*" >&2 && exit 2 ;; esac
export FASTLOAD_WERROR=ON
source scripts/parts.sh
unset MAKEFLAGS MAKELEVEL ARGS # of the make that called; ARGS are not those of a test

minors=$(sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9]*\)",/\1/p' pyproject.toml)
declare -A pythons
for minor in $minors; do
  if found=$(find_python "$minor"); then
    pythons[$minor]=$found
  elif [ "$minor" = 3.14 ]; then # as in scripts/matrix.sh
    echo "release: there is no Python $minor here; it has to do with the sources, without a wheel" >&2
  else
    echo "release: there is no Python $minor here; its wheel needs one" >&2 && exit 1
  fi
done

archs=("$(uname -m)")
if [ "${archs[0]}" = x86_64 ] && emulated=$(scripts/emulated_python.sh build/emulated); then
  archs+=(aarch64)
else
  echo "release: wheels are for ${archs[0]} alone; those for aarch64 need x86_64 and Debian, whose Python runs one" >&2
fi

sources() {
  "$scratch/tools/bin/python" -m build --sdist --outdir dist . >"$scratch/log" || { cat "$scratch/log" && return 1; }
}

# The sources in an empty environment: they build, and their tests pass.
unpacked() ( # --quick or nothing
  tar -xzf dist/fastload_torch-*.tar.gz -C "$scratch"
  cd "$scratch"/fastload_torch-*/
  if [ "$1" = --quick ]; then scripts/matrix.sh "${minors%%[^0-9.]*}:newest"; else make test; fi
)

in_empty_environment() { # 3.12, machine, python
  FASTLOAD_WHEEL=$(echo dist/*-"cp${1/./}"-*manylinux*"_$2.whl") FASTLOAD_WHEEL_PYTHON=$3 PATH=$scratch/tools/bin:$PATH \
    "$python" -m pytest -q --all tests/wheel
}

"$python" scripts/tag.py --notes >"$scratch/notes" # before all else: what is released has a dated section
[ "${1:-}" = --quick ] || part make thorough
rm -rf dist
python3 -m venv "$scratch/tools"
"$scratch/tools/bin/pip" install --quiet build twine uv
for arch in "${archs[@]}"; do ARCH=$arch PYTHON="${pythons[*]}" part scripts/wheel.sh dist; done
part sources
part "$scratch/tools/bin/twine" check --strict dist/*
for minor in "${!pythons[@]}"; do
  part in_empty_environment "$minor" "$(uname -m)" "${pythons[$minor]}"
done
if [ ${#archs[@]} = 2 ]; then part in_empty_environment 3.13 aarch64 "$emulated"; fi
part unpacked "${1:-}"
cp "$scratch/notes" dist/release-notes.md
ls -l dist
echo "== all: $SECONDS s"
