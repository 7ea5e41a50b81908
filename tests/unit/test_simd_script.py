"""Run ``scripts/simd.sh`` in a new environment with stand-ins; no network, no compiler."""

import os
import platform
import shutil
import subprocess
import venv
from pathlib import Path

import PIL
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "simd.sh"
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "{}"'
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
        info = {"METADATA": f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {VERSION}", "WHEEL": "Wheel-Version: 1.0"}
        files = {f"{stem}.dist-info/{file}": text for file, text in {**info, "RECORD": "PIL/__init__.py,,\\n"}.items()}
        [wheel.writestr(file, text) for file, text in {"PIL/__init__.py": PACKAGE, **files}.items()]
    return f"{stem}-py3-none-any.whl"
"""


@pytest.mark.thorough
@pytest.mark.skipif(platform.machine() != "x86_64", reason="Pillow-SIMD is written for x86-64")
@pytest.mark.parametrize("then", ["", "raise ImportError('broken')"])
def test_pillow_is_swapped_and_comes_back(tmp_path: Path, then: str) -> None:
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    python, pip = str(tmp_path / "venv" / "bin" / "python"), ["-m", "pip", "--disable-pip-version-check"]
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def installed() -> list[str]:
        listed = run(python, *pip, "list", "--format=freeze").stdout.split()
        return [line for line in listed if "pillow" in line]

    for name, version, last in (("pillow", "12.1.0", ""), ("pillow-simd", "12.1.1.post0", then)):
        project = tmp_path / f"{name.replace('-', '_')}-{version}"
        project.mkdir()
        (project / "pyproject.toml").write_text(PROJECT.format(name) + f'\nversion = "{version}"')
        package = f"{PACKAGE}{version!r}\n{last}"
        (project / "backend.py").write_text(f"VERSION = {version!r}\nPACKAGE = {package!r}\n{BACKEND}")
        shutil.make_archive(str(project), "gztar", tmp_path, project.name)
    assert run(python, *pip, "install", "pillow").returncode == 0
    done = run(SCRIPT, python, "install")
    assert (done.returncode, "ImportError: broken" in done.stderr) == (bool(then), bool(then)), done
    assert installed() == [f"pillow=={'12.1.0' if then else '12.1.1.post0'}"]
    assert "in place already" in run(SCRIPT, python, "remove" if then else "install").stdout
    if not then:  # also from where both wrote over each other
        assert run(python, *pip, "install", "pillow-simd").returncode == 0
        assert installed() == ["pillow==12.1.1.post0", "pillow-simd==12.1.1.post0"]
        (tmp_path / "pillow-12.1.0.tar.gz").unlink()  # the kept wheel is enough
        assert run(SCRIPT, python, "remove").returncode == 0
    assert installed() == ["pillow==12.1.0"]
    assert run(python, "-c", "from PIL import Image; Image.new('L', (8, 8))").returncode == 0
