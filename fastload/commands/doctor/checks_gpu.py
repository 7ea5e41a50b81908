"""The doctor's checks of the GPU, its copy speed, and the profilers."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastload.commands.doctor.checks import Check, gib
from fastload.profiling.recording.nsys import find_nsight

if TYPE_CHECKING:
    import torch

_ROOT: Final = Path("/")

COPY_BYTES: Final = 128 << 20
COPY_REPEATS: Final = 9

# Payload bytes per second and lane, by PCIe generation: the transfer rate less the line code (8b/10b, then 128b/130b;
# generation 6 sends fixed-size blocks, of which 242 of 256 bytes are payload).
_LANE_BYTES_PER_S: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_GENERATION_BY_SPEED: Final = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # GT/s, as in sysfs
# Pinned copies reach about 80% of a PCIe link; less than half means that something slows it down.
_POOR_SHARE: Final = 0.5

_NSIGHT_NAMES: Final = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_CAP_SYS_ADMIN: Final = 21


@dataclass(frozen=True, slots=True)
class Link:
    """The link between host memory and a GPU."""

    kind: str  # "PCIe" or "NVLink-C2C"
    generation: int | None = None  # PCIe generation in use; an idle GPU may run at a lower one
    width: int | None = None  # lanes in use
    max_generation: int | None = None  # the highest generation that both the GPU and its slot support
    max_width: int | None = None  # the most lanes that both support

    @property
    def bytes_per_s(self) -> float | None:
        """Capacity of a PCIe link in one direction, at its best generation; None if unknown."""
        generation = self.max_generation or self.generation
        if self.kind != "PCIe" or generation not in _LANE_BYTES_PER_S or not self.width:
            return None
        return _LANE_BYTES_PER_S[generation] * self.width

    def __str__(self) -> str:
        if self.kind != "PCIe" or not self.width:
            return self.kind
        return f"PCIe gen{self.max_generation or self.generation or '?'} x{self.width}"


def cuda_available() -> bool:
    """Whether torch can use a CUDA (or ROCm) device; never warns."""
    try:
        import torch
    except (ImportError, OSError):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # check_cuda reports the reason
        return torch.cuda.is_available()


def check_cuda(root: Path = _ROOT) -> Check:
    """Check whether torch can use a GPU, and if not, why."""
    import torch

    driver = _driver_version(root)
    visible = (root / "dev/nvidiactl").exists()
    data: dict[str, Any] = {"available": False, "built_for": torch.version.cuda, "driver": driver}
    data["available"] = cuda_available()
    if data["available"]:
        runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        return Check("cuda", f"{runtime}, driver {driver or 'of unknown version'}", data=data)
    other = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if other is not None:
        data["accelerator"] = other.type
        return Check("cuda", f"none; accelerator: {other.type}", data=data)
    if driver is None and not visible:
        remedy = (
            "without a GPU batches stay in host memory (FastLoader runs natively all the same); in a container, start "
            "it with --gpus all"
        )
        return Check("cuda", "no NVIDIA GPU in sight", "note", remedy, data)
    driver = driver or "of unknown version"
    if torch.version.cuda is None:
        remedy = "this torch was built without CUDA: pip install --force-reinstall torch torchvision"
        return Check("cuda", f"driver {driver}, but torch has no CUDA", "warning", remedy, data)
    reason = _why_cuda_fails()
    remedy = (
        f"update the NVIDIA driver to one for CUDA {torch.version.cuda}, or install a torch built for an older CUDA"
    )
    if not visible:
        remedy = "the driver is loaded but its devices are not visible here: start the container with --gpus all"
    elif os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        remedy = f"CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']!r}: unset it. Otherwise {remedy}"
    return Check("cuda", f"driver {driver}, but torch cannot use it: {reason}", "warning", remedy, data)


def _why_cuda_fails() -> str:
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0].rstrip(".")
    return "it counts no devices"


def _driver_version(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", text)
    return found[1] if found else None


def check_gpu() -> Check:
    """List the GPUs visible to this process."""
    import torch

    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    data = {
        "devices": [
            {"name": gpu.name, "memory_bytes": gpu.total_memory, "compute_capability": f"{gpu.major}.{gpu.minor}"}
            for gpu in devices
        ]
    }
    descriptions = [f"{gpu.name}, {gib(gpu.total_memory)}, compute {gpu.major}.{gpu.minor}" for gpu in devices]
    counted = [f"{descriptions.count(each)} x {each}" for each in dict.fromkeys(descriptions)]
    return Check("gpu", "; ".join(counted if len(devices) > 1 else descriptions), data=data)


def check_copy(repeats: int = COPY_REPEATS) -> Check:
    """Check the current GPU's copy speed, pinned and pageable, against its link's capacity."""
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    try:
        pinned, pageable = measure_copy(device, repeats=repeats)
    except RuntimeError as error:  # torch's out-of-memory errors among them
        reason = str(error).splitlines()[0]
        return Check("copy", f"not measured: {reason}", "warning", "free memory on the GPU and run this again")
    link = find_link(device)  # right after the copies, before the GPU returns to saving power
    data: dict[str, Any] = {
        "device": str(device),
        "link": None if link is None else str(link),
        "link_bytes_per_s": None if link is None else link.bytes_per_s,
        "pinned_bytes_per_s": pinned,
        "pageable_bytes_per_s": pageable,
        "copied_bytes": COPY_BYTES,
    }
    finding = f"pinned {pinned / 1e9:.1f} GB/s, pageable {pageable / 1e9:.1f} GB/s"
    if link is None:
        return Check("copy", f"{finding}; link unknown", data=data)
    possible = link.bytes_per_s
    finding += f" over {link}" + ("" if possible is None else f" ({possible / 1e9:.0f} GB/s)")
    if link.width and link.max_width and link.width < link.max_width:
        remedy = f"only {link.width} of {link.max_width} lanes are in use: move the GPU to a full slot, check the riser"
        return Check("copy", finding, "warning", remedy, data)
    if possible is not None and pinned < _POOR_SHARE * possible:
        remedy = (
            "something holds the link back: another process that copies, or cores on the far socket "
            "(nvidia-smi topo -m shows the near ones; numactl --cpunodebind --membind keeps to them)"
        )
        return Check("copy", finding, "warning", remedy, data)
    return Check("copy", finding, data=data)


def measure_copy(
    device: torch.device, *, size_bytes: int = COPY_BYTES, repeats: int = COPY_REPEATS
) -> tuple[float, float]:
    """Median bytes/s from pinned and pageable host memory, on the current stream. Blocks."""
    import torch

    target = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    # Written to, because untouched pageable memory is one shared page of zeros, which copies faster than real data.
    sources = [torch.ones(size_bytes, dtype=torch.uint8, pin_memory=pinned) for pinned in (True, False)]
    speeds = []
    for source in sources:
        times_s = []
        for _ in range(repeats + 2):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize(device)
            times_s.append(time.perf_counter() - start)
        speeds.append(size_bytes / statistics.median(times_s[2:]))  # the first two warm up
    return speeds[0], speeds[1]


def find_link(device: torch.device, root: Path = _ROOT) -> Link | None:
    """The GPU's link, from ``nvidia-smi`` or else sysfs; None if neither knows it."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    link = None if uuid is None else link_from_smi(f"GPU-{uuid}")
    if link is None and hasattr(properties, "pci_bus_id"):
        domain, slot = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
        link = link_from_sysfs(root / f"sys/bus/pci/devices/{domain:04x}:{properties.pci_bus_id:02x}:{slot:02x}.0")
    return link


