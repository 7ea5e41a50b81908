"""Test finding, running and recovering Nsight's programs, which scripts simulate."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastload.profiling.recording import nsys
from fastload.profiling.recording.nsys import NsightError, Recorder

INSIDE_COMPUTE = "opt/nvidia/nsight-compute/2025.3.1/host"

RECORDS = """
for word in "$@"; do case $word in --output=*) output=${word#--output=};; esac; done
case $1 in
  profile) echo "$@" >> "$0.log"; %s;;
  export) touch "$output";;
esac
"""


@pytest.fixture(autouse=True)
def empty_path(monkeypatch, tmp_path):
    """Set a search path with the shell's tools and none of this machine's profilers."""
    for name in ("nsys", "ncu"):
        assert not Path("/usr/bin", name).exists()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)


def tool(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (tmp_path / "scratch").mkdir()
    return root


@pytest.fixture
def scratch(root, tmp_path):
    return tmp_path / "scratch"


def test_without_nsys_the_error_says_what_to_install(root, scratch):
    with pytest.raises(NsightError, match=r"nsys .* was not found: install the package nsight-systems-cli"):
        nsys.find_recorder(scratch, root)


def test_an_nsys_of_its_own_package_records_everything(root, scratch):
    executable = tool(root / "opt/nvidia/nsight-systems/2025.3/bin/nsys", RECORDS % 'touch "$output.nsys-rep"')
    recorder = nsys.find_recorder(scratch, root)
    assert recorder == Recorder(executable, None, nsys.TRACES[0])
    probe = Path(f"{executable}.log").read_text()
    assert "--trace=cuda,nvtx,osrt,cudnn,cublas" in probe
    assert "--capture-range" not in probe, "the empty program opens no window"


def test_an_nsys_inside_compute_is_helped_by_the_importer(root, scratch):
    """It fails, leaving a .qdstrm; the importer beside it needs its folder as library path."""
    executable = tool(root / INSIDE_COMPUTE / "target-linux-x64/nsys", RECORDS % 'touch "$output.qdstrm"; exit 1')
    importer = tool(
        root / INSIDE_COMPUTE / "linux-desktop-glibc_2_11_3-x64/QdstrmImporter",
        '[ "$LD_LIBRARY_PATH" = "$(dirname "$0")" ] && touch "${2%.qdstrm}.nsys-rep"',
    )
    recorder = nsys.find_recorder(scratch, root)
    assert (recorder.nsys, recorder.importer) == (executable, importer)


def test_a_missing_library_is_named_with_its_package(root, scratch):
    tool(root / INSIDE_COMPUTE / "target-linux-x64/nsys", RECORDS % 'touch "$output.qdstrm"')
    tool(
        root / INSIDE_COMPUTE / "linux-desktop-glibc_2_11_3-x64/QdstrmImporter",
        'echo "$0: error while loading shared libraries: libdw.so.1: cannot open shared object file" >&2; exit 127',
    )
    with pytest.raises(NsightError, match=r"needs libdw\.so\.1, which this system lacks: apt-get install libdw1"):
        nsys.find_recorder(scratch, root)


def test_a_stream_without_an_importer_says_so(root, scratch):
    tool(root / INSIDE_COMPUTE / "target-linux-x64/nsys", RECORDS % 'touch "$output.qdstrm"')
    with pytest.raises(NsightError, match="only QdstrmImporter can read, and its installation has none"):
        nsys.find_recorder(scratch, root)


def test_traces_that_an_installation_lacks_are_left_out(root, scratch):
    refuses = 'case "$*" in *cudnn*) echo "Illegal --trace argument"; exit 1;; esac; touch "$output.nsys-rep"'
    tool(root / "usr/local/cuda-13/bin/nsys", RECORDS % refuses)
    assert nsys.find_recorder(scratch, root).traces == ("cuda", "nvtx", "osrt")


def test_an_nsys_that_fails_is_quoted(root, scratch):
    tool(root / "usr/local/cuda-13/bin/nsys", RECORDS % 'echo "no space left"; exit 3')
    with pytest.raises(NsightError, match=r"nsys failed with exit code 3 \(no space left\); try it by hand: .*nsys"):
        nsys.find_recorder(scratch, root)


def test_the_command_line_records_children_and_a_window_only():
    recorder = Recorder(Path("nsys"), None, ("cuda", "nvtx"))
    command = recorder.command(Path("out/x"), ["python", "train.py", "--lr", "1"])
    assert command[:2] == ["nsys", "profile"]
    assert command[-4:] == ["python", "train.py", "--lr", "1"]
    options = set(command[2:-4])
    assert {
        "--trace=cuda,nvtx",
        "--output=out/x",
        "--trace-fork-before-exec=true",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--sample=none",
        "--cpuctxsw=none",
    } <= options
    assert not any("cudabacktrace" in option for option in options)
    assert "--sample=process-tree" in recorder.command(Path("x"), ["true"], sampling=True)
    traced = recorder.command(Path("x"), ["true"], backtraces="sync:1000")
    assert {"--cudabacktrace=sync:1000", "--sample=process-tree", "--cpuctxsw=none"} <= set(traced)


@pytest.mark.parametrize(("code", "message"), [(0, "ask for fewer --warmup"), (1, "ended with exit code 1 before")])
def test_nothing_recorded_says_why(tmp_path, code, message):
    with pytest.raises(NsightError, match=message):
        Recorder(Path("nsys"), None, ()).finish(tmp_path / "x", code)


def test_an_export_that_writes_nothing_is_an_error(tmp_path):
    (tmp_path / "x.nsys-rep").touch()
    with pytest.raises(NsightError, match=r"nsys export wrote no x\.sqlite"):
        Recorder(tool(tmp_path / "nsys", "true"), None, ()).finish(tmp_path / "x")


def test_a_tool_that_hangs_is_given_up(tmp_path):
    with pytest.raises(NsightError, match=r"slow did not end within 0\.2 s; try it by hand"):
        nsys.run_tool([str(tool(tmp_path / "slow", "exec sleep 20"))], 0.2)


def test_a_tool_that_does_not_start_is_an_error(tmp_path):
    with pytest.raises(NsightError, match="absent does not start: No such file or directory"):
        nsys.run_tool([str(tmp_path / "absent")], 1)
