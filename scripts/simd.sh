"""Swap Pillow for Pillow-SIMD, and back: ``make simd``, ``make unsimd``.

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
HEADERS = """On Debian (Ubuntu: libjpeg-turbo8-dev), the build needs the first four, and the others for more formats:
  apt-get install gcc python3-dev zlib1g-dev libjpeg62-turbo-dev \\
    libwebp-dev libavif-dev libtiff-dev libopenjp2-7-dev liblcms2-dev libfreetype-dev"""
CHECK = """
import importlib.util, io, sys
from PIL import Image, __version__, features
assert __version__ == sys.argv[1], f"version {__version__}, not {sys.argv[1]}"
image, file = Image.linear_gradient("L").resize((64, 48)), io.BytesIO()
image.save(file, "JPEG")
assert abs(Image.open(file).resize((32, 24)).getpixel((16, 12)) - image.getpixel((32, 24))) < 8
if importlib.util.find_spec("torchvision"):
    import torchvision.transforms
print(*sorted({*features.modules, *features.codecs} - {*features.get_supported(), "tkinter"}))
"""


def pip(*arguments: str | Path, **environment: str) -> None:
    """Run this interpreter's pip."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run(command, check=True, env=os.environ | environment)


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


def swap(wheel: Path) -> str:
    """Install a wheel over Pillow; return the formats that it lacks."""
    if BOTH:
        pip("uninstall", "--yes", "pillow-simd")
    pip("install", "--no-deps", "--no-index", "--force-reinstall", wheel)
    command = [sys.executable, "-W", "ignore", "-c", CHECK, wheel.name.split("-")[1]]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main(action: str) -> str:
    """Swap; return what was done."""
    here = "" if BOTH else next((found.version for found in distributions(name="pillow")), "")
    if here and (".post" in here) == (action == "install"):
        return f"Pillow {here} is in place already"
    if action == "install" and here:
        shutil.rmtree(KEPT, ignore_errors=True)
    if not any(KEPT.glob("*.whl")):
        pip("wheel", "--no-deps", "-w", KEPT, f"pillow=={here}" if action == "install" and here else "pillow")
    pillow = next(KEPT.glob("*.whl"))
    with tempfile.TemporaryDirectory() as folder:
        wheel = pillow if action == "remove" else build(Path(folder))
        try:
            lacks = swap(wheel)
        except BaseException:
            swap(pillow)
            raise
    return f"{wheel.name} is in place" + (f", without {lacks}\n{HEADERS}" if lacks else "")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{main(sys.argv[1])}\n")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{HEADERS}")
