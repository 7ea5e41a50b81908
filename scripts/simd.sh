#!/usr/bin/env bash
# Swaps Pillow for Pillow-SIMD, and back: scripts/simd.sh PYTHON install|remove
#
# Both packages own the folder PIL/, so Pillow-SIMD is built from source under the name pillow: pip then replaces one by
# the other and counts what torchvision requires as met. Pillow is kept as a wheel, which is installed again if
# Pillow-SIMD does not work, and by `remove`.
set -euo pipefail
python=$1 action=$2 simd=12.1.1.post0 # Pillow's own versions have no ".post"
[ "$action" = remove ] || [ "$(uname -m)" = x86_64 ] || { echo "Pillow-SIMD is written for x86-64" >&2 && exit 1; }
kept=$("$python" -c 'import sys; print(sys.prefix)')/share/fastload/pillow new=$(mktemp -d)
headers="On Debian (Ubuntu: libjpeg-turbo8-dev), the build needs the first four, and the others for more formats:
  apt-get install gcc python3-dev zlib1g-dev libjpeg62-turbo-dev \\
    libwebp-dev libavif-dev libtiff-dev libopenjp2-7-dev liblcms2-dev libfreetype-dev"
trap '[ $? = 0 ] || echo "$headers" >&2; rm -rf "$new"' EXIT
check='
import importlib.util, io, sys
from PIL import Image, __version__, features
assert __version__ == sys.argv[1], f"version {__version__}, not {sys.argv[1]}"
image, file = Image.linear_gradient("L").resize((64, 48)), io.BytesIO()
image.save(file, "JPEG")
assert abs(Image.open(file).resize((32, 24)).getpixel((16, 12)) - image.getpixel((32, 24))) < 8
if importlib.util.find_spec("torchvision"):
    import torchvision.transforms
print(*sorted({*features.modules, *features.codecs} - {*features.get_supported(), "tkinter"}))'

pip() { "$python" -m pip --disable-pip-version-check "$@"; }
version_of() { pip list --format freeze | sed -n "s/^$1==//p"; }

swap() { # folder of a wheel; prints the formats that it lacks
  { [ -z "$overwritten" ] || pip -q uninstall --yes pillow-simd; } &&
    pip -q install --no-deps --no-index --force-reinstall "$1"/*.whl &&
    "$python" -W ignore -c "$check" "$(basename "$1"/*.whl | cut -d- -f2)"
}

here=$(version_of pillow) overwritten=$(version_of pillow-simd) # under its own name, it overwrites parts of Pillow
[ -z "$overwritten" ] || here=
case $here in "") is= ;; *.post*) is=install ;; *) is=remove ;; esac
[ "$is" != "$action" ] || { echo "Pillow $here is in place already" && exit; }
[ "$is" != remove ] || rm -rf "$kept"
[ "$action" = install ] || here=
compgen -G "$kept/*.whl" >/dev/null || pip -q wheel --no-deps -w "$kept" "pillow${here:+==$here}"
wheel=$kept
if [ "$action" = install ]; then
  pip -q download --no-deps --no-binary pillow-simd -d "$new" "pillow-simd==$simd"
  tar -xzf "$new"/*.tar.gz -C "$new"
  sed -i 's/name = "pillow-simd"/name = "pillow"/' "$new"/*/pyproject.toml
  ! grep -q ' avx2 ' /proc/cpuinfo || export CC="${CC:-cc} -mavx2"
  pip -q wheel --no-deps -w "$new" "$new"/*/
  wheel=$new
fi
lacks=$(swap "$wheel") || { swap "$kept"; exit 1; }
echo "$(basename "$wheel"/*.whl) is in place${lacks:+, without $lacks
$headers}"
