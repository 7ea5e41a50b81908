"""Install the wheel into an empty environment, without libraries of the system's.

Builds a wheel, which takes minutes and wants package indexes. FASTLOAD_WHEEL=1 runs it; FASTLOAD_WHEEL=<file> takes a
wheel that is there, and FASTLOAD_WHEEL_PYTHON the interpreter that it is for, if that is another than the tests', such
as one that qemu runs. What it depends on is then installed, too, by uv if that is there: minutes and gigabytes.
"""

from __future__ import annotations

import email
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from jpeg_writer import write_jpeg
from packaging.requirements import Requirement

from fastload import _core

ROOT = Path(__file__).parents[2]
ASKED = os.environ.get("FASTLOAD_WHEEL", "")
INTERPRETER = os.environ.get("FASTLOAD_WHEEL_PYTHON", sys.executable)
UV = shutil.which("uv") if sys.executable != INTERPRETER else None

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ASKED, reason="takes minutes; FASTLOAD_WHEEL=1 runs it"),
    pytest.mark.timeout(3600),  # where qemu runs the interpreter
]

# The core by itself: the package around it would import torch, which an empty environment has not.
LOAD_CORE = """
import importlib.util, sys, sysconfig
from pathlib import Path
folder = Path(sysconfig.get_path("purelib")) / "fastload"
(library,) = folder.glob("_core*.so")
spec = importlib.util.spec_from_file_location("fastload._core", library)
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
print(core.jpeg_header(Path(sys.argv[1]).read_bytes())[:1] + core.jpeg_header(sys.argv[1])[3:6])
core.Pool(2).close()
assert "__global__" in core.kernel_source("huffman.cu")
print(*{loaded for _, _, _, loaded in core.linked_libraries()})
print(core.codec_versions())
print(core.simd_level())
"""

USE_VISION = """
import io, sys
import numpy as np, torch
import torchvision.io, PIL._webp  # which bring libraries of their own
import fastload
from fastload.commands.doctor.checks import check_libraries
from fastload.vision import calibrate, decode
from fastload.pipeline.installed.decodes import probe
print(fastload.__file__)
print(sorted(calibrate().subsamplings))
print(decode(probe("4:4:0")).shape)
print(check_libraries().status, check_libraries().finding)

for name in ("4:4:4", "4:2:2", "4:2:0", "4:4:0"):
    pillows = np.asarray(PIL.Image.open(io.BytesIO(probe(name))).convert("RGB"))
    assert np.array_equal(decode(probe(name)), pillows), name

from torchvision import datasets, transforms
from torchvision.transforms import RandomHorizontalFlip, RandomResizedCrop, ToTensor
steps = transforms.Compose([RandomResizedCrop(32), RandomHorizontalFlip(), ToTensor()])
images = datasets.ImageFolder(sys.argv[1], steps)
loader = torch.utils.data.DataLoader(images, batch_size=4, num_workers=1, shuffle=True)
print(fastload.verify(loader))
"""


def run(python: Path, code: str, *arguments: str) -> str:
    command = [python, "-I", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    return done.stdout


def install(python: Path, *what: str | Path) -> None:
    command = [UV, "pip", "install", "--python", python] if UV else [python, "-m", "pip", "install"]
    subprocess.run([*command, "--quiet", "--no-cache-dir", *what], check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if ASKED != "1":
        return Path(ASKED)
    folder = tmp_path_factory.mktemp("wheel")
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts" / "wheel.sh", folder], check=True, env=environment)
    (built,) = folder.glob("fastload_torch-*-manylinux*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The interpreter of an environment that holds the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([INTERPRETER, "-m", "venv", *(["--without-pip"] if UV else []), folder], check=True)
    python = folder / "bin" / "python"
    install(python, "--no-deps", "--no-index", wheel)
    yield python
    shutil.rmtree(folder)


def machine() -> str:
    """Return the interpreter's machine, such as ``x86_64``."""
    command = [INTERPRETER, "-c", "import platform; print(platform.machine())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_wheel_installs_where_torchs_own_do(wheel: Path) -> None:
    (version,) = re.findall(rf"manylinux_2_(\d+)_{machine()}\b", wheel.name)
    assert int(version) <= 28


# What is compiled in. libc++ comes from the compiler.
LICENSED = ("libcxx", "libjpeg-turbo-LICENSE", "libjpeg-turbo-README", "libwebp-COPYING", "libwebp-PATENTS")
LICENSED += ("nanobind", "nvtx", "robin_map")


def test_libraries_and_their_licenses_are_inside(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert [name for name in names if ".so" in name] == [name for name in names if name.startswith("fastload/_core.c")]
    for licensed in LICENSED:
        (found,) = (name for name in names if f"dist-info/licenses/{licensed}" in name)
        assert len(archive.read(found)) > 1000
    assert [name for name in names if name.endswith("dist-info/licenses/LICENSE")]
    assert "fastload/_core.pyi" in names
    assert "fastload/py.typed" in names
    assert "fastload/pipeline/installed/probes/420.jpg" in names
    assert not [name for name in names if name.startswith(("tests/", "csrc/")) or name.endswith((".cu", ".h"))]


def test_core_exports_nothing_but_its_module(wheel: Path, tmp_path: Path) -> None:
    """So that its libraries and others of their names do not meet."""
    (core,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so"))
    library = zipfile.ZipFile(wheel).extract(core, tmp_path)
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["PyInit__core"]


def test_core_works_in_an_empty_environment(python: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.jpg"
    image.write_bytes(write_jpeg(37, 21))
    done = subprocess.run(
        [python, "-I", "-c", LOAD_CORE, image],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    header, libraries, formats, simd = done.stdout.splitlines()
    assert header == "('ok', 37, 21, 3)"
    (core,) = libraries.split()  # all in one file, its own
    assert core.startswith(str(python.parent.parent))
    assert "WebP" in formats
    levels = {platform.machine(): _core.simd_level(), "aarch64": "neon"}
    assert simd == levels[machine()]  # whatever the compiler, it knows this CPU


def test_metadata_is_that_of_the_project(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (found,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
    written = email.message_from_bytes(archive.read(found))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert written["Version"] == project["version"]
    assert written["License-Expression"] == project["license"]
    assert written.get_all("Classifier") == project["classifiers"]
    needed = {Requirement(text) for text in written.get_all("Requires-Dist", [])}
    assert {Requirement(text) for text in project["dependencies"]} <= needed


def test_vision_works_with_the_packages_it_depends_on(wheel: Path, python: Path, tmp_path: Path) -> None:
    (packages,) = (python.parent.parent / "lib").glob("python*/site-packages")
    if sys.executable == INTERPRETER:
        ours = {str(Path(path).resolve()) for path in sys.path if path.endswith("site-packages")}
        (packages / "dependencies.pth").write_text("\n".join(sorted(ours)))
    else:
        install(python, wheel)
    for number in range(8):
        image = tmp_path / "images" / f"class{number % 2}" / f"{number}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(write_jpeg(80 + number, 60))
    lines = run(python, USE_VISION, str(tmp_path / "images")).splitlines()
    assert lines[0].startswith(str(packages))
    assert "4:4:0" in lines[1]
    assert lines[2] == "(35, 43, 3)"
    assert lines[3].startswith("ok libjpeg 2.1.5 inside, libwebp 1.5.0 inside")
    assert lines[4] == "equal to the bit: 2 batches, engine native"
