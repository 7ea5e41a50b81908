"""Swap Pillow for Pillow-SIMD in this interpreter's environment, and back: ``make simd``, ``make unsimd``.

    python scripts/simd.py install     build Pillow-SIMD for this processor and put it in Pillow's place
    python scripts/simd.py remove      put the former Pillow back

Both packages own the folder ``PIL/``, so with both installed either may have overwritten part of the other. That never
happens here: the Pillow-SIMD that was built is installed under the name ``pillow``, with ``+simd`` in its version.
There is then one owner of ``PIL/``, pip sees the requirements of torchvision and others as met and leaves it alone, and
installing another Pillow replaces it cleanly.

Nothing is touched before the new package was built and has worked from a folder of its own. The former package is kept
as a wheel; it comes back by itself if anything fails after the swap, and with ``remove``, without a network.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

REQUIREMENT: Final = "pillow-simd==12.1.1.post0"
SUFFIX: Final = "+simd"
KEPT: Final = Path(sys.prefix, "share", "fastload", "pillow")

# Debian's packages for what a Pillow wheel brings along and a build from source has to find on the system.
LIBRARIES: Final = {
    "webp": "libwebp-dev",
    "avif": "libavif-dev",
    "libtiff": "libtiff-dev",
    "jpg_2000": "libopenjp2-7-dev",
    "littlecms2": "liblcms2-dev",
    "freetype2": "libfreetype-dev",
}

# Runs in a fresh interpreter. Prints what the Pillow there can do, or fails.
PROBE: Final = """
import importlib.util, io, json, sys
import PIL
from PIL import Image, features
assert PIL.__version__ == sys.argv[1], f"version {PIL.__version__}, not {sys.argv[1]}"
image = Image.linear_gradient("L").convert("RGB").resize((64, 48), Image.Resampling.BICUBIC)
for kind in ("JPEG", "PNG"):
    buffer = io.BytesIO()
    image.save(buffer, kind)
    again = Image.open(io.BytesIO(buffer.getvalue())).convert("RGB").resize((32, 24), Image.Resampling.BILINEAR)
    assert again.size == (32, 24) and abs(again.getpixel((16, 12))[0] - image.getpixel((32, 24))[0]) < 8, kind
if "torchvision" in sys.argv[2:] and importlib.util.find_spec("torchvision"):
    import torchvision.transforms
print(json.dumps({name: bool(features.check(name)) for name in sorted(features.get_supported())}))
"""


class SwapError(Exception):
    """What went wrong, for the user."""


def say(text: str) -> None:
    """One line of progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    """Run a command and return its output.

    Raises SwapError with the end of the output when it fails.
    """
    done = subprocess.run(
        command,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-25:])
        raise SwapError(f"{' '.join(command[:6])} … failed with status {done.returncode}:\n{tail}")
    return done.stdout


def pip(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """This interpreter's pip."""
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, environment=environment)


def installed(name: str) -> importlib.metadata.Distribution | None:
    """An installed distribution, or None."""
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def write_wheel(files: dict[str, bytes], name: str, version: str, folder: Path) -> Path:
    """Write a wheel from files, with ``.dist-info`` rewritten for a name and version."""
    info = f"{name}-{version}.dist-info"
    renamed: dict[str, bytes] = {}
    for path, content in files.items():
        first, _, rest = path.partition("/")
        if not first.endswith(".dist-info"):
            renamed[path] = content
        elif rest == "METADATA":
            renamed[f"{info}/METADATA"] = _with_headers(content, {"Name": name, "Version": version})
        elif rest not in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            renamed[f"{info}/{rest}"] = content
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for path, content in renamed.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([path, f"sha256={digest}", len(content)])
    rows.writerow([f"{info}/RECORD", "", ""])
    wheel = folder / f"{name}-{version}-{_tag(renamed[f'{info}/WHEEL'])}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:  # not compressed: it is unpacked again on this machine
        for path, content in {**renamed, f"{info}/RECORD": record.getvalue().encode()}.items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if ".so" in PurePosixPath(path).name else 0o100644) << 16
            archive.writestr(entry, content)
    return wheel


