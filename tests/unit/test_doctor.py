"""Test the doctor's report: its shape, exit status, and a remedy for each problem."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import interpreters
import pytest

from fastload import _core, _machine
from fastload._machine import CpuBudget, MemoryBudget
from fastload.commands.doctor import checks, checks_disk, checks_pil
from fastload.commands.doctor.checks import Check, check_native_core
from fastload.commands.doctor.doctor import MachineReport, add_arguments, doctor, main

GIB = 2**30
ALWAYS = [
    "python",
    "torch",
    "torchvision",
    "cuda",
    "cpu",
    "memory",
    "/dev/shm",
    "descriptors",
    "native core",
    "libraries",
    "PIL",
    "nvtx",
    "nsys",
    "ncu",
]


@pytest.fixture(scope="module")
def report():
    return doctor(measure=False)


def arguments(*argv):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(argv)


def test_every_part_of_the_machine_is_looked_at(report):
    names = [check.name for check in report.checks]
    assert [name for name in names if name not in ("gpu", "copy")] == ALWAYS
    assert not [check.finding for check in report.checks if "could not be checked" in check.finding]


def test_a_folders_files_are_read_past_the_page_cache(tmp_path, monkeypatch):
    (tmp_path / "cat").mkdir()
    sizes = {f"cat/{n}.jpg": 1000 * (n + 1) for n in range(5)}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    os.mkfifo(tmp_path / "pipe")  # to open it would block
    (tmp_path / "loop").symlink_to(tmp_path)
    dropped = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: dropped.append(given[1:]))
    check = checks_disk.check_disk(tmp_path)
    assert check.status == "ok"
    assert check.data["files_listed"] == 5
    # Two passes over so few files, each dropped from the cache before and after.
    assert dropped == [(0, 0, os.POSIX_FADV_DONTNEED)] * 20
    for threads in (1, 8):
        found = check.data[f"{threads}_threads"]
        assert found["bytes_per_s"] / found["files_per_s"] == pytest.approx(sum(sizes.values()) / 5), "all were read"
    assert re.fullmatch(
        rf"1 thread [\d,]+ MB/s, [\d,]+ files/s; 8 threads [\d,]+ MB/s, [\d,]+ files/s in {tmp_path}.*", check.finding
    )


def test_reading_ends_in_time(tmp_path, monkeypatch):
    """Reads that never return keep no caller waiting; a large file is read in part."""
    path = tmp_path / "large"
    path.write_bytes(b"x")
    over = threading.Event()
    try:
        monkeypatch.setattr(checks_disk, "FILE_BYTES_MAX", 1 << 60)
        monkeypatch.setattr(os, "read", lambda *_: b"" if over.is_set() else bytes(1 << 10))
        bytes_per_s, files_per_s = checks_disk.measure([path], 1, 0.05)
        assert bytes_per_s > files_per_s > 0
        monkeypatch.setattr(os, "read", lambda *_: over.wait(20) and b"")
        assert checks_disk.measure([path], 1, 0.01) == (0.0, 0.0)
    finally:
        over.set()


def test_a_folder_in_memory_or_without_a_file_is_told(tmp_path, monkeypatch):
    for folder in (tmp_path, tmp_path / "absent"):
        empty = checks_disk.check_disk(folder)
        assert (empty.status, empty.finding) == ("warning", f"no file that can be read in {folder}")
    (tmp_path / "x").write_bytes(b"x")
    monkeypatch.setattr(checks_disk, "_file_system", lambda _: "tmpfs")
    assert checks_disk.check_disk(tmp_path).finding.endswith(f" in {tmp_path}, which is memory (tmpfs)")


def test_a_folder_is_measured_where_one_is_named_only(tmp_path, monkeypatch):
    monkeypatch.setattr(checks_disk, "check_disk", lambda folder: Check("disk", str(folder)))
    monkeypatch.setattr(checks_pil, "check_pil", lambda **_: Check("PIL", "not asked"))
    for argv, folder in (([], None), (["--folder", str(tmp_path)], tmp_path)):
        args = arguments(*argv)
        assert args.folder == folder
    assert doctor(folder=tmp_path)["disk"].finding == str(tmp_path)


def test_a_machine_that_runs_these_tests_works(report):
    assert report.ok
    assert report.verdict().startswith("works here")


def test_json_has_the_documented_shape(report):
    written = json.loads(json.dumps(report.to_dict()))
    assert written.keys() == {"fastload", "ok", "checks"}
    assert written["ok"] is True
    for name, check in written["checks"].items():
        assert check.keys() == {"status", "finding", "remedy", "data"}, name
        assert check["status"] in ("ok", "note", "warning", "missing")
        assert isinstance(check["finding"], str)
        assert "\n" not in check["finding"]
        assert check["remedy"] is None or check["remedy"]
    assert written["checks"]["cpu"]["data"]["usable"] == _machine.usable_cpus()
    assert written["checks"]["torch"]["data"]["version"]


def test_text_names_every_check_and_every_remedy(report):
    joined = " ".join(str(report).split())
    for text in [check.finding for check in report.checks] + [check.remedy for check in report.remedies]:
        assert " ".join(text.split()) in joined


@pytest.mark.slow
def test_the_command_prints_json_and_nothing_else():
    done = subprocess.run(
        [sys.executable, "-m", "fastload", "doctor", "--json", "--no-measure"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(json.loads(done.stdout)["checks"])[:3] == ALWAYS[:3]
    assert done.stderr == ""


def test_a_core_that_does_not_load_is_reported_with_exit_status_1():
    code = (
        "import sys; sys.modules['fastload._core'] = None\n"
        "from fastload.commands.cli import main; sys.exit(main(['doctor', '--json', '--no-measure']))"
    )
    done = interpreters.run(["-c", code])
    assert done.returncode == 1, done.stderr
    core = json.loads(done.stdout)["checks"]["native core"]
    assert core["status"] == "missing"
    assert "libjpeg62-turbo-dev" in core["remedy"]


def test_a_core_without_a_format_says_which_package_it_needs(monkeypatch):
    monkeypatch.setattr(_core, "codec_versions", lambda: "PNG")
    check = check_native_core()
    assert (check.status, check.data["other_formats"]) == ("note", "PNG")
    assert "for WebP files" in check.remedy
    assert "apt-get install libwebp-dev," in check.remedy
    monkeypatch.undo()
    assert check_native_core().status == "ok"


WEBP = "/usr/lib/libwebp.so"


@pytest.mark.parametrize(
    ("loaded", "status"),
    [
        ("/usr/lib/libwebp.so.7.1", "ok"),
        ("{core}", "ok"),  # linked statically
        ("{package}/libwebp.so.7", "ok"),
        ("/site-packages/torchvision.libs/libwebp.bab959f1.so.7", "warning"),
        ("", "warning"),
    ],
)
def test_a_library_that_another_package_has_loaded_is_named(monkeypatch, loaded, status):
    core = os.path.realpath(_core.__file__)
    loaded = loaded.format(core=core, package=os.path.dirname(core))
    libraries = [
        ("libjpeg", "2.1.5", "/usr/lib/libjpeg.so", "/usr/lib/libjpeg.so.0"),
        ("libwebp", "1.6.0", WEBP, loaded),
    ]
    monkeypatch.setattr(_core, "linked_libraries", lambda: libraries)
    check = checks.check_libraries()
    assert check.status == status
    where = "inside" if loaded == core else f"in {loaded or 'no file'}"
    assert check.finding == f"libjpeg 2.1.5 in /usr/lib/libjpeg.so.0, libwebp 1.6.0 {where}"
    assert check.data["core"]["libwebp"] == {"built_with": WEBP, "loaded": loaded, "version": "1.6.0"}
    assert (status == "ok") == (check.remedy is None)
    assert status == "ok" or check.remedy.startswith(f"libwebp from {loaded} in place of {WEBP}: another package")


def test_anothers_libjpeg_has_no_version(monkeypatch):
    """The headers name one, but it cannot be asked."""
    libraries = [("libjpeg", "2.1.5", "/usr/lib/libjpeg.so", "/torchvision.libs/libjpeg.so.8")]
    monkeypatch.setattr(_core, "linked_libraries", lambda: libraries)
    assert checks.check_libraries().finding == "libjpeg in /torchvision.libs/libjpeg.so.8"


def test_loaded_libraries_are_listed_with_their_versions(tmp_path):
    data = checks.check_libraries().data
    assert {"libjpeg"} <= data["core"].keys() <= {"libjpeg", "libwebp"}
    mapped = {os.path.realpath(path) for path in data["loaded"]}
    used = {os.path.realpath(one["loaded"]) for one in data["core"].values()}
    assert used <= mapped | {os.path.realpath(_core.__file__)}
    versions = {path: version for path, version in data["loaded"].items() if "libz." in path}
    assert zlib.ZLIB_RUNTIME_VERSION in versions.values() or not versions
    for name, one in data["core"].items():
        if name == "libwebp":
            assert one["version"] in _core.codec_versions()


def test_the_library_that_the_core_uses_is_the_one_that_was_loaded_first(tmp_path):
    """A copy of libwebp is loaded first, as by a package that brings one."""
    libraries = {name: loaded for name, _, _, loaded in _core.linked_libraries()}
    if os.path.realpath(libraries.get("libwebp", "")) in ("", os.path.realpath(_core.__file__)):
        pytest.skip("this core has no libwebp of its own")
    copy = tmp_path / "libwebp.copied.so.7"
    copy.write_bytes(Path(libraries["libwebp"]).read_bytes())
    code = (
        f"import ctypes; ctypes.CDLL({str(copy)!r})\n"
        "from fastload.commands.doctor.checks import check_libraries\n"
        "check = check_libraries(); print(check.status, check.remedy)"
    )
    beside = {**os.environ, "LD_LIBRARY_PATH": str(Path(libraries["libwebp"]).parent)}  # what the library needs
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=beside)
    assert done.stdout.startswith(f"warning libwebp from {copy} in place of ")


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("note", 0), ("warning", 0), ("missing", 1)])
def test_exit_status_is_1_only_when_something_needed_is_missing(monkeypatch, capsys, status, code):
    found = MachineReport("0", (Check("thing", "as it is", status, "do this [about] it"),))
    monkeypatch.setitem(main.__globals__, "doctor", lambda **_: found)
    assert main(arguments()) == code
    shown = capsys.readouterr().out
    assert "as it is" in shown
    assert "do this [about] it" in shown, "square brackets are no markup"


def test_without_rich_the_same_is_said_in_plain_text(monkeypatch, capsys):
    found = MachineReport("0", (Check("thing", "as it is", "warning", "do this"),))
    monkeypatch.setitem(main.__globals__, "doctor", lambda **_: found)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main(arguments()) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert "needs attention: thing" in str(found)


def test_remedies_come_most_urgent_first():
    checks = [Check(status, "", status, "x") for status in ("note", "missing", "ok", "warning")]
    assert [check.status for check in MachineReport("0", tuple(checks)).remedies] == [
        "missing",
        "warning",
        "note",
        "ok",
    ]


@pytest.mark.parametrize("status", ["warning", "missing"])
def test_a_problem_without_a_remedy_is_refused(status):
    with pytest.raises(ValueError, match="must name a remedy"):
        Check("thing", "broken", status)


def test_a_check_that_fails_does_not_hide_the_others(monkeypatch):
    def broken():
        raise OSError("no such thing")

    monkeypatch.setattr(checks, "check_cpu", broken)
    found = doctor(measure=False)
    assert "OSError: no such thing" in found["cpu"].finding
    assert found["cpu"].remedy
    assert found["ncu"].finding


def test_a_quota_below_the_machine_is_noted(monkeypatch):
    monkeypatch.setattr(_machine, "cpu_budget", lambda: CpuBudget(64, 64, 4.0))
    check = checks.check_cpu()
    assert check.status == "note"
    assert check.finding.startswith("4 usable (machine 64")
    assert "more than 4 workers" in check.remedy


def test_a_single_core_is_a_problem(monkeypatch):
    monkeypatch.setattr(_machine, "cpu_budget", lambda: CpuBudget(1, 1, None))
    assert checks.check_cpu().status == "warning"


@pytest.mark.parametrize(("usable", "status"), [(GIB, "warning"), (64 * GIB, "ok")])
def test_little_memory_is_a_problem(monkeypatch, usable, status):
    monkeypatch.setattr(_machine, "memory_budget", lambda: MemoryBudget(64 * GIB, 64 * GIB, usable))
    assert checks.check_memory().status == status


@pytest.mark.parametrize(
    ("found", "status"), [((64 << 20, 64 << 20), "warning"), ((64 * GIB, 32 * GIB), "ok"), (None, "warning")]
)
def test_small_shared_memory_is_a_problem(monkeypatch, found, status):
    monkeypatch.setattr(_machine, "shared_memory_bytes", lambda: found)
    check = checks.check_shared_memory()
    assert check.status == status
    if status == "warning" and found:
        assert "--shm-size" in check.remedy


@pytest.mark.parametrize(
    ("limits", "status", "remedy"),
    [
        ((256, 256), "warning", "raise the hard limit"),
        ((1024, 1048576), "note", "ulimit -n 65536"),
        ((1024, 2048), "note", "ulimit -n 2048"),
        ((1024, None), "note", "ulimit -n unlimited"),
        ((65536, 65536), "ok", None),
        ((None, None), "ok", None),
    ],
)
def test_few_descriptors_are_noted(monkeypatch, limits, status, remedy):
    monkeypatch.setattr(_machine, "file_descriptor_limits", lambda: limits)
    check = checks.check_descriptors()
    assert check.status == status
    assert (remedy is None and check.remedy is None) or remedy in check.remedy


def test_an_old_torch_is_reported(monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.10.1+cu128")
    check = checks.check_torch()
    assert check.status == "missing"
    assert "torch>=2.11" in check.remedy


def test_a_torchvision_that_does_not_belong_to_torch_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    check = checks.check_torchvision()
    assert check.status == "missing"
    assert "in one command" in check.remedy


@pytest.mark.parametrize("version", [None, "0.2.12"])
def test_an_nvtx_that_is_absent_or_too_old_is_reported(monkeypatch, version):
    monkeypatch.setattr(checks, "version_of", lambda name: version)
    check = checks.check_nvtx()
    assert check.status == "warning"
    assert "nvtx>=0.2.13" in check.remedy


def installed(monkeypatch, **versions):
    monkeypatch.setattr(checks_pil, "version_of", lambda name: versions.get(name.replace("-", "_")))


def test_pillow_s_speed_is_measured_and_its_parts_add_up():
    speed = checks_pil.measure_pil()
    assert 45_000 < speed["jpeg_bytes"] < 65_000, "as large as a photograph of its size"
    assert 1 / speed["images_per_s"] == pytest.approx(1 / speed["decode_per_s"] + 1 / speed["resize_per_s"])
    assert speed["resize_share"] == pytest.approx(speed["images_per_s"] / speed["resize_per_s"])
    assert 20 < speed["images_per_s"] < 20_000


def test_nothing_is_wrong_with_pillow_itself(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("PIL.__version__", "13.0.0")
    installed(monkeypatch, pillow="13.0.0")
    monkeypatch.setattr(checks_pil, "measure_pil", lambda: {"images_per_s": 500.0, "resize_share": 0.5})
    check = checks_pil.check_pil()
    assert (check.status, check.remedy) == ("ok", None)
    assert "500 images/s" in check.finding
    assert "images/s" not in checks_pil.check_pil(measure=False).finding


def test_pillow_simd_is_recognized_and_said_to_give_other_bits(monkeypatch):
    monkeypatch.setattr("PIL.__version__", "12.1.1.post0")
    installed(monkeypatch, pillow_simd="12.1.1.post0")
    check = checks_pil.check_pil(measure=False)
    assert check.status == "note"
    assert "2.1% of the values differed" in check.remedy
    assert check.finding.startswith("Pillow-SIMD 12.1.1.post0, libjpeg-turbo ")
    assert check.data["flavour"] == "Pillow-SIMD"


def test_both_pillows_in_one_folder_are_a_problem(monkeypatch):
    installed(monkeypatch, pillow="13.0.0", pillow_simd="12.1.1.post0")
    check = checks_pil.check_pil(measure=False)
    assert check.status == "warning"
    assert "make unsimd" in check.remedy


def test_a_pillow_on_plain_libjpeg_is_a_problem(monkeypatch):
    from PIL import features

    real = features.check
    monkeypatch.setattr(features, "check", lambda name: name != "libjpeg_turbo" and real(name))
    assert "vector code" in checks_pil.check_pil(measure=False).remedy


def test_a_pillow_without_jpeg_does_not_do(monkeypatch):
    from PIL import features

    monkeypatch.setattr(features, "check", lambda name: False)
    assert checks_pil.check_pil().status == "missing"


@pytest.mark.parametrize(
    ("version", "numbers"), [("2.11.0+cu130", (2, 11, 0)), ("2.12.0a0", (2, 12)), ("0.2.13", (0, 2, 13))]
)
def test_release_reads_the_leading_numbers(version, numbers):
    assert checks.release(version) == numbers
