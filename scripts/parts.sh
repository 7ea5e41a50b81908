# Sourced by .ci/run and scripts/release.sh: parts that say what they took, and what both have.
bin=$PWD/${VENV:-.venv}/bin
python=$bin/python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

part() { # command ...
  local TIMEFORMAT="== $*: %R s, CPU %U + %S s"
  time "$@"
}

# The native core under sanitizers, with so many seconds of fuzzing for each target.
sanitizers() { # seconds
  if ! { command -v clang++ && ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a; } >/dev/null 2>&1; then
    apt-get update -qq
    apt-get install -y -qq clang "libclang-rt-$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p')-dev"
  fi
  CMAKE_GENERATOR="Unix Makefiles" PYTHON=$python make sanitize FUZZ_SECONDS="$1"
}
