"""``scripts/simd.py`` in an environment of its own: swapped and back, or left as it was.

A stand-in for Pillow-SIMD is made from this interpreter's own Pillow, so nothing is downloaded or compiled.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import PIL
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "simd.py"
QUICK = {"PIP_NO_COMPILE": "1", "PYTHONDONTWRITEBYTECODE": "1"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(".post" in PIL.__version__, reason="Pillow-SIMD itself is in place here"),
]


def load_script():
    spec = importlib.util.spec_from_file_location("simd_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


simd = load_script()


class Environment:
    """A virtual environment with nothing but pip and Pillow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "bin" / "python")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site_packages = folder / "lib" / version / "site-packages"

    def script(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.python, str(SCRIPT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | QUICK)

    def pip(self, *arguments: str) -> str:
        command = [self.python, "-m", "pip", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | QUICK).stdout

    def packages(self) -> dict[str, str]:
        folders = self.site_packages.glob("[pP]illow*.dist-info")
        names = (folder.name.removesuffix(".dist-info").partition("-") for folder in folders)
        return {name.lower().replace("_", "-"): version for name, _, version in names}

    def works(self) -> bool:
        code = (
            "import io; from PIL import Image; b = io.BytesIO(); Image.new('RGB', (8, 8)).save(b, 'JPEG'); "
            "Image.open(io.BytesIO(b.getvalue())).load()"
        )
        return subprocess.run([self.python, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def pillow_wheel(tmp_path_factory):
    return simd.pack_installed(simd.installed("pillow"), tmp_path_factory.mktemp("pillow"))


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    return Environment(folder)


@pytest.fixture
def environment(empty_environment, pillow_wheel):
    """The environment with Pillow in it, as pip installs it."""
    here = empty_environment
    here.pip("uninstall", "--yes", "pillow", "pillow-simd")
    here.pip("install", "--no-deps", "--no-index", str(pillow_wheel))
    for old in (here.folder / "share" / "fastload" / "pillow").glob("*"):
        old.unlink()
    return here


@pytest.fixture
def simd_wheel(pillow_wheel, tmp_path):
    """This Pillow's files as the wheel of a package named pillow-simd, some of them replaced."""

    def make(**replaced: str) -> Path:
        with zipfile.ZipFile(pillow_wheel) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        files |= {f"PIL/{name}.py": text.encode() for name, text in replaced.items()}
        folder = tmp_path / f"wheel{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return simd.write_wheel(files, "pillow_simd", PIL.__version__, folder)

    return make


def test_a_packed_distribution_is_the_wheel_that_it_came_from(pillow_wheel):
    with zipfile.ZipFile(pillow_wheel) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        record = archive.read(f"pillow-{PIL.__version__}.dist-info/RECORD").decode()
        assert archive.read("PIL/Image.py") == Path(PIL.__file__).with_name("Image.py").read_bytes()
    assert {line.split(",")[0] for line in record.splitlines()} == names
    assert f"cp{sys.version_info.major}{sys.version_info.minor}" in pillow_wheel.name
    assert not [name for name in names if name.endswith(".pyc")]


def test_swapped_and_back_again(environment, simd_wheel):
    done = environment.script("install", "--wheel", str(simd_wheel()))
    assert done.returncode == 0, done.stderr
    # One owner of PIL, and pip counts it as Pillow.
    assert environment.packages() == {"pillow": f"{PIL.__version__}+simd"}
    assert environment.works()
    assert "No broken requirements" in environment.pip("check")

    again = environment.script("install")
    assert (again.returncode, "in place already" in again.stdout) == (0, True)

    done = environment.script("remove")
    assert done.returncode == 0, done.stderr
    assert environment.packages() == {"pillow": PIL.__version__}
    assert environment.works()
    assert not list(environment.site_packages.glob("*simd*"))

    again = environment.script("remove")
    assert (again.returncode, "nothing to do" in again.stdout) == (0, True)


def test_a_build_that_does_not_work_is_never_swapped_in(environment, simd_wheel):
    before = sorted(environment.site_packages.rglob("*.py"))
    done = environment.script("install", "--wheel", str(simd_wheel(Image="raise ImportError('broken build')")))
    assert done.returncode == 1
    assert "broken build" in done.stderr
    assert "putting the former Pillow back" not in done.stdout, "it was found out before the swap"
    assert sorted(environment.site_packages.rglob("*.py")) == before
    assert environment.packages() == {"pillow": PIL.__version__}
    assert environment.works()


def test_what_fails_only_after_the_swap_is_rolled_back(environment, simd_wheel):
    # Stands for any package beside it that cannot live with the new Pillow.
    package = environment.site_packages / "torchvision"
    package.mkdir()
    try:
        (package / "__init__.py").write_text("")
        (package / "transforms.py").write_text(
            "import importlib.metadata\n"
            "if 'simd' in importlib.metadata.version('pillow'): raise ImportError('cannot live with it')\n"
        )
        done = environment.script("install", "--wheel", str(simd_wheel()))
    finally:
        for file in sorted(package.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        package.rmdir()
    assert done.returncode == 1
    assert "cannot live with it" in done.stderr
    assert "Pillow is as it was" in done.stderr
    assert environment.packages() == {"pillow": PIL.__version__}
    assert environment.works()


def test_two_packages_that_wrote_over_each_other_are_sorted_out(environment, simd_wheel):
    wheel = simd_wheel()
    assert environment.script("install", "--wheel", str(wheel)).returncode == 0  # keeps the former Pillow
    environment.pip("install", "--no-deps", "--no-index", str(wheel))
    assert environment.packages().keys() == {"pillow", "pillow-simd"}
    done = environment.script("remove")
    assert done.returncode == 0, done.stderr
    assert environment.packages() == {"pillow": PIL.__version__}
    assert environment.works()


def test_a_build_that_fails_says_what_to_install_and_changes_nothing(environment):
    # pip cannot reach an index here, which fails the build as a missing compiler would.
    command = [environment.python, str(SCRIPT), "install"]
    offline = {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"} | QUICK
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=offline)
    assert done.returncode == 1
    if simd.platform.machine() == "x86_64":
        assert "libjpeg62-turbo-dev" in done.stderr
    assert "Traceback" not in done.stderr
    assert environment.packages() == {"pillow": PIL.__version__}
    assert environment.works()
