"""Test ``fastload profile`` under torch.profiler and an ``nsys`` that replays a recording."""

from __future__ import annotations

import argparse
import html
import io
import json
import os
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import optional
import pytest
import torch
from handmade import export, ranks, recording, span, stage, starved

import fastload
from fastload import _machine
from fastload.commands import cli, profile
from fastload.memory.gpu import GpuMemory
from fastload.profiling.analysis.findings import find
from fastload.profiling.pages import timeline
from fastload.profiling.pages.html import render
from fastload.profiling.recording.nsys import NsightError
from fastload.stats.verdict import Bottleneck, Verdict

pytestmark = pytest.mark.usefixtures("fonts_are_open")
rich_console = optional.module("rich.console")

TRAIN = """
import sys, time, torch
torch.set_num_threads(1)  # two would wait for one another on a busy machine, and the loop would not wait for batches
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if {sleep}:
            time.sleep({sleep})
        else:
            until = time.perf_counter() + 0.004
            while time.perf_counter() < until:
                sum(range(100))
        return torch.rand(3, 8, 8), index

def main():
    model = torch.nn.Conv2d(3, 4, 3)
    for step, (images, labels) in enumerate(DataLoader(Slow(), 4, num_workers={workers})):
        model(images).sum().backward()
    print("trained to the end", step)

if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder of its own, and no profiler of this machine's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profile.nsys, "find_nsight", lambda *_: None)
    return tmp_path


def script(folder, sleep=0.02, workers=2):
    path = folder / "train.py"
    path.write_text(TRAIN.format(sleep=sleep, workers=workers))
    return path


def run(*argv):
    return cli.main(["profile", "--warmup", "2", "--steps", "5", *map(str, argv)])


@pytest.mark.parametrize(
    ("sleep", "workers", "verdict"),
    [(0.02, 2, "storage-bound"), (0.02, 0, "storage-bound"), (0, 0, "Python-bound")],
)
@pytest.mark.slow
def test_a_script_is_profiled_without_a_gpu_and_without_nsys(here, capfd, sleep, workers, verdict):
    assert run("--json", "--png", "x.png", "--", "python", script(here, sleep, workers)) == 0
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert "nsys (Nsight Systems) was not found" in err
    assert "torch.profiler records instead" in err
    assert report["source"] == "torch.profiler"
    assert report["steps"] == 5
    assert report["verdict"]["name"] == verdict
    assert report["verdict"]["remedy"]
    assert report["wait_share"] > 0.25  # on a busy machine the steps take long, too
    ranges = {(span["name"], span["role"]) for span in report["ranges"]}
    assert {("step", "main"), ("wait", "main"), ("fetch", "worker" if workers else "main")} <= ranges
    assert len([thread for thread in report["threads"] if thread["role"] == "worker"]) == workers
    page = (here / "fastload-profile.html").read_text()
    assert verdict in page
    assert (here / "x.png").read_bytes().startswith(b"\x89PNG")
    assert "trained to the end" not in err, "the script ends with the window"
    noise = [line for line in err.splitlines() if not line.startswith("fastload profile: ")]
    assert noise == [], "the profiler's library keeps to itself"


LOADERS = """
import torch, fastload
from torch.utils.data import DataLoader

class Mine(DataLoader):
    pass

