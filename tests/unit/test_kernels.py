"""Test ``fastload kernels`` with an ``ncu`` that replays a table, and its roofline."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import pytest

from fastload.commands import cli, kernels
from fastload.profiling.analysis import ncu as tables
from fastload.profiling.analysis import roofline
from fastload.profiling.analysis.ncu import read_ceilings
from fastload.profiling.analysis.roofline import TENSOR, Ceilings, classify, shares

DATA = Path(__file__).parent.parent / "data"

NCU = """#!{python}
import subprocess, sys
if "--query-metrics" in sys.argv:
    sys.exit(1)
{writes}
sys.exit(subprocess.call(sys.argv[sys.argv.index("--metrics") + 2:]))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ncu(here, monkeypatch):
    """Install an ``ncu`` that runs the program and prints a table of another device."""

    def install(writes="pass"):
        path = here / "ncu"
        path.write_text(NCU.format(python=sys.executable, writes=writes))
        path.chmod(0o755)
        monkeypatch.setattr(kernels, "find_nsight", lambda _: path)
        monkeypatch.setattr(kernels, "cuda_available", lambda: True)
        monkeypatch.setattr(kernels.roofline, "measure", lambda: read_ceilings(DATA / "ncu"))

    return install


def plays_back(text: str) -> str:
    return f"open(sys.argv[sys.argv.index('--log-file') + 1], 'w').write({text!r})"


def run(*argv):
    return cli.main(["kernels", *map(str, argv)])


def test_a_range_is_measured_and_reported_on_again(here, ncu, capfd):
    ncu(plays_back((DATA / "ncu" / "ncu.csv").read_text()))
    assert run("--range", "forward", "--keep", "kept", "--", "python", "-c", "print('trains')") == 0
    out, _ = capfd.readouterr()
    assert out.startswith("trains\nforward on NVIDIA H200")
    assert run("--range", "forward", "--from", "kept") == 0
    assert capfd.readouterr().out == out.replace("trains\n", "")


@pytest.mark.parametrize("writes", ["pass", plays_back("==PROF== Connected to process 1\n")])
def test_the_code_of_a_program_that_fails_is_the_commands(here, ncu, capfd, writes):
    ncu(writes)
    assert run("--", "python", "-c", "import sys; sys.exit(3)") == 3
    assert capfd.readouterr().err.splitlines()[-1].startswith("fastload kernels: ncu ")


def test_a_signal_ends_the_command_as_it_ends_a_shell(here, ncu, monkeypatch):
    ncu("import os; os.kill(os.getpid(), 9)")
    assert run("--", "python", "-c", "pass") == 128 + 9


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--from", "absent"], "absent/ncu.csv cannot be read (No such file or directory): measure again with --keep"),
        (["--from", "empty"], "empty has no ceilings.json"),
        (["--keep", "file", "--", "true"], "file cannot be made a folder to keep files in: File exists"),
    ],
)
def test_a_folder_that_is_none_takes_one_line_to_say(here, capfd, argv, said):
    (here / "file").touch()
    (here / "empty").mkdir()
    shutil.copy(DATA / "ncu" / "ncu.csv", here / "empty")
    assert run(*argv) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"fastload kernels: {said}")


CEILINGS = Ceilings("a device", 4e12, 800e12, 50e12, 57e12, 400e12)


@pytest.mark.parametrize("kind", ["tensor", "tf32", "fp8", "int8", "fp64_tensor", "fp16", "fp32", "fp64"])
def test_each_kind_of_arithmetic_has_a_ceiling_of_its_own(kind):
    peak = CEILINGS.flops(kind)
    assert shares(1.0, 1e9, {kind: 0.98 * peak}, CEILINGS)[1] == pytest.approx(0.98)
    assert classify(1.0, 1e9, {kind: 0.98 * peak}, CEILINGS) == "compute-bound"
    assert classify(1.0, 1e9, {kind: 0.5 * peak}, CEILINGS) == "latency-bound"