def _with_headers(metadata: bytes, values: dict[str, str]) -> bytes:
    """A METADATA file with some of its headers replaced; its description stays as it is."""
    headers, separator, description = metadata.partition(b"\n\n")
    lines = []
    for line in headers.decode().splitlines():
        key = line.partition(":")[0]
        lines.append(f"{key}: {values[key]}" if key in values else line)
    return "\n".join(lines).encode() + separator + description


def _tag(wheel_file: bytes) -> str:
    """The compatibility tag of a wheel's file name, from the tags in its WHEEL file."""
    tags = [
        line.partition(":")[2].strip().split("-") for line in wheel_file.decode().splitlines() if line[:4] == "Tag:"
    ]
    return "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))


def pack_installed(distribution: importlib.metadata.Distribution, folder: Path) -> Path:
    """The wheel that an installed distribution came from, made of its files."""
    files = {}
    if distribution.read_text("RECORD") is None:
        raise SwapError("the Pillow here was not installed by pip, so it cannot be swapped; use a virtual environment")
    for file in distribution.files or ():
        if file.suffix == ".pyc" or ".." in file.parts:
            continue
        files[file.as_posix()] = Path(str(file.locate())).read_bytes()
    return write_wheel(files, distribution.metadata["Name"].lower(), distribution.version, folder)


def build(folder: Path) -> Path:
    """Build Pillow-SIMD's wheel for this processor."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise SwapError(f"Pillow-SIMD is written for x86-64, and this machine is {platform.machine()}")
    compiler = os.environ.get("CC", "cc")
    if _has_avx2():
        compiler += " -mavx2"
    say(f"building {REQUIREMENT} with {compiler} …")
    try:
        # No cache: pip's would hand out a wheel that was built with other compiler flags.
        pip(
            *("wheel", "--no-deps", "--no-cache-dir", "--no-binary", "pillow-simd", "-w", str(folder), REQUIREMENT),
            environment={"CC": compiler},
        )
    except SwapError as error:
        raise SwapError(
            f"{error}\n\nPillow-SIMD is built from source: it needs a C compiler and the headers of Python, zlib and "
            "libjpeg-turbo.\nOn Debian: sudo apt-get install gcc python3-dev zlib1g-dev libjpeg62-turbo-dev\n"
            "On Ubuntu: sudo apt-get install gcc python3-dev zlib1g-dev libjpeg-turbo8-dev"
        ) from error
    return next(folder.glob("*.whl"))


def _has_avx2() -> bool:
    try:
        return " avx2 " in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").replace("\n", " ")
    except OSError:
        return False


def as_pillow(wheel: Path, folder: Path) -> Path:
    """Rename a Pillow-SIMD wheel to Pillow; the version is ``PIL``'s with a suffix."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    return write_wheel(files, "pillow", _version(wheel) + SUFFIX, folder)


def probe(version: str, *, path: Path | None = None) -> dict[str, bool]:
    """Return the features of the Pillow in a fresh interpreter.

    Raises SwapError when it has another version or does not work.

    Args:
        version: Its ``PIL.__version__``.
        path: A folder to import it from; by default it is what is installed, and torchvision has to import beside it.
    """
    environment = {} if path is None else {"PYTHONPATH": str(path)}
    beside = [] if path else ["torchvision"]
    features: dict[str, bool] = json.loads(
        run(sys.executable, "-W", "ignore", "-c", PROBE, version, *beside, environment=environment).splitlines()[-1]
    )
    return features