def main():
    theirs, ours = DataLoader(range(99)), fastload.FastLoader(range(9), num_workers=0)
    made = [theirs, Mine(range(9)), ours, fastload.FastLoader.wrap(theirs)]
    print(*((loader.engine, loader.device) for loader in made), isinstance(theirs, DataLoader), flush=True)
    for batch in theirs:
        assert batch.device.type == "cpu" and not batch.is_floating_point()

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("as_is", [False, True])
def test_a_script_is_profiled_with_fastloader_or_as_it_stands(here, capfd, as_is):
    (here / "train.py").write_text(LOADERS)
    assert run(*(["--as-is"] if as_is else []), "--keep", "kept", "--", "python", "train.py", "--epochs 3") == 0
    out, err = capfd.readouterr()
    own = ("auto", "auto")
    theirs = ("torch", "cpu") if as_is else own
    assert out.startswith(f"{theirs} {theirs} {own} {own} True\n")
    how = "as it stands, with torch's DataLoader"
    if not as_is:
        how = "with FastLoader in the place of torch's DataLoader (--as-is profiles the script as it stands)"
    assert f"fastload profile: runs python train.py '--epochs 3', {how}\n" in err
    assert re.search(r"^wait +main +5 ", out, flags=re.MULTILINE)
    page = (here / "fastload-profile.html").read_text()
    foot = html.unescape(page[page.index("<footer>") : page.index("</footer>")])
    assert foot.startswith(f"<footer>python train.py '--epochs 3'<br>{how}<br>{datetime.now(UTC):%Y-%m-}")
    for text in (
        _machine.cpu_model(),
        f"fastload-torch {fastload.__version__}, torch {torch.__version__.partition('+')[0]}",
    ):
        assert text in foot
    assert run("--from", "kept", "--html", "again.html") == 0
    assert (here / "again.html").read_text() == page


def test_a_verdict_is_said_once(here):
    found = profile.make_report(starved(), Verdict.of(Bottleneck.PYTHON, "of the loader"))
    assert found.verdict.bottleneck is Bottleneck.PYTHON
    assert (found.loader, found.other_verdict) == (str(Verdict.of(Bottleneck.PYTHON, "of the loader")), None)
    found = profile.make_report(starved(), Verdict.of(Bottleneck.LINK, "of the loader"))
    assert found.other_verdict == found.loader
    for page, times in ((found, 1), (replace(found, loader=str(found.verdict)), 0)):
        console = rich_console.Console(file=io.StringIO(), width=80)
        profile.show(page, console)
        assert console.file.getvalue().count("the loader's own report") == times
        text = html.unescape(render(page, timeline.lay_out(starved(), page.findings)))
        assert text.count("The loader's own report") == times


def test_the_page_is_written_before_a_reader_of_the_tables_can_leave(here, monkeypatch):
    kept = export(starved(), here / "kept.sqlite")

    def leave(*_):
        raise BrokenPipeError

    monkeypatch.setattr(profile, "show", leave)
    with pytest.raises(BrokenPipeError):
        profile.main(profile_arguments("--from", str(kept)))
    assert (here / "fastload-profile.html").exists()


def test_collectives_of_several_ranks_are_compared(here, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    both = export(ranks(500, 480, compute=(0, 400)), here / "host0.sqlite")
    late = export(ranks(50, compute=(0, 400), process=300), here / "host1.sqlite")
    assert run("--from", both, "--html", "x.html") == 0
    out = capfd.readouterr().out
    assert out.startswith(
        "communication-bound\nCollectives (AllReduce) ran 49% of the time (mean of 2 ranks), 49% beside"
    )
    assert re.search(r"^collectives: 49.0% of the time, 49.0% beside no other kernel$", out, flags=re.MULTILINE)
    assert "of the time only collectives ran" in (here / "x.html").read_text()
    assert run("--from", both, "--rank", late, "--no-html") == 0
    out = capfd.readouterr().out
    assert re.search(r"^process 101, GPU 1 +2 +48.0% +48.0% +43.0% ", out, flags=re.MULTILINE)
    assert f"Find what makes {late} late" in out.replace("\n", " ")
    assert run("--from", both, "--rank", "absent.sqlite", "--no-html") == 1
    assert "absent.sqlite does not exist" in capfd.readouterr().err


def profile_arguments(*argv):
    parser = argparse.ArgumentParser()
    profile.add_arguments(parser)
    return parser.parse_args(argv)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_tables_fit_80_columns_and_a_pipe_gets_plain_text(here, terminal):
    console = rich_console.Console(file=io.StringIO(), width=80, force_terminal=terminal, highlight=False)
    profile.show(profile.make_report(starved()), console)
    shown = console.file.getvalue()
    assert ("\x1b[" in shown and "╭" in shown) is terminal
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("Python-bound") for line in lines) is not terminal


