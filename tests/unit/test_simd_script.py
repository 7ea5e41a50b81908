"""Run ``scripts/simd.py`` in a new environment with stand-ins; no network, no compiler."""

import os
import platform
import subprocess
import tarfile
import venv
from pathlib import Path

import PIL
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "simd.py"
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
PACKAGE = f"""
__path__.append({str(Path(PIL.__file__).parent)!r})  # of the Pillow that runs the tests
exec(open({PIL.__file__!r}).read())
from PIL import _imaging
__version__ = _imaging.PILLOW_VERSION = """
BACKEND = """
import re, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = re.search('name = "(.*)"', open("pyproject.toml").read()).group(1)
    stem = f"{name.replace('-', '_')}-{VERSION}"
    with zipfile.ZipFile(f"{folder}/{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("PIL/__init__.py", PACKAGE)
        info = {"METADATA": f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {VERSION}", "WHEEL": "Wheel-Version: 1.0"}
        for file, text in {**info, "RECORD": "PIL/__init__.py,,\\n"}.items():
            wheel.writestr(f"{stem}.dist-info/{file}", text)
    return f"{stem}-py3-none-any.whl"
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="Pillow-SIMD is written for x86-64"),
]


def write_source(folder: Path, name: str, version: str, then: str = "") -> None:
    project = folder / f"{name.replace('-', '_')}-{version}"
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT + f'[project]\nname = "{name}"\nversion = "{version}"')
    package = f"{PACKAGE}{version!r}\n{then}"
    (project / "backend.py").write_text(f"VERSION = {version!r}\nPACKAGE = {package!r}\n{BACKEND}")
    with tarfile.open(f"{project}.tar.gz", "w:gz") as archive:
        archive.add(project, project.name)


@pytest.mark.parametrize("then", ["", "raise ImportError('broken')"])
def test_pillow_is_swapped_and_comes_back(tmp_path: Path, then: str) -> None:
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        python = tmp_path / "venv" / "bin" / "python"
        return subprocess.run([python, *command], env=environment, capture_output=True, text=True, check=False)

    def installed() -> str:
        return run("-m", "pip", "list", "--format=freeze", "--exclude=pip", "--exclude=setuptools").stdout.strip()

    write_source(tmp_path, "pillow", "12.1.0")
    write_source(tmp_path, "pillow-simd", "12.1.1.post0", then)
    assert run("-m", "pip", "install", "pillow").returncode == 0
    done = run(SCRIPT, "install")
    assert (installed(), "ImportError: broken" in done.stderr) == (
        f"pillow=={'12.1.0' if then else '12.1.1.post0'}",
        bool(then),
    )
    assert done.returncode == bool(then)
    assert "in place already" in run(SCRIPT, "remove" if then else "install").stdout
    if not then:  # also from where both wrote over each other
        assert run("-m", "pip", "install", "pillow-simd").returncode == 0
        assert installed() == "pillow==12.1.1.post0\npillow-simd==12.1.1.post0"
        (tmp_path / "pillow-12.1.0.tar.gz").unlink()  # the kept wheel is enough
        assert run(SCRIPT, "remove").returncode == 0
    assert installed() == "pillow==12.1.0"
    assert run("-c", "from PIL import Image; Image.new('L', (8, 8))").returncode == 0