def swap(wheel: Path, former: Path | None) -> None:
    """Install a wheel in Pillow's place and check it.

    On failure, restores the former one and raises.
    """
    try:
        _put(wheel)
    except BaseException as error:  # also when interrupted: an environment is never left between the two
        if former is None:
            raise
        say("that failed; putting the former Pillow back …")
        _put(former)
        if isinstance(error, SwapError):
            raise SwapError(f"{error}\nPillow is as it was.") from error
        raise


def _put(wheel: Path) -> None:
    if installed("pillow-simd") is not None:
        pip("uninstall", "--yes", "pillow-simd")  # it and Pillow wrote over each other: neither is whole
    pip("install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
    probe(_version(wheel).removesuffix(SUFFIX))


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def install(wheel: Path | None) -> None:
    """Put Pillow-SIMD in Pillow's place."""
    pillow, mixed = installed("pillow"), installed("pillow-simd") is not None
    if pillow is not None and not mixed and pillow.version.endswith(SUFFIX) and wheel is None:
        probe(pillow.version.removesuffix(SUFFIX))
        say(f"Pillow-SIMD {pillow.version.removesuffix(SUFFIX)} is in place already; make unsimd puts Pillow back")
        return
    with tempfile.TemporaryDirectory(prefix="fastload-simd-") as scratch:
        folder = Path(scratch)
        for name in ("built", "trial", "former"):
            (folder / name).mkdir()
        new = as_pillow(wheel or build(folder / "built"), folder)
        version = _version(new).removesuffix(SUFFIX)
        pip("install", "--no-deps", "--no-index", "--no-compile", "--target", str(folder / "trial"), str(new))
        able = probe(version, path=folder / "trial")
        before: dict[str, bool] = {}
        former = None
        if mixed:
            former = _get_pillow(folder / "former")
        elif pillow is not None:
            before = probe(pillow.version.removesuffix(SUFFIX))
            former = pack_installed(pillow, folder / "former")
        if former is not None and not _version(former).endswith(SUFFIX):
            _keep(former)
        swap(new, former)
    say(f"Pillow-SIMD {version} is in Pillow's place; fastload doctor shows its speed, make unsimd puts Pillow back")
    lost = [name for name, had in before.items() if had and not able.get(name) and name in LIBRARIES]
    if lost:
        packages = " ".join(LIBRARIES[name] for name in lost)
        say(f"It was built without {', '.join(lost)}. If you need them: make unsimd, install {packages}, make simd")


def remove() -> None:
    """Put the former Pillow back."""
    pillow, mixed = installed("pillow"), installed("pillow-simd") is not None
    if pillow is not None and not mixed and not pillow.version.endswith(SUFFIX):
        say(f"Pillow {pillow.version} is in place; nothing to do")
        return
    with tempfile.TemporaryDirectory(prefix="fastload-simd-") as scratch:
        folder = Path(scratch)
        former = _get_pillow(folder)
        current = pack_installed(pillow, folder) if pillow is not None and not mixed else None
        swap(former, current)
        version = _version(former)
    say(f"Pillow {version} is back in place")


def _keep(former: Path) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    for old in KEPT.glob("*.whl"):
        old.unlink()
    (KEPT / former.name).write_bytes(former.read_bytes())


def _get_pillow(folder: Path) -> Path:
    """Return Pillow's wheel: the one kept by the swap, else from the package index."""
    kept = next(iter(KEPT.glob("*.whl")), None)
    if kept is None:
        say("getting Pillow …")
        pip("wheel", "--no-deps", "-w", str(folder), "pillow")
        kept = next(folder.glob("pillow-*.whl"))
    return kept


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="simd.py", description="swap Pillow for Pillow-SIMD, and back")
    parser.add_argument("action", choices=("install", "remove"))
    parser.add_argument("--wheel", type=Path, help="install this Pillow-SIMD wheel instead of building one")
    arguments = parser.parse_args()
    try:
        pip("--version")
        if arguments.action == "install":
            install(arguments.wheel)
        else:
            remove()
    except SwapError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
