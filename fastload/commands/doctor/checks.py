"""The doctor's checks of the host: one function per finding, each with its remedy.

Pillow is checked in ``checks_pil``, the GPU and the profilers in ``checks_gpu``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from fastload import _machine
from fastload._version import rebuild, version_of
from fastload.nvtx import stages

Status: TypeAlias = Literal["ok", "note", "warning", "missing"]
"""State of what was checked: well; worth knowing; slow or about to fail; missing, so that nothing works."""

# Releases that the code relies on.
MINIMUM_TORCH: Final = (2, 11)
MINIMUM_NVTX: Final = (0, 2, 13)

# Below this, a few workers with prefetched batches of 256 float32 images (154 MB each) fill /dev/shm.
SMALL_SHM_BYTES: Final = 2 << 30
FEW_DESCRIPTORS: Final = 4096
LITTLE_MEMORY_BYTES: Final = 4 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    finding: str  # one line
    status: Status = "ok"
    remedy: str | None = None  # advice, which every warning and everything missing has
    data: dict[str, Any] = field(default_factory=dict)  # figures, fit for JSON: bytes, and bytes per second

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"status must be one of {', '.join(get_args(Status))}, got {self.status!r}")
        if self.status in ("warning", "missing") and not self.remedy:
            raise ValueError(f"a check that is {self.status!r} must name a remedy, got none for {self.name!r}")

    def but(self, status: Status, remedy: str) -> Check:
        """Return the same finding with another status and a remedy."""
        return replace(self, status=status, remedy=remedy)


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``"2.11.0+cu130"`` is ``(2, 11, 0)``."""
    numbers: list[int] = []
    for part in version.partition("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def gib(size_bytes: float) -> str:
    """Format a size for people."""
    return f"{size_bytes / 2**30:.1f} GiB"


def check_python() -> Check:
    """Check the interpreter and the processor."""
    model, version = _machine.cpu_model(), platform.python_version()
    data = {"version": version, "executable": sys.executable, "system": platform.platform(), "processor": model}
    return Check("python", f"{version} on {model}, {platform.system()} {platform.release()}", data=data)


def check_torch() -> Check:
    """Check torch's version and what it was built for."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("torch", f"does not import: {error}", "missing", "pip install --force-reinstall torch torchvision")
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    if getattr(torch.version, "hip", None):
        built_for = f"ROCm {torch.version.hip}"
    check = Check(
        "torch",
        f"{torch.__version__}, built for {built_for}",
        data={"version": torch.__version__, "cuda": torch.version.cuda},
    )
    if release(torch.__version__) < MINIMUM_TORCH:
        wanted = ".".join(map(str, MINIMUM_TORCH))
        return check.but("missing", f"pip install --upgrade 'torch>={wanted}' torchvision")
    return check


def check_torchvision() -> Check:
    """Check torchvision, whose compiled part loads only with the torch it was built for."""
    version = version_of("torchvision")
    if version is None:
        return Check("torchvision", "not installed", "missing", "pip install torchvision")
    try:
        import torchvision
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = (
            "torch and torchvision do not belong together; install both in one command: "
            "pip install --force-reinstall torch torchvision"
        )
        return Check("torchvision", f"{version} does not import: {reason}", "missing", remedy, {"version": version})
    return Check("torchvision", str(torchvision.__version__), data={"version": str(torchvision.__version__)})


def check_cpu() -> Check:
    """Check the number of cores that this process may use."""
    budget = _machine.cpu_budget()
    quota = "no quota" if budget.quota is None else f"quota {budget.quota:g}"
    check = Check(
        "cpu",
        f"{budget.usable} usable (machine {budget.online}, affinity {budget.affinity}, {quota})",
        data={"usable": budget.usable, **asdict(budget)},
    )
    if budget.usable < budget.online:
        remedy = (
            f"more than {budget.usable} workers will not help, whatever os.cpu_count() says; give the container or job "
            "more cores (docker run --cpus, sbatch --cpus-per-task)"
        )
        return check.but("note", remedy)
    if budget.usable == 1:
        return check.but("warning", "one core cannot load and train at once: give it at least 2")
    return check


def check_memory() -> Check:
    """Check how much memory this process may still allocate."""
    budget = _machine.memory_budget()
    limit = "no limit" if budget.limit_bytes is None else f"limit {gib(budget.limit_bytes)}"
    data = {name: getattr(budget, name) for name in ("usable_bytes", "available_bytes", "limit_bytes")}
    check = Check("memory", f"{gib(budget.usable_bytes)} usable ({limit})", data=data)
    if budget.usable_bytes < LITTLE_MEMORY_BYTES:
        remedy = "fewer workers or a smaller prefetch_factor; or raise the container's limit (docker run --memory)"
        return check.but("warning", remedy)
    return check


def check_shared_memory() -> Check:
    """Check ``/dev/shm``, through which workers send their batches."""
    found = _machine.shared_memory_bytes()
    if found is None:
        return Check("/dev/shm", "none", "warning", "mount a tmpfs there: workers hand over batches through it")
    size, free = found
    check = Check("/dev/shm", f"{gib(size)}, {gib(free)} free", data={"size_bytes": size, "free_bytes": free})
    if free < SMALL_SHM_BYTES:
        remedy = (
            "workers die with a bus error when it is full: docker run --shm-size=16g (or --ipc=host); "
            "outside of containers: mount -o remount,size=50% /dev/shm"
        )
        return check.but("warning", remedy)
    return check


def check_descriptors() -> Check:
    """Check the limit of open files; every live tensor from a worker takes one."""
    soft, hard = _machine.file_descriptor_limits()
    finding = f"{'unlimited' if soft is None else soft} (hard limit {'none' if hard is None else hard})"
    check = Check("descriptors", finding, data={"soft": soft, "hard": hard})
    if soft is None or soft >= FEW_DESCRIPTORS:
        return check
    remedy = "raise the hard limit too (docker run --ulimit nofile=65536:65536, limits.conf)"
    if hard is None or hard > soft:
        raised = "unlimited" if hard is None else min(hard, 65536)
        remedy = f"batches that are kept alive can use them up ('Too many open files'): ulimit -n {raised}"
    return check.but("note" if soft >= 1024 else "warning", remedy)


def check_native_core() -> Check:
    """Check ``fastload._core``, its libjpeg-turbo, and what it decodes besides."""
    try:
        from fastload import _core

        version, others = _core.libjpeg_version(), _core.codec_versions()
    except (ImportError, OSError, AttributeError) as error:
        remedy = rebuild(
            "install libjpeg-turbo (Debian: apt-get install libjpeg62-turbo-dev; Ubuntu: libjpeg-turbo8-dev)"
        )
        return Check("native core", f"does not load: {error}", "missing", remedy)
    data = {"libjpeg": version, "other_formats": others}
    check = Check("native core", f"loads, {version}, {others}", data=data)
    if "WebP" not in others:
        remedy = rebuild("for WebP files, which Pillow decodes now: apt-get install libwebp-dev")
        return check.but("note", remedy)
    return check


_LIBRARY: Final = re.compile(r"lib(jpeg|turbojpeg|webp|z|z-ng)[.-].*")
"""Files of the libraries that decode images; each package may bring its own, with a hash in the name."""


def check_libraries() -> Check:
    """Check which files of the libraries that decode images are loaded, and for the core."""
    try:
        from fastload import _core
    except ImportError as error:
        return Check("libraries", f"not known, as the core does not load: {error}", "note")
    package = os.path.dirname(os.path.realpath(_core.__file__))
    files = {path: _version_in(path) for path in _machine.mapped_files() if _LIBRARY.fullmatch(os.path.basename(path))}
    core, findings, others = {}, [], []
    for name, version, built_with, loaded in _core.linked_libraries():
        loaded = loaded and os.path.realpath(loaded)
        # In the core itself, as in a wheel, or beside it, or in the folder of the build.
        if os.path.dirname(loaded) not in (package, os.path.realpath(os.path.dirname(built_with))):
            others.append(f"{name} from {loaded} in place of {built_with}")
            version = "" if name == "libjpeg" else version  # not known: it cannot be asked
        core[name] = {"built_with": built_with, "loaded": loaded, "version": version}
        inside = loaded == os.path.realpath(_core.__file__)
        findings.append(f"{name} {version}".rstrip() + (" inside" if inside else f" in {loaded or 'no file'}"))
    check = Check("libraries", ", ".join(findings), data={"core": core, "loaded": files})
    if others:
        remedy = (
            f"{'; '.join(others)}: another package was first to load a library of that name, and the core takes it "
            "too (pixels are still compared with Pillow's before a format is decoded); import fastload._core before "
            "that package, or link the core with the same file"
        )
        return check.but("warning", remedy)
    return check


def _version_in(path: str) -> str | None:
    """Ask a loaded library for its version; ``None`` if it cannot say."""
    name = os.path.basename(path)
    try:
        if name.startswith("libz"):
            version = ctypes.CDLL(path).zlibVersion
            version.restype = ctypes.c_char_p
            return os.fsdecode(version())
        if name.startswith("libwebp"):
            number = ctypes.CDLL(path).WebPGetDecoderVersion()
            return f"{number >> 16}.{number >> 8 & 255}.{number & 255}"
    except (OSError, AttributeError):  # its file is gone, or has no such function
        pass
    return None


def check_nvtx() -> Check:
    """Check the ``nvtx`` package and whether a profiler is attached."""
    version = version_of("nvtx")
    wanted = ".".join(map(str, MINIMUM_NVTX))
    remedy = f"pip install 'nvtx>={wanted}'; until then profiles do not show fastload's stages"
    if version is None:
        return Check("nvtx", "not installed", "warning", remedy)
    attached = "a tool is attached" if stages.active() else "no tool attached now"
    check = Check("nvtx", f"{version}, {attached}", data={"version": version, "tool_attached": stages.active()})
    if release(version) < MINIMUM_NVTX:
        return check.but("warning", remedy)
    if os.environ.get("NVTX_DISABLE"):
        off = replace(check, finding=f"{version}, disabled by NVTX_DISABLE")
        return off.but("note", "unset NVTX_DISABLE to profile")
    return check