def test_ceilings_that_were_not_measured_follow_the_documented_ratios():
    old = read_ceilings(DATA / "product")
    assert old.tf32_flops is None
    assert old.flops("tf32") == old.tensor_flops / 2
    assert CEILINGS.flops("tf32") == 400e12
    assert CEILINGS.flops("fp8") == CEILINGS.flops("int8") == 2 * CEILINGS.flops("tensor")
    assert CEILINGS.flops("fp64_tensor") == 57e12
    assert CEILINGS.flops("fp64") == CEILINGS.flops("fp32") / 2 == 25e12


def test_kinds_on_tensor_cores_take_turns_and_others_run_beside_them():
    mixed = {"tensor": 0.4 * 800e12, "tf32": 0.4 * 400e12, "fp32": 0.3 * 50e12}
    assert shares(1.0, 0.0, mixed, CEILINGS) == (0.0, pytest.approx(0.8))


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        *(("bf16_dst_fp32", "tensor"), ("fp16", "tensor"), ("tf32_dst_fp32", "tf32")),
        *(("fp8", "fp8"), ("int8", "int8"), ("fp64", "fp64_tensor")),
    ],
)
def test_a_table_tells_the_kinds_on_tensor_cores_apart(here, source, kind):
    """The table of a bfloat16 product, with the names of two columns exchanged."""
    text = (DATA / "product" / "ncu.csv").read_text()
    names = [f"sm__ops_path_tensor_src_{name}.sum" for name in ("bf16_dst_fp32", source)]
    for old, new in ((names[0], "first"), (names[1], names[0]), ("first", names[1])):
        text = text.replace(old, new)
    (here / "ncu.csv").write_text(text)
    (run,) = tables.read(here / "ncu.csv")
    assert {each: count for each, count in run.operations.items() if each in TENSOR} == {kind: 2 * 4096**3}
    assert tables.total([run], CEILINGS).to_dict()[f"{kind}_operations"] == 2 * 4096**3


def with_columns(source, target, **columns):
    """Copy a table of one kernel or several, with more metrics, the same for each."""
    names, values = ",".join(f'"{name}"' for name in columns), ",".join(f'"{value}"' for value in columns.values())
    more = {'"ID",': names, '"",': ",".join(['""'] * len(columns))}
    lines = (f"{line},{more.get(line[:5], more.get(line[:3], values))}" for line in source.read_text().splitlines())
    target.write_text("\n".join(lines))


STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
WARPS = {
    "sm__warps_active.avg.pct_of_peak_sustained_active": "37.5",
    "smsp__average_warp_latency_per_inst_issued.ratio": "8",
    STALLED.format("long_scoreboard"): "4",
    STALLED.format("barrier"): "1",
    STALLED.format("gmma"): "n/a",
}


def test_occupancy_and_what_warps_wait_for_stand_beside_the_roofline(here, capfd, monkeypatch):
    (here / "kept").mkdir()
    with_columns(DATA / "ncu" / "ncu.csv", here / "kept" / "ncu.csv", **WARPS)
    shutil.copy(DATA / "ncu" / "ceilings.json", here / "kept")
    runs, ceilings = tables.read_kept(here / "kept")
    everything = tables.total(runs, ceilings)
    assert everything.occupancy == pytest.approx(0.375)
    assert everything.stalls == {"memory": pytest.approx(0.5), "barriers": pytest.approx(0.125)}
    assert tables.waits(everything) == "memory 50%, barriers 12%"
    assert everything.to_dict()["waiting for memory"] == pytest.approx(0.5)
    monkeypatch.setenv("COLUMNS", "200")
    assert run("--range", "forward", "--from", "kept", "--csv", "sums.csv") == 0
    assert "memory 50%" in capfd.readouterr().out
    assert "waiting for tensor cores" in (here / "sums.csv").read_text()
    before = tables.total(*tables.read_kept(DATA / "ncu"))
    assert (before.occupancy, before.stalls) == (None, {}), "files of earlier versions lack them"


def test_only_metrics_that_the_device_has_are_asked_for(monkeypatch):
    known = "sm__warps_active  # of active warps\nsmsp__average_warps_issue_stalled_barrier_per_issue_active  ratio\n"
    monkeypatch.setattr(kernels.nsys, "run_tool", lambda *_, **__: (0, known))
    assert kernels.available_metrics(Path("ncu")) == [tables.OCCUPANCY, STALLED.format("barrier")]