def link_from_smi(gpu: str) -> Link | None:
    """The link of a GPU (UUID or index), from ``nvidia-smi``; None if it fails."""
    fields = "pcie.link.gen.current,pcie.link.width.current,pcie.link.gen.max,pcie.link.width.max"
    answer = _output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", gpu)
    if answer is None or answer.count(",") != 3:
        return None
    # "N/A" and "[N/A]" mean that the driver does not know.
    values = [int(value) if value.strip().isdigit() else None for value in answer.split(",")]
    details = _output("nvidia-smi", "-q", "-i", gpu) or ""
    kind = "NVLink-C2C" if re.search(r"C2C Mode\s*:\s*Enabled", details) else "PCIe"
    return Link(kind, *values)


def link_from_sysfs(folder: Path) -> Link | None:
    """The link of the PCI device with this sysfs folder; None if unknown."""

    def read(name: str) -> str:
        try:
            return (folder / name).read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def generation(text: str) -> int | None:
        return _GENERATION_BY_SPEED.get(text.partition(" ")[0])

    width, max_width = read("current_link_width"), read("max_link_width")
    if not width.isdigit():
        return None
    return Link(
        "PCIe",
        generation(read("current_link_speed")),
        int(width),
        generation(read("max_link_speed")),
        int(max_width) if max_width.isdigit() else None,
    )


def check_nsight(tool: str, root: Path = _ROOT) -> Check:
    """Check whether ``nsys`` or ``ncu`` is installed and may be used."""
    name = _NSIGHT_NAMES[tool]
    path = find_nsight(tool, root)
    if path is None:
        package = "nsight-systems" if tool == "nsys" else "nsight-compute"
        remedy = f"to profile, install {name}: the package {package} in NVIDIA's CUDA repository, or its own installer"
        return Check(tool, "not found", "note", remedy)
    found = re.search(r"[Vv]ersion (\d\S*)", _output(str(path), "--version") or "")
    version = found[1].rstrip(",") if found else None
    data = {"path": str(path), "version": version}
    finding = f"{version or 'version unknown'}, {path}"
    if tool == "ncu" and _counters_are_for_administrators(root):
        remedy = (
            "kernel metrics are for administrators here (ERR_NVGPUCTRPERM): run as root with CAP_SYS_ADMIN, "
            "or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
        return Check(tool, finding, "note", remedy, data)
    if shutil.which(tool) is None:
        return Check(tool, finding, "note", f"not on the search path: export PATH={path.parent}:$PATH", data)
    return Check(tool, finding, data=data)


def _counters_are_for_administrators(root: Path) -> bool:
    """Whether the driver denies this process the GPU's performance counters."""
    try:
        parameters = (root / "proc/driver/nvidia/params").read_text(encoding="ascii", errors="replace")
        status = (root / "proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    restricted = re.search(r"^RmProfilingAdminOnly:\s*1", parameters, re.MULTILINE) is not None
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    administrator = capabilities is not None and bool(int(capabilities[1], 16) >> _CAP_SYS_ADMIN & 1)
    return restricted and not administrator


def _output(*command: str, timeout_s: float = 20) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
