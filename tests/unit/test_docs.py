"""The documentation's examples run on the CPU and print what the pages show."""

from __future__ import annotations

import collections.abc
import contextlib
import doctest
import functools
import importlib
import importlib.util
import inspect
import io
import json
import re
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optional
import pytest
import torch

import fastload
from fastload import sources, vision
from fastload.bench.photos import PhotoSet, write_photos
from fastload.options import Options
from scripts import gallery, native_list

optional.needed("skimage")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted(DOCS.rglob("*.md"))]
IN_CHECKOUT = pytest.mark.skipif(not DOCS.is_dir(), reason="tests of a checkout")


def modules_with_examples() -> list[str]:
    """By their text: importing all of them takes optional packages."""
    package = Path(fastload.__file__).parent
    found = []
    for path in sorted(package.rglob("*.py")):
        if ">>> " in path.read_text():
            parts = path.relative_to(package.parent).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_are_right(name: str) -> None:
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert tried
    assert not failed


def test_the_loader_has_an_example() -> None:
    assert {"fastload.loader", "fastload.prefetch"} <= set(modules_with_examples())


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "photos"
    write_photos(folder, PhotoSet(count=32, classes=2, edge_px=80))
    return folder


def what_the_pages_speak_of(photos: Path) -> dict[str, Any]:
    """The names that a reader has in their own program."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    to_tensor = [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    geometry = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip()]
    dataset = ImageFolder(str(photos), transforms.Compose([*geometry, *to_tensor]))
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 2))
    return {
        "__name__": "docs",
        "root": str(photos),
        "dataset": dataset,
        "model": model,
        "criterion": torch.nn.functional.cross_entropy,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "device": torch.device("cpu"),
        "batches": [(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))],
        "paths": [path for path, _ in dataset.samples],
        "epochs": 2,
        "save_every": 2,
        "path": "checkpoint.pt",
        "train": lambda images, labels: None,
    }


@IN_CHECKOUT
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.slow
def test_code_on_the_page_runs_and_prints_what_it_says(
    page: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of ``python`` run in turn; what one prints is the ``text`` block after it.

    That may have ``...`` for what differs.
    """
    (tmp_path / "images").symlink_to(photos)
    # README's code is to be copied into an empty file.
    names = {"__name__": "docs"} if page.name == "README.md" else what_the_pages_speak_of(photos)
    write_photos(tmp_path / "cat", PhotoSet(count=1, classes=1, edge_px=500))
    next(tmp_path.glob("cat/*/*.jpg")).rename(tmp_path / "cat.jpg")
    monkeypatch.chdir(tmp_path)
    if importlib.util.find_spec("tqdm") is not None:
        monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # its watchdog is a thread for life
    printed, same = "", doctest.OutputChecker()
    text = re.sub(r"<!-- figures: .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
    text = gallery.SHOWN.sub("", text)  # tests/unit/test_examples.py
    for found in re.finditer(r"^```(\w+)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        language, block = found.groups()
        line = text[: found.start()].count("\n") + 1
        if language == "text" or printed:
            said = block if language == "text" else ""
            shown = f"{page.name}: before line {line} is printed\n{printed}but this stands there\n{said}"
            assert same.check_output(said, printed, doctest.ELLIPSIS), shown
            printed = ""
        if language != "python":
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile("\n" * line + block, str(page), "exec"), names)
        printed = output.getvalue()
    assert not printed, f"{page.name}: nothing says what the last block prints"


def shown_with(word: str) -> str:
    """The block of ``py`` of the page on monitoring that has the word."""
    blocks = re.findall(r"^```py\n(.*?)^```", (DOCS / "monitoring.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    (block,) = (block for block in blocks if word in block)
    return str(block)


@pytest.fixture
def logging_loop() -> dict[str, Any]:
    """The names that a loop has which logs statistics."""
    loader = fastload.DataLoader(torch.arange(8.0), batch_size=2, device="cpu")
    list(loader)
    return {"loader": loader, "scalars": loader.stats().scalars(), "epoch": 3, "functools": functools}


@IN_CHECKOUT
@pytest.mark.slow
def test_statistics_go_to_tensorboard(logging_loop: dict[str, Any], tmp_path: Path) -> None:
    optional.needed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        exec(shown_with("add_scalar"), {**logging_loop, "writer": writer})
    written = EventAccumulator(str(tmp_path)).Reload()
    assert set(written.Tags()["scalars"]) == set(logging_loop["scalars"])
    (event,) = written.Scalars("fastload/batches")
    assert (event.step, event.value) == (3, 4.0)


@IN_CHECKOUT
def test_statistics_go_to_prometheus(logging_loop: dict[str, Any]) -> None:
    optional.needed("prometheus_client")
    import prometheus_client

    exec(shown_with("prometheus_client"), {**logging_loop, "prometheus_client": prometheus_client})
    names = logging_loop["loader"].stats().scalars(separator="_")
    assert names["fastload_batches"] == prometheus_client.REGISTRY.get_sample_value("fastload_batches") == 4.0
    for name in names:
        prometheus_client.REGISTRY.unregister(prometheus_client.REGISTRY._names_to_collectors[name])


@IN_CHECKOUT
def test_statistics_go_to_what_takes_a_dictionary(logging_loop: dict[str, Any]) -> None:
    logged: dict[str, float] = {}
    exec(shown_with("**scalars"), {**logging_loop, "wandb": SimpleNamespace(log=logged.update)})
    assert logged == {"epoch": 3, **logging_loop["scalars"]}


@IN_CHECKOUT
@pytest.mark.slow
def test_statistics_go_to_opentelemetry(logging_loop: dict[str, Any]) -> None:
    optional.needed("opentelemetry", "opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics = MeterProvider([reader], shutdown_on_exit=False)  # in the place of the process's own
    exec(shown_with("opentelemetry"), {**logging_loop, "opentelemetry": SimpleNamespace(metrics=metrics)})
    found = json.loads(reader.get_metrics_data().to_json())["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    values = {each["name"]: each["data"]["data_points"][0]["value"] for each in found}
    assert values == logging_loop["loader"].stats().scalars(separator=".")


@IN_CHECKOUT
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_that_is_not_run_is_python_at_least(page: Path) -> None:
    for block in re.findall(r"^```py\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        compile(block, str(page), "exec")


def annotated(thing: Any) -> set[str]:
    """Words of the annotations of what a function returns, or of what a class shows."""
    found = []
    if inspect.isclass(thing):
        shown = {name: member for name, member in vars(thing).items() if not name.startswith("_")}
        found = [text for name, text in inspect.get_annotations(thing).items() if not name.startswith("_")]
        functions = [getattr(member, "fget", getattr(member, "__func__", member)) for member in shown.values()]
    else:
        functions = [thing, *typing.get_overloads(thing)]
    found += [inspect.signature(one).return_annotation for one in functions if inspect.isfunction(one)]
    return set(re.findall(r"\w+", " ".join(map(str, found))))


@IN_CHECKOUT
def test_api_reference_has_every_public_name_and_the_types_that_they_return_alone() -> None:
    pages = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
    named = re.findall(r"^\.\. (?:auto|py:)\w+:: ([\w.]+)$", pages, flags=re.MULTILINE)
    assert len(named) == len(set(named))
    returned = {name for name in named if name.startswith("fastload.")}  # which need no import
    described = set(named) - returned
    public = {name for name in fastload.__all__ if name != "__version__"} | set(vision.__all__) | set(sources.__all__)
    assert described == public, f"docs/api/ describes exactly the public names: {sorted(described ^ public)}"

    types = {name.rpartition(".")[2]: resolve(name) for name in returned}
    shown = [
        next(getattr(of, name) for of in (fastload, vision, sources) if hasattr(of, name)) for name in public
    ] + list(types.values())
    words = set().union(*map(annotated, shown)) | {
        "StatefulPrefetcher",
        "TooManyBadSamplesError",
        "VerificationInterrupted",
    }
    assert set(types) <= words, "nothing public returns these"
    loaded = [module for name, module in list(sys.modules.items()) if name.startswith("fastload.")]
    classes = {thing for module in loaded for thing in vars(module).values() if inspect.isclass(thing)}
    own = {thing.__name__ for thing in classes if thing.__module__.startswith("fastload.")}
    assert (words & own) - set(collections.abc.__all__) <= public | set(types), (
        "docs/api/ lacks types that public functions return"
    )


def resolve(name: str) -> Any:
    module, _, kind = name.rpartition(".")
    return getattr(importlib.import_module(module), kind)


@IN_CHECKOUT
def test_api_reference_has_every_public_method_of_the_loader() -> None:
    page = (DOCS / "api" / "fastloader.md").read_text()
    listed = re.search(r"autoclass:: FastLoader\n   :members: ([\w, ]+)", page)
    assert listed
    options = inspect.get_annotations(Options)  # described as arguments
    own = [name for name in vars(fastload.FastLoader) if not name.startswith("_") and name not in options]
    assert set(own) == set(re.findall(r"\w+", listed[1]))
    assert all(inspect.getdoc(getattr(fastload.FastLoader, name)) for name in own)


@IN_CHECKOUT
@pytest.mark.parametrize(
    ("path", "known", "markers"),
    [
        (native_list.PAGE, "| `Pad` |", "<!-- ops -->"),
        (native_list.FIT, "`Pad`", "<!-- transforms -->"),
        (native_list.FIT, "`Food101`", "<!-- datasets -->"),
    ],
)
def test_the_lists_of_what_is_native_are_those_of_the_tables(path: Path, known: str, markers: str) -> None:
    text = path.read_text()
    assert native_list.page(path, text) == text, "run 'make figures'"
    assert known in text
    assert native_list.page(path, text.replace(known, "?")) == text
    with pytest.raises(ValueError, match=r"markers of '\w+' once, found 0"):
        native_list.page(path, text.replace(markers, ""))
