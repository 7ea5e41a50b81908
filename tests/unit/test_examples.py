"""Every example runs at a small size on the CPU and reports bad data."""

from __future__ import annotations

import os
import random
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import effort
import optional
import pytest
import torch

from fastload.bench.photos import PhotoSet, write_photos
from scripts import gallery

optional.needed("skimage")

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("train_*.py"))
NEEDS = {"train_lightning.py": "lightning", "train_accelerate.py": "accelerate", "train_timm.py": "timm"}
NEEDS |= {
    "train_webdataset.py": "webdataset",
    "train_object_store.py": "obstore",
    "train_hugging_face.py": "transformers",
}
SHOWN = {command: said for _, command, said in gallery.shown()}
SMALL = ["--model", "resnet18", "--batch-size", "8", "--image-size", "48", "--workers", "1"]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not EXAMPLES.is_dir(), reason="tests of a checkout")]


def run(script: str, *arguments: str, launcher: tuple[str, ...] = (), cwd: Path | None = None):
    if script in NEEDS:
        pytest.importorskip(NEEDS[script])
    return subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        # Tiny tensors: threads would only get in each other's way.
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        timeout=150,
    )


def trained(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that a script printed; it must have succeeded, and shown the plan."""
    assert done.returncode == 0, done.stderr
    assert re.search(r"^engine \w+, batches on cpu$", done.stdout, flags=re.MULTILINE), done.stdout
    return done.stdout.splitlines()


def imagenet(data: Path, epochs: int, *more: str, launcher: tuple[str, ...] = ()) -> list[tuple[float, float]]:
    """Run the script; return loss and top-1 per epoch."""
    arguments = [str(data), "--epochs", str(epochs), *SMALL, "--lr", "0.1", *more]
    lines = trained(run("train_imagenet.py", *arguments, launcher=launcher))
    found = re.findall(r"epoch (\d): loss ([\d.]+), top-1 ([\d.]+)%, [\d,]+ images/s", "\n".join(lines))
    assert [int(epoch) for epoch, *_ in found] == list(range(1, epochs + 1))
    return [(float(loss), float(accuracy)) for _, loss, accuracy in found]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "photos"
    write_photos(folder, PhotoSet(count=32, classes=2, edge_px=64))
    return folder


@pytest.mark.thorough
def test_training_script_learns_at_a_small_size(photos: Path) -> None:
    epochs = imagenet(photos, 3, "--no-amp")
    assert epochs[-1][0] < epochs[0][0]
    assert epochs[-1][1] > 60


@pytest.mark.thorough
def test_training_script_takes_a_folder_with_train_and_val(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos" / "train", PhotoSet(count=8, classes=2, edge_px=64))
    write_photos(tmp_path / "photos" / "val", PhotoSet(count=2, classes=2, edge_px=64, seed=1))
    ((_, accuracy),) = imagenet(tmp_path / "photos", 1)
    assert accuracy in (0, 50, 100)  # two images to validate on


@pytest.mark.thorough
def test_training_script_runs_in_two_processes_under_torchrun(photos: Path) -> None:
    epochs = imagenet(photos, 2, launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"))
    # Every image is counted once: 32 of them, so accuracies are multiples of 1/32, printed to 0.1%.
    assert all(abs(accuracy * 0.32 - round(accuracy * 0.32)) < 0.02 for _, accuracy in epochs)


@pytest.mark.parametrize("command", SHOWN)
def test_example_prints_what_its_page_shows(command: str) -> None:
    for script, needed in NEEDS.items():
        if script in command:
            pytest.importorskip(needed)
    printed = gallery.printed(command)
    assert gallery.agree(printed, SHOWN[command]), f"{printed}\nbut the page says\n{SHOWN[command]}"


def test_figures_of_an_example_are_not_compared_but_words_are() -> None:
    said = "epoch 1: loss 1.5\nPython-bound: 93% of it; more.\n  8 batches\nend"
    assert gallery.fixed(said) == ["epoch #: loss #", "Python-bound:", "end"]
    assert gallery.fixed(said) == gallery.fixed(said.replace("1.5", "8.2e-08").replace("  8 batches", "  9\n  s"))
    assert gallery.fixed(said) != gallery.fixed(said.replace("Python", "decode"))
    undecided = said.replace("Python-bound: 93% of it", "Undecided: too early")
    assert gallery.agree(undecided, said)
    assert not gallery.agree(said, undecided)
    assert not gallery.agree(undecided.replace("end", "other"), said)


def test_every_example_is_shown_on_a_page() -> None:
    named = set(re.findall(r"train_\w+\.py", " ".join(SHOWN)))
    assert named == set(SCRIPTS) - {"train_ray.py"}  # whose cluster takes long to start
    pages = "".join(page.read_text() for page in gallery.DOCS.rglob("*.md"))
    assert (
        set(re.findall(r"^```{literalinclude} (?:\.\./)+examples/(train_\w+\.py)$", pages, flags=re.MULTILINE)) == named
    )


@pytest.mark.parametrize("tasks", [0, 1], ids=["loaders", "tasks"])
@pytest.mark.timeout(400)
def test_ray_example_runs(photos: Path, tmp_path: Path, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.train")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    few = ["--epochs", "1", "--nodes", "1", "--remote-transforms", str(tasks), "--out", str(tmp_path), *SMALL]
    done = run("train_ray.py", str(photos), *few)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^epoch 1: loss [\d.]+$", done.stdout, flags=re.MULTILINE), done.stdout


def losses(text: str) -> dict[int, str]:
    found = re.findall(r"epoch (\d+), step (\d+): loss ([\d.e-]+)", text)
    assert len({(step, loss) for _, step, loss in found}) == len({step for _, step, _ in found}), "a step was repeated"
    return {int(step): f"{epoch} {loss}" for epoch, step, loss in found}


KILLS = 3 if effort.everything() else 1


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_training_killed_at_any_moment_goes_on_with_the_same_losses(photos: Path, tmp_path: Path) -> None:
    number = int(os.environ.get("FASTLOAD_KILLS_SEED", "0"))
    draws = random.Random(number)

    def command(checkpoint: str) -> list[str]:
        return [str(photos), "--epochs", "10", *SMALL, "--checkpoint", str(tmp_path / checkpoint)]

    expected = losses("\n".join(trained(run("train_resume.py", *command("whole.pt")))))
    assert list(expected) == list(range(1, 41))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    killed = [sys.executable, str(EXAMPLES / "train_resume.py"), *command("killed.pt")]
    lines: list[str] = []
    for _ in range(KILLS):
        steps, own = draws.randint(1, 3), []
        with subprocess.Popen(killed, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            while len(re.findall("step", "".join(own))) < steps:
                own.append(process.stdout.readline())
                assert own[-1], (number, own)
            time.sleep(draws.random() * 0.1)  # within the step, the saving, or the next batch
            process.kill()
            own += process.stdout.readlines()
        assert process.returncode == -signal.SIGKILL, (number, own)
        lines += own
    rest = trained(run("train_resume.py", *command("killed.pt")))
    assert losses("\n".join([*lines, *rest])) == expected, number
    assert len(losses("\n".join(rest))) < len(expected), number


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a script that ends before it trains in this process, to save importing torch."""
    state, benchmark = torch.get_rng_state(), torch.backends.cudnn.benchmark
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # the script sets these; so they are unset afterwards
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    monkeypatch.syspath_prepend(EXAMPLES)  # as for a script

    def run(script: str, *arguments: str) -> tuple[object, str, str]:
        if script in NEEDS:
            pytest.importorskip(NEEDS[script])
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        output = capsys.readouterr()
        return ended.value.code, output.out, output.err

    yield run
    torch.set_rng_state(state)
    torch.backends.cudnn.benchmark = benchmark


@pytest.mark.parametrize("script", SCRIPTS)
def test_example_explains_itself(script: str, run_here) -> None:
    code, shown, _ = run_here(script, "--help")
    assert code == 0
    assert f"examples/{script}" in shown  # how it is called
    assert "--workers" in shown


@pytest.mark.parametrize("missing", [False, True], ids=["an empty folder", "no such folder"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_example_says_in_one_line_that_there_are_no_images(
    script: str, missing: bool, tmp_path: Path, run_here
) -> None:
    folder = tmp_path / "images"
    if not missing:
        folder.mkdir()
    message, *_ = run_here(script, str(folder), "--workers", "1")  # sys.exit(message) writes it and exits with 1
    assert isinstance(message, str)
    assert str(folder) in message
    assert "\n" not in message


def test_training_script_says_that_there_is_less_than_a_batch(photos: Path, run_here) -> None:
    message, *_ = run_here("train_imagenet.py", str(photos), "--batch-size", "64", "--workers", "1")
    assert message == f"{photos}: 32 images to train on are less than one batch of 64"