@pytest.mark.thorough
def test_what_the_user_wants_to_hear_of_the_profilers_library_is_heard(here, capfd, monkeypatch):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "3")
    assert run("--json", "--no-html", "--", "python", script(here, workers=0)) == 0
    assert "Completed Stage: Collection" in capfd.readouterr().err


@pytest.mark.parametrize(("command", "package"), [("profile", "rich"), ("profile", "matplotlib"), ("kernels", "rich")])
def test_what_is_missing_to_print_the_report_is_named_before_the_script_runs(
    here, capfd, monkeypatch, command, package
):
    monkeypatch.setitem(sys.modules, package, None)
    drawn = ["--json", "--png", "x.png"] if package == "matplotlib" else []
    assert cli.main([command, *drawn, "--", "python", "-c", "open('ran', 'w')"]) == 1
    assert not (here / "ran").exists()
    said = capfd.readouterr().err
    assert said == f"fastload {command} needs {package}; in fastload's checkout: pip install '.[insight]'\n"


def test_a_report_for_programs_needs_nothing_to_print_it_with(here, capfd, monkeypatch):
    kept = export(starved(), here / "kept.sqlite")
    for package in ("rich", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
    assert run("--json", "--from", kept) == 0
    assert json.loads(capfd.readouterr().out)["verdict"]["name"] == "Python-bound"


def test_names_are_no_formulas_in_a_picture(here):
    made = recording(0, 1000, [stage("step", 0, 1000), span("$\\frac$", 0, 900)])
    timeline.draw(timeline.lay_out(made, find(made)), here / "x.svg", "$\\frac$")
    assert (here / "x.svg").stat().st_size > 0


@pytest.mark.thorough
def test_the_script_may_go_on_and_its_exit_code_counts(here, capfd):
    path = script(here)
    path.write_text(path.read_text() + "    sys.exit(7)\n")
    assert run("--to-the-end", "--no-html", path) == 7
    out, _ = capfd.readouterr()
    assert "trained to the end" in out
    assert "storage-bound" in out
    assert not (here / "fastload-profile.html").exists()


def test_a_script_that_fails_before_the_window_is_not_blamed_on_the_profiler(here, capfd):
    assert run("--", "python", "-c", "import sys; sys.exit(3)") == 3
    assert "the program ended with exit code 3 before the capture window" in capfd.readouterr().err


@pytest.mark.slow
def test_a_script_without_a_loader_says_so(here, capfd):
    assert run("--", sys.executable, "-c", "import torch") == 1
    assert "none iterates a DataLoader; ask for fewer --warmup steps" in capfd.readouterr().err


def test_a_folder_without_a_recording_is_named(here, capfd):
    (here / "empty").mkdir()
    assert run("--from", "empty") == 1
    assert capfd.readouterr().err.startswith("fastload profile: empty holds no recording; fastload profile --keep DIR")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "nothing to run"),
        (("--from", "x", "--", "python", "y"), "but not both"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(capfd, argv, message):
    assert run(*argv) == 2
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(("command", "option"), [("profile", "--html"), ("profile", "--png"), ("kernels", "--csv")])
@pytest.mark.parametrize("path", [".", "no-such-folder/file.png", f"{'x' * 300}.png"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(here, capfd, command, option, path):
    with pytest.raises(SystemExit, match="2"):
        cli.main([command, option, path, "--", "no-such-program"])
    assert f"argument {option}: must be a file that can be written" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["profile", "kernels"])
def test_a_picture_of_an_unknown_kind_is_refused(here, capfd, command):
    with pytest.raises(SystemExit, match="2"):
        cli.main([command, "--png", "picture.txt", "--", "no-such-program"])
    assert "argument --png: must end in one of .png, " in capfd.readouterr().err


def test_the_usual_page_is_looked_at_before_anything_runs(here, capfd):
    (here / "fastload-profile.html").mkdir()
    assert run("--", "no-such-program") == 2
    assert "'fastload-profile.html'; or give --html FILE, or --no-html" in capfd.readouterr().err


def test_a_program_that_is_not_there_is_an_error(here, capfd):
    assert run("--", "no-such-program") == 1
    assert "no-such-program does not start: No such file" in capfd.readouterr().err


NSYS = """#!{python}
import shutil, subprocess, sys
output = next((word.removeprefix("--output=") for word in sys.argv if word.startswith("--output=")), "")
if sys.argv[1] == "profile":
    program = sys.argv[max(n for n, word in enumerate(sys.argv) if word.startswith("--")) + 1:]
    if "--capture-range=cudaProfilerApi" in sys.argv:
        {records}
        code = subprocess.call(program)
    else:
        open(output + ".nsys-rep", "w").write("probe")
        code = 0
    sys.exit(code)
shutil.copy(sys.argv[-1], output)
"""


@pytest.fixture
def nsys(here, monkeypatch):
    """An ``nsys`` that runs the program and hands out a recording made elsewhere."""
    kept = export(starved(), here / "recorded")

    def install(records=f"shutil.copy({str(kept)!r}, output + '.nsys-rep')"):
        path = here / "nsys"
        path.write_text(NSYS.format(python=sys.executable, records=records))
        path.chmod(0o755)
        for module in (profile, profile.nsys):
            monkeypatch.setattr(module, "find_nsight", lambda *_: path)
        return path

    return install


def test_a_recording_of_nsys_is_reported(here, nsys, capfd):
    nsys()
    assert run("--keep", "kept", "--", "python", "-c", "print('trains')") == 0
    out, err = capfd.readouterr()
    assert "trains" in out
    assert "Python-bound" in out
    assert "recorded by nsys" in out
    assert re.search(r"wait 97%\s+worker fetch 67%", out), "what host and loader did in the longest gap"
    assert "the timeline is in fastload-profile.html" in err
    assert {path.name for path in (here / "kept").iterdir()} >= {"profile.nsys-rep", "profile.sqlite"}
    for kept in ("kept", "kept/profile.sqlite", "kept/profile.nsys-rep"):
        assert run("--no-html", "--from", kept) == 0
        assert capfd.readouterr().out == out.replace("trains\n", "")


@pytest.mark.parametrize("kinds", ["all", "kernel:500,sync", "sync:1000,memory,other"])
def test_backtraces_are_asked_of_nsys_and_missed_if_it_takes_none(here, nsys, capfd, kinds):
    nsys()
    assert run("--no-html", "--cudabacktrace", kinds, "--", "python", "-c", "pass") == 0
    out, err = capfd.readouterr()
    assert f" --sample=process-tree --cpuctxsw=none --cudabacktrace={kinds} " in err
    assert "note: nsys recorded no backtrace: it takes them only where it may sample the CPU" in out


@pytest.mark.parametrize("kinds", ["", "everything", "sync:", "sync,,kernel", "sync:-1"])
def test_backtraces_of_what_nsys_does_not_know_are_refused(capfd, kinds):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["profile", f"--cudabacktrace={kinds}", "--", "no-such-program"])
    assert "argument --cudabacktrace: must be all, or some of kernel, memory, sync, other" in capfd.readouterr().err


def test_the_gpus_memory_is_kept_and_shown(here, nsys, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    nsys()
    said = GpuMemory(10**9, 3 * 10**9, 2 * 10**9, 3 * 10**9, 70 * 10**9, 80 * 10**9)
    path = "pathlib.Path(os.environ['FASTLOAD_CAPTURE_REPORT']).with_name('memory.json')"
    code = f"import os, pathlib; {path}.write_text({json.dumps(said.to_dict())!r})"
    assert run("--keep", "kept", "--html", "x.html", "--", "python", "-c", code) == 0
    out = capfd.readouterr().out
    assert f"GPU memory: {said}" in out.replace("\n", " ")
    assert "<b>2.0 GB</b><span>of GPU memory allocated</span>" in (here / "x.html").read_text()
    assert run("--no-html", "--json", "--from", "kept") == 0
    assert json.loads(capfd.readouterr().out)["gpu_memory"]["other_bytes"] == 7 * 10**9
    (here / "kept" / "memory.json").write_text('{"cut')
    assert run("--no-html", "--from", "kept") == 0
    assert "GPU memory" not in capfd.readouterr().out


def test_what_the_script_inherits(here, nsys, capfd, monkeypatch):
    nsys()
    monkeypatch.setenv("PATH", "/usr/bin")
    names = ("FASTLOAD_CAPTURE", "FASTLOAD_CAPTURE_REPORT", "FASTLOAD_RUN", "FASTLOAD_RANGES", "PATH")
    code = f"import os, json; print(json.dumps({{n: os.environ.get(n) for n in {names!r}}}))"
    assert run("--no-html", "--", "python", "-c", code) == 0
    inherited = json.loads(capfd.readouterr().out.splitlines()[0])
    assert inherited["FASTLOAD_CAPTURE"] == "2:5:exit"
    assert inherited["FASTLOAD_CAPTURE_REPORT"].endswith("loader.json")
    assert inherited["FASTLOAD_RUN"]
    assert inherited["FASTLOAD_RANGES"] is None, "nsys sees the ranges by itself"
    assert inherited["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)


@pytest.mark.thorough
def test_what_nsys_loses_torch_profiler_records(here, nsys, capfd):
    nsys(records="pass")
    assert run("--json", "--", "python", script(here)) == 0
    out, err = capfd.readouterr()
    assert "nsys recorded nothing" in err
    assert "runs again under torch.profiler" in err
    assert json.loads(out)["source"] == "torch.profiler"


def test_a_program_that_fails_under_nsys_is_not_run_again(here, nsys, capfd):
    nsys(records="pass")
    code = "import sys; open('runs', 'a').write('x'); sys.exit(3)"
    assert run("--", "python", "-c", code) == 3
    assert (here / "runs").read_text() == "x", "whatever it does, it does once"
    assert "nsys recorded nothing: the program ended with exit code 3 before" in capfd.readouterr().err


@pytest.mark.thorough
def test_a_recording_that_cannot_be_read_is_made_again(here, nsys, capfd):
    """Whatever the program's exit code was: there was something to record."""
    nsys(records="open(output + '.nsys-rep', 'w').write('damaged')")
    path = script(here)
    path.write_text(path.read_text() + "    sys.exit(7)\n")
    assert run("--to-the-end", "--json", "--", path) == 7
    out, err = capfd.readouterr()
    assert "runs again under torch.profiler" in err
    assert json.loads(out)["source"] == "torch.profiler"


def test_a_signal_ends_a_command_as_it_ends_a_shell(here, capfd):
    assert run("--", "python", "-c", "import os; os.kill(os.getpid(), 9)") == 128 + 9
    assert "the program ended with exit code 137 before the capture window" in capfd.readouterr().err


def test_a_file_is_no_folder_to_keep_a_recording_in(here, capfd):
    (here / "file").touch()
    assert run("--keep", "file", "--", "python", "-c", "open('ran', 'w')") == 1
    assert capfd.readouterr().err == "fastload profile: file cannot be made a folder to keep files in: File exists\n"
    assert not (here / "ran").exists()


@pytest.mark.slow
def test_nsys_may_be_insisted_on(here, nsys, capfd):
    assert run("--with", "nsys", "--", "python", script(here)) == 1
    assert "nsys (Nsight Systems) was not found" in capfd.readouterr().err
    nsys(records="pass")
    assert run("--with", "nsys", "--", "python", "-c", "pass") == 1
    assert "nsys recorded nothing" in capfd.readouterr().err


@pytest.mark.slow
def test_the_loaders_own_verdict_is_part_of_the_report(here, nsys, capfd):
    nsys()
    said = {"bottleneck": "decode", "evidence": ["90% went into decoding"], "remedy": "decode less"}
    code = f"import os; open(os.environ['FASTLOAD_CAPTURE_REPORT'], 'w').write({json.dumps(said)!r})"
    assert run("--json", "--", "python", "-c", code) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["verdict"]["name"] == "decode-bound"
    assert report["loader"] == "Decode-bound: 90% went into decoding; decode less."


def test_a_recording_that_is_not_there_is_an_error(here):
    for path in ("absent.sqlite", "."):
        with pytest.raises(NsightError):
            profile.read(Path(path))