EXPORTS = """
if "--import" in sys.argv:
    table = open(sys.argv[sys.argv.index("--import") + 1]).read()
    open(sys.argv[sys.argv.index("--log-file") + 1], "w").write(table)
    sys.exit(0)
open(sys.argv[sys.argv.index("--export") + 1], "w").write({table!r})
open(sys.argv[sys.argv.index("--log-file") + 1], "w").write({printed!r})
"""


@pytest.mark.parametrize("prints", [True, False])
def test_ncus_own_report_is_kept_and_read_if_no_table_was_printed(here, ncu, capfd, prints):
    table = (DATA / "ncu" / "ncu.csv").read_text()
    ncu(EXPORTS.format(table=table, printed=table if prints else "==PROF== Disconnected\n"))
    assert run("--range", "forward", "--keep", "kept", "--report", "x.ncu-rep", "--", "python", "-c", "pass") == 0
    out, err = capfd.readouterr()
    assert "forward on NVIDIA H200" in out
    assert "ncu's report is x.ncu-rep" in err
    assert (here / "x.ncu-rep").read_text() == (here / "kept" / "kernels.ncu-rep").read_text() == table


@pytest.mark.parametrize(("option", "exports"), [([], 0), (["--keep", "kept"], 1), (["--report", "x.ncu-rep"], 1)])
def test_ncu_writes_a_report_only_where_it_is_kept(here, option, exports):
    parser = argparse.ArgumentParser()
    kernels.add_arguments(parser)
    args = parser.parse_args([*option, "--", "python"])
    command = kernels.command_line(Path("ncu"), args, ["python"], here / "ncu.csv", ["a"])
    assert command.count("--export") == exports


def test_a_profile_joins_what_was_measured_of_its_modules(here, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (here / "kept").mkdir()
    shutil.copy(DATA / "nsys.sqlite", here / "kept" / "profile.sqlite")
    profile = ["profile", "--from", "kept"]
    assert cli.main([*profile, "--no-html"]) == 0
    assert "to gain" not in capfd.readouterr().out
    assert cli.main([*profile, "--kernels", str(DATA / "ncu"), "--html", "x.html"]) == 0
    by_option = capfd.readouterr().out
    assert "Modules by what there is to gain on the device (time of a step)" in (here / "x.html").read_text()
    for name in ("ncu.csv", "ceilings.json"):
        shutil.copy(DATA / "ncu" / name, here / "kept")
    assert cli.main([*profile, "--no-html"]) == 0
    assert capfd.readouterr().out == by_option, "one folder for both commands"
    lines = by_option.splitlines()
    first = lines[next(n for n, line in enumerate(lines) if line.startswith("range ")) + 1]
    assert first.split()[0] == "2"
    assert "latency" in first
    assert "Nsight Compute measured the ranges of 30% of the kernels' time; for the others" in by_option
    assert cli.main([*profile, "--kernels", "absent", "--no-html"]) == 1
    assert "absent/ncu.csv cannot be read" in capfd.readouterr().err


def test_products_are_measured_at_the_precision_they_stand_for(monkeypatch):
    import torch

    seen = {}
    monkeypatch.setattr(roofline, "_SIDE", 64)

    def median_s(work):
        work()
        seen[name] = torch.get_float32_matmul_precision()
        return 0.5

    monkeypatch.setattr(roofline, "_median_s", median_s)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        for name in ("tensor_flops", "fp32_flops", "fp64_flops", "tf32_flops"):
            side = {"fp32_flops": 32, "fp64_flops": 16}.get(name, 64)
            assert roofline.product_flops(torch.device("cpu"), name) == 2 * side**3 / 0.5
            assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen["fp32_flops"] == "highest"
    assert seen["tf32_flops"] == "high"


def test_the_table_says_that_a_step_does_not_hold_the_backward_pass(capfd):
    for inside, said in (("step", True), ("forward", False)):
        assert run("--range", inside, "--from", DATA / "ncu") == 0
        assert ("the backward pass is not among these" in capfd.readouterr().out) == said
