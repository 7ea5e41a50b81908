#!/usr/bin/env bash
# Sets up what `make` needs: system packages, virtual environment, Python packages, native core. Does only what is not
# done yet, so a second run takes some milliseconds.
#
#   PYTHON           interpreter to make the environment with (default: python3)
#   VENV             where to put it (default: .venv)
#   EXTRAS           what to install beside the package: dev (everything, the default) or bench (what the demo needs)
#   FASTLOAD_WERROR  ON treats the native core's compiler warnings as errors (default: OFF)
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
WERROR=${FASTLOAD_WERROR:-OFF}
EXTRAS=${EXTRAS:-dev}
CXX=${CXX:-c++}
PACKAGES_STAMP=$VENV/.fastload-packages  # holds the extras
CORE_STAMP=$VENV/.fastload-core

stop() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

check_python() {
  command -v "$PYTHON" >/dev/null ||
    stop "there is no $PYTHON here; name a Python 3.11 or newer: make PYTHON=/path/to/python3 ..."
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    stop "fastload needs Python 3.11 or newer, but $PYTHON is $("$PYTHON" --version 2>&1);" \
      "name another one: make PYTHON=/path/to/python3.12 ..."
}

has_jpeg_turbo() {
  local source='
#include <cstdio>
#include <jpeglib.h>
#ifndef LIBJPEG_TURBO_VERSION
#error plain libjpeg
#endif
void* used() { return (void*)&jpeg_std_error; }'
  "$CXX" -x c++ - -shared -fPIC -ljpeg -o /dev/null <<<"$source" 2>/dev/null
}

has_webp() {
  "$CXX" -x c++ - -shared -fPIC -lwebp -o /dev/null <<<"#include <webp/decode.h>" 2>/dev/null
}

# Prints the Debian or Ubuntu packages that are needed and not there, one per line.
missing_packages() {
  local python
  python=python$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || echo "$python-venv"
  "$PYTHON" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    echo "$python-dev"
  if ! command -v "$CXX" >/dev/null; then
    echo g++
    [ -e /usr/include/jpeglib.h ] || jpeg_package
  elif ! has_jpeg_turbo; then
    jpeg_package
  fi
}

jpeg_package() {
  if grep -qiE '^ID(_LIKE)?=.*ubuntu' /etc/os-release 2>/dev/null; then
    echo libjpeg-turbo8-dev
  else
    echo libjpeg62-turbo-dev
  fi
}

install_packages() {
  local packages=$1 root=()
  if ! command -v apt-get >/dev/null; then
    stop "these are needed, under the names of Debian: $packages." \
      "Install their like first (on Fedora: sudo dnf install gcc-c++ python3-devel libjpeg-turbo-devel)"
  fi
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null ||
      stop "system packages are needed, and this is not root. Run this first: sudo apt-get install $packages"
    root=(sudo -n env)
  fi
  # Without the lists of a fresh machine's package sources nothing can be installed; old lists may still do.
  "${root[@]}" apt-get update || true
  # shellcheck disable=SC2086 - the packages are words
  "${root[@]}" apt-get install -y --no-install-recommends $packages ||
    stop "could not install them; try it yourself: sudo apt-get install $packages"
}

# True when torchvision, whose compiled part fits exactly one build of torch, can be imported.
torch_works() {
  "$VENV/bin/python" -W ignore -c 'import torchvision.ops; torchvision.ops.nms' 2>/dev/null
}

check_torch() {
  torch_works && return
  local version
  version=$("$VENV/bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))')
  if [[ $version == *+cpu ]]; then
    # A local wheel folder offered the CPU-only build; the torchvision of the package index does not load beside it.
    "$VENV/bin/pip" install --upgrade "torch!=$version" torchvision && torch_works && return
  fi
  "$VENV/bin/python" -c 'import torchvision.ops' || true
  stop "torchvision does not load beside torch $version (see above): the two are not of one build." \
    "Install a pair that is: $VENV/bin/pip install --force-reinstall torch torchvision"
}

# Makes the environment. The demo's uses the torch that $PYTHON has, if there is one that does: gigabytes less to fetch.
make_environment() {
  local torch=
  "$PYTHON" -m venv "$VENV"
  [ "$EXTRAS" = dev ] || torch=$(torch_of_python) || true
  if [ -n "$torch" ]; then
    echo "setup: uses the torch in $torch"
    echo "$torch" >"$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fastload-torch.pth"
  fi
}

# Prints the folder of a torch that is new enough and has its torchvision.
torch_of_python() {
  "$PYTHON" -W ignore -c 'import os, sys, torch, torchvision.ops
torchvision.ops.nms
if [int(part) for part in torch.__version__.split(".")[:2]] >= [2, 11]:
    print(os.path.dirname(os.path.dirname(torch.__file__)))' 2>/dev/null
}

has_packages() {
  [ -e "$PACKAGES_STAMP" ] && [ ! pyproject.toml -nt "$PACKAGES_STAMP" ] &&
    case "$(cat "$PACKAGES_STAMP")" in dev | "" | "$EXTRAS") ;; *) false ;; esac
}

install_python() {
  [ -x "$VENV/bin/python" ] || make_environment
  local werror="--config-settings=cmake.define.FASTLOAD_WERROR=$WERROR"
  echo "setup: installs the extras $EXTRAS in $VENV and builds its native core; a minute or two"
  if ! has_packages; then
    "$VENV/bin/pip" install --disable-pip-version-check -q "$werror" -e ".[$EXTRAS]"
    check_torch
    echo "$EXTRAS" >"$PACKAGES_STAMP"
  else
    "$VENV/bin/pip" install --disable-pip-version-check -q "$werror" --no-deps -e .
  fi
  echo "$WERROR" >"$CORE_STAMP"
}

up_to_date() {
  has_packages && [ -e "$CORE_STAMP" ] && [ "$(cat "$CORE_STAMP")" = "$WERROR" ] &&
    [ -z "$(find pyproject.toml CMakeLists.txt csrc -newer "$CORE_STAMP" -print -quit)" ]
}

up_to_date && exit
check_python
missing=$(missing_packages | xargs)
if [ -n "$missing" ]; then
  install_packages "$missing"
  missing=$(missing_packages | xargs)
  [ -z "$missing" ] || stop "these are installed but not found: $missing; is $PYTHON another Python than the system's?"
fi
has_webp || (install_packages libwebp-dev) || echo "setup: goes on without libwebp-dev: WebP files will be left to Pillow"
install_python
