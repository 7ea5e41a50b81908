"""Test the doctor's checks of GPU, link and profilers with simulated tools and files."""

from __future__ import annotations

import os

import pytest
import torch

from fastload.commands.doctor import checks_gpu
from fastload.commands.doctor.checks_gpu import (
    Link,
    check_copy,
    check_cuda,
    check_nsight,
    find_nsight,
    link_from_smi,
    link_from_sysfs,
)

DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n"
OLD_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n"


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def tool(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty_path(monkeypatch, tmp_path):
    """A search path with nothing on it but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update")

    monkeypatch.setattr(torch.cuda, "init", init)


@pytest.mark.usefixtures("no_cuda")
class TestCuda:
    def test_no_gpu_is_no_problem(self, tmp_path):
        check = check_cuda(tmp_path)
        assert check.status == "note"
        assert "runs natively all the same" in check.remedy

    def test_a_driver_whose_devices_are_hidden(self, tmp_path):
        write(tmp_path, {"proc/driver/nvidia/version": DRIVER})
        check = check_cuda(tmp_path)
        assert check.status == "warning"
        assert "--gpus all" in check.remedy
        assert check.data["driver"] == "570.86.15"

    def test_a_torch_without_cuda_beside_a_gpu(self, tmp_path, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", None)
        write(tmp_path, {"proc/driver/nvidia/version": OLD_DRIVER, "dev/nvidiactl": ""})
        check = check_cuda(tmp_path)
        assert check.finding == "driver 535.129.03, but torch has no CUDA"
        assert "pip install" in check.remedy

    def test_a_driver_that_is_too_old(self, tmp_path):
        write(tmp_path, {"proc/driver/nvidia/version": OLD_DRIVER, "dev/nvidiactl": ""})
        check = check_cuda(tmp_path)
        assert "too old (found version 11040)" in check.finding
        assert "Please update" not in check.finding, "one line"
        assert "update the NVIDIA driver to one for CUDA 13.0" in check.remedy

    def test_devices_that_were_hidden_by_the_environment(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        write(tmp_path, {"proc/driver/nvidia/version": DRIVER, "dev/nvidiactl": ""})
        assert "CUDA_VISIBLE_DEVICES is ''" in check_cuda(tmp_path).remedy


class TestLink:
    def smi(self, folder, csv, details="GPU C2C Mode : Disabled"):
        tool(folder / "nvidia-smi", f'case "$1" in -q) echo "    {details}";; *) echo "{csv}";; esac')

    def test_pcie(self, empty_path):
        self.smi(empty_path, "5, 16, 5, 16")
        link = link_from_smi("GPU-1")
        assert link == Link("PCIe", 5, 16, 5, 16)
        assert str(link) == "PCIe gen5 x16"
        assert link.bytes_per_s == pytest.approx(63.0e9, rel=0.001)

    def test_an_idle_link_is_rated_at_its_best_generation(self, empty_path):
        self.smi(empty_path, "1, 16, 4, 16")
        assert str(link_from_smi("0")) == "PCIe gen4 x16"
        assert link_from_smi("0").bytes_per_s == pytest.approx(31.5e9, rel=0.001)

    def test_nvlink_c2c(self, empty_path):
        self.smi(empty_path, "[N/A], [N/A], [N/A], [N/A]", "GPU C2C Mode                          : Enabled")
        link = link_from_smi("0")
        assert str(link) == "NVLink-C2C"
        assert link.bytes_per_s is None

    def test_a_driver_that_does_not_know(self, empty_path):
        self.smi(empty_path, "[N/A], [N/A], [N/A], [N/A]")
        assert str(link_from_smi("0")) == "PCIe"
        assert link_from_smi("0").bytes_per_s is None

    def test_no_answer(self, empty_path):
        assert link_from_smi("0") is None
        tool(empty_path / "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
        assert link_from_smi("0") is None

    def test_sysfs(self, tmp_path):
        write(
            tmp_path,
            {
                "current_link_speed": "2.5 GT/s PCIe\n",
                "max_link_speed": "32.0 GT/s PCIe\n",
                "current_link_width": "8\n",
                "max_link_width": "16\n",
            },
        )
        assert link_from_sysfs(tmp_path) == Link("PCIe", 1, 8, 5, 16)
        assert link_from_sysfs(tmp_path / "missing") is None


class TestCopy:
    @pytest.fixture
    def copy(self, monkeypatch):
        def prepare(pinned, pageable, link):
            monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
            monkeypatch.setattr(checks_gpu, "measure_copy", lambda device, repeats: (pinned, pageable))
            monkeypatch.setattr(checks_gpu, "find_link", lambda device: link)
            return check_copy()

        return prepare

    def test_a_good_link(self, copy):
        check = copy(51e9, 23e9, Link("PCIe", 5, 16, 5, 16))
        assert check.status == "ok"
        assert check.finding == "pinned 51.0 GB/s, pageable 23.0 GB/s over PCIe gen5 x16 (63 GB/s)"
        assert check.data["pinned_bytes_per_s"] == 51e9

    def test_a_slow_copy_has_a_remedy(self, copy):
        check = copy(12e9, 6e9, Link("PCIe", 5, 16, 5, 16))
        assert check.status == "warning"
        assert "numactl" in check.remedy

    def test_missing_lanes_have_a_remedy(self, copy):
        check = copy(25e9, 12e9, Link("PCIe", 5, 8, 5, 16))
        assert check.status == "warning"
        assert "only 8 of 16 lanes" in check.remedy

    def test_c2c_has_no_pcie_rate_to_fall_short_of(self, copy):
        check = copy(400e9, 300e9, Link("NVLink-C2C"))
        assert check.status == "ok"
        assert check.finding.endswith("over NVLink-C2C")

    def test_an_unknown_link_is_said_to_be_unknown(self, copy):
        assert copy(25e9, 12e9, None).finding.endswith("link unknown")

    def test_a_full_gpu_is_reported(self, copy, monkeypatch):
        def full(device, repeats):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 128 MiB.\nmore")

        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(checks_gpu, "measure_copy", full)
        check = check_copy()
        assert check.status == "warning"
        assert check.finding == "not measured: CUDA out of memory. Tried to allocate 128 MiB."


class TestNsight:
    def test_the_search_path_comes_first(self, empty_path, tmp_path):
        tool(tmp_path / "opt/nvidia/nsight-systems/2025.1.1/bin/nsys", "echo")
        on_path = tool(empty_path / "nsys", "echo 'NVIDIA Nsight Systems version 2024.5.1.113-245134619542v0'")
        assert find_nsight("nsys", tmp_path) == on_path
        check = check_nsight("nsys", tmp_path)
        assert (check.status, check.data["version"]) == ("ok", "2024.5.1.113-245134619542v0")

    def test_nsys_is_found_inside_the_newest_nsight_compute(self, empty_path, tmp_path):
        for release in ("2024.3.2", "2025.2.0", "2025.10.1"):
            tool(
                tmp_path / f"opt/nvidia/nsight-compute/{release}/host/target-linux-x64/nsys",
                f"echo 'NVIDIA Nsight Systems version {release}.5'",
            )
        check = check_nsight("nsys", tmp_path)
        assert check.data["version"] == "2025.10.1.5"
        assert check.status == "note"
        assert f"export PATH={os.path.dirname(check.data['path'])}:$PATH" in check.remedy

    def test_a_file_that_cannot_be_run_is_not_a_tool(self, empty_path, tmp_path):
        tool(tmp_path / "opt/nvidia/nsight-compute/2025.2.0/ncu", "echo").chmod(0o644)
        if os.access(tmp_path / "opt/nvidia/nsight-compute/2025.2.0/ncu", os.X_OK):
            pytest.skip("this user may run anything")
        assert find_nsight("ncu", tmp_path) is None

    @pytest.mark.parametrize(("name", "package"), [("nsys", "nsight-systems"), ("ncu", "nsight-compute")])
    def test_an_absent_tool_is_no_problem_but_has_a_remedy(self, empty_path, tmp_path, name, package):
        check = check_nsight(name, tmp_path)
        assert check.status == "note"
        assert package in check.remedy

    @pytest.mark.parametrize(
        ("restricted", "capabilities", "noted"),
        [("1", "00000000a80425fb", True), ("1", "000001ffffffffff", False), ("0", "0000000000000000", False)],
    )
    def test_counters_for_administrators_only(self, empty_path, tmp_path, restricted, capabilities, noted):
        tool(
            empty_path / "ncu",
            "echo 'NVIDIA (R) Nsight Compute Command Line Profiler'; echo 'Version 2025.2.0.0 (build 1)'",
        )
        write(
            tmp_path,
            {
                "proc/driver/nvidia/params": f"EnableMSI: 1\nRmProfilingAdminOnly: {restricted}\n",
                "proc/self/status": f"Name: x\nCapEff:\t{capabilities}\n",
            },
        )
        check = check_nsight("ncu", tmp_path)
        assert check.data["version"] == "2025.2.0.0"
        assert (check.status == "note") is noted
        assert noted is ("ERR_NVGPUCTRPERM" in (check.remedy or ""))


def test_a_tool_that_hangs_is_given_up(empty_path):
    tool(empty_path / "nvidia-smi", "exec /bin/sleep 60")
    assert checks_gpu._output("nvidia-smi", timeout_s=0.2) is None
