"""Swap Pillow for Pillow-SIMD in this interpreter's environment, and back: ``make simd``, ``make unsimd``.

Both packages own the folder ``PIL/``, so Pillow-SIMD is built from source under the name ``pillow``: pip then replaces
one by the other and counts what torchvision requires as met. Pillow is kept as a wheel, which is installed again if
Pillow-SIMD does not work, and by ``make unsimd``.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

REQUIREMENT = "pillow-simd==12.1.1.post0"  # Pillow's own versions have no ".post"
BOTH = any(distributions(name="pillow-simd"))  # Pillow-SIMD under its own name has overwritten parts of Pillow
KEPT = Path(sys.prefix, "share", "fastload", "pillow")
HEADERS = """On Debian (Ubuntu: libjpeg-turbo8-dev), the build needs
  apt-get install gcc python3-dev zlib1g-dev libjpeg62-turbo-dev
and for more formats
  apt-get install libwebp-dev libavif-dev libtiff-dev libopenjp2-7-dev liblcms2-dev libfreetype-dev"""
CHECK = """
import importlib.util, io, sys
from PIL import Image, __version__, features
assert __version__ == sys.argv[1], f"version {__version__}, not {sys.argv[1]}"
image, file = Image.linear_gradient("L").convert("RGB").resize((64, 48), Image.Resampling.BICUBIC), io.BytesIO()
image.save(file, "JPEG")
again = Image.open(file).resize((32, 24), Image.Resampling.BILINEAR)
assert abs(again.getpixel((16, 12))[0] - image.getpixel((32, 24))[0]) < 8
if importlib.util.find_spec("torchvision"):
    import torchvision.transforms
print(*features.get_supported())
"""


def pip(*arguments: str | Path, **environment: str) -> None:
    """Run this interpreter's pip."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run(command, check=True, env=os.environ | environment)


def check(version: str) -> set[str]:
    """Return what Pillow can do in a fresh interpreter; raise if it does not work or has another version."""
    command = [sys.executable, "-W", "ignore", "-c", CHECK, version]
    return set(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split())


def build(folder: Path) -> Path:
    """Build a wheel of Pillow-SIMD, named ``pillow``, for this processor."""
    if platform.machine() != "x86_64":
        sys.exit(f"Pillow-SIMD is written for x86-64, and this machine is {platform.machine()}")
    pip("download", "--no-deps", "--no-binary", "pillow-simd", "-d", folder, REQUIREMENT)
    shutil.unpack_archive(next(folder.glob("*.tar.gz")), folder)
    project = next(folder.glob("*/pyproject.toml"))
    project.write_text(project.read_text().replace('name = "pillow-simd"', 'name = "pillow"'))
    avx2 = " -mavx2" if " avx2 " in Path("/proc/cpuinfo").read_text() else ""
    pip("wheel", "--no-deps", "-w", folder, project.parent, CC=os.environ.get("CC", "cc") + avx2)
    return next(folder.glob("*.whl"))


def keep(version: str) -> Path:
    """Return the kept wheel of Pillow; get it from the package index if it has another version. ``*`` is any."""
    if not any(KEPT.glob(f"pillow-{version}-*.whl")):
        shutil.rmtree(KEPT, ignore_errors=True)
        pip("wheel", "--no-deps", "-w", KEPT, f"pillow=={version}".removesuffix("==*"))
    return next(KEPT.glob("*.whl"))


def swap(wheel: Path) -> set[str]:
    """Install a wheel as the one owner of ``PIL/``; return what it can do."""
    if BOTH:
        pip("uninstall", "--yes", "pillow-simd")
    pip("install", "--no-deps", "--no-index", "--force-reinstall", wheel)
    return check(wheel.name.split("-")[1])


def main(action: str) -> str:
    """Swap; return what was done."""
    here = "" if BOTH else next((found.version for found in distributions(name="pillow")), "")
    if here and (".post" in here) == (action == "install"):
        return f"Pillow {here} is in place already"
    pillow = keep(here if action == "install" and here else "*")
    if action == "remove":
        swap(pillow)
        return f"{pillow.name} is back in place"
    with tempfile.TemporaryDirectory() as folder:
        wheel, able = build(Path(folder)), check(here) if here else set()
        try:
            lost = able - swap(wheel)
        except BaseException:
            swap(pillow)
            raise
    return f"Pillow-SIMD is in place. It lacks: {', '.join(sorted(lost)) or 'nothing'}" + f"\n{HEADERS}" * bool(lost)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{main(sys.argv[1])}\n")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{HEADERS}")
