# Sourced by .ci/run and by scripts: parts that say what they took, and what several have.
bin=$PWD/${VENV:-.venv}/bin
python=$bin/python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

part() { # command ...
  local TIMEFORMAT="== $*: %R s, CPU %U + %S s"
  time "$@"
}

# Prints the path of a Python that starts: pyenv has a python3.12 for every 3.12 it knows, but that may start none.
find_python() { # 3.12
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    "$candidate" -c 'import sys; print(sys.executable)' 2>/dev/null && return
  done
  return 1
}

# The native core under sanitizers, with so many seconds of fuzzing for each target.
sanitizers() { # seconds
  if ! { command -v clang++ && ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a; } >/dev/null 2>&1; then
    apt-get update -qq
    apt-get install -y -qq clang "libclang-rt-$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p')-dev"
  fi
  CMAKE_GENERATOR="Unix Makefiles" PYTHON=$python make sanitize FUZZ_SECONDS="$1"
}
