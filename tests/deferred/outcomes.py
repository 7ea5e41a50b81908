"""Run numbered cases in a loader's workers, and describe what they return and raise."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from backends import normal
from backends.tensors import bits
from children import exit_code, forked
from PIL import Image
from references import kept
from torch.utils.data import DataLoader, Dataset
from torchvision.io import read_image
from torchvision.transforms import v2

PLAIN = 3
"""Batches of plain samples that each worker makes first: what is compared at a worker's start is compared then."""
HANGS_S = 90
_DEAD = re.compile(r"DataLoader worker \(pid(?:\(s\))? (\d+)")
_plain = v2.Compose(
    [v2.Resize((24, 24)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [2])]
)


def kept_or_new(outcome: Callable[[], Any]) -> Any:
    """Return torch's kept outcome, or a new one if forks cannot run autograd.

    They raise an error once a test of this process has run it.
    """
    forks_can = exit_code(forked(lambda: torch.zeros(1, requires_grad=True).sum().backward())) == 0
    return kept(outcome) if forks_can else outcome()


def digest(data: Any) -> str:
    return hashlib.sha1(data).hexdigest()[:16]


def described(value: Any, storages: list[int] | None = None) -> Any:
    """Describe a value and its tensors by plain data, equal for equal values only.

    Tensors on one memory have one number in the description. A nested tensor, or another one that has no bytes of its
    own, is described by its text.
    """
    storages = [] if storages is None else storages
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        return _described_tensor(value, storages)
    if isinstance(value, np.ndarray):
        shape = (value.dtype.str, value.shape, value.strides if value.size else None, value.flags.writeable)
        return kind, *shape, digest(value.tobytes()), repr(value.ravel()[:3].tolist())
    if isinstance(value, Image.Image):
        return kind, value.mode, value.size, digest(value.tobytes())
    if isinstance(value, Mapping):
        return kind, [(key if isinstance(key, str) else repr(key), described(value[key], storages)) for key in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return kind, len(value), digest(value)
    if isinstance(value, float | complex | np.generic):
        return kind, repr(value)
    if isinstance(value, set | frozenset):
        return kind, sorted(map(repr, value))
    if isinstance(value, Sequence) and not isinstance(value, str | range):
        return kind, [described(each, storages) for each in value]
    if isinstance(value, BaseException):
        return raised(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return kind, [(field.name, described(getattr(value, field.name), storages)) for field in fields]
    if value is None or isinstance(value, str | int):
        return (kind, normal(value)) if isinstance(value, str) else (kind, value)
    is_ours = type(value).__module__.split(".")[0] in ("deferred", "types")
    return (kind, described(vars(value), storages)) if is_ours else (kind, normal(repr(value)))


def _described_tensor(value: torch.Tensor, storages: list[int]) -> Any:
    properties = (type(value).__name__, str(value.dtype), str(value.layout), tuple(value.shape), value.requires_grad)
    if value.layout != torch.strided or value.is_meta:
        return *properties, normal(repr(value))
    address = value.untyped_storage().data_ptr()
    if address not in storages:
        storages.append(address)
    place = (storages.index(address) if address else None, value.storage_offset(), value.untyped_storage().nbytes())
    plain = value.detach().as_subclass(torch.Tensor)
    head = plain.flatten()[:3].tolist()
    attributes = described(vars(value), storages) if getattr(value, "__dict__", None) else ()
    return *properties, value.stride(), *place, digest(bits(plain)), repr(head), attributes


def raised(error: BaseException) -> tuple[str, str, list[str]]:
    """Describe an error by its class, its message and the lines of cases."""
    text = str(error)
    if "Original Traceback (most recent call last)" in text:  # of a worker
        lines = re.findall(r'File "(<[^">]*>|[^"]*/deferred/[^"]*)", line (\d+)', text)
        text = _last(text)
    else:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [(frame.filename, str(frame.lineno)) for frame in frames]
    lines = [f"{Path(name).name}:{line}" for name, line in lines if _is_of_a_case(name)]
    error.__traceback__ = None  # its frames are a cycle with it, in which workers would live on
    return type(error).__name__, normal(text), lines


def _is_of_a_case(name: str) -> bool:
    return name.startswith("<program") or Path(name).name.startswith("probes")


def _last(text: str) -> str:
    """Return the message of a worker's error, without where it was raised."""
    lines = text.strip().splitlines()
    starts = [at for at, line in enumerate(lines) if re.match(r"^[A-Za-z_][\w.]*(:|$)", line)]
    return "\n".join(lines[starts[-1] :]) if starts else text


def generator_states() -> tuple[Any, ...]:
    """Describe the states of the three generators of this process."""
    legacy = np.random.get_state()
    version, numbers, gauss = random.getstate()
    states = digest(torch.get_rng_state().numpy()), version, hash(numbers), gauss
    return *states, digest(legacy[1].tobytes()), legacy[2:]  # type: ignore[index]


def seed_all(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


@dataclasses.dataclass
class Cases(Dataset):
    """Numbered cases; indices above are plain samples.

    Args:
        run: Makes a sample; gets a case's number.
        folder: Of the image files.
        journal: A file that names cases as they begin.
        catches: Whether an error is returned as the sample, else it is raised.
        seeds: Whether each case begins with generators of its own, else they go on.
    """

    run: Callable[[int], Any]
    count: int
    folder: Path
    journal: Path
    catches: bool = True
    seeds: bool = True

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        defer_for_ever()
        if index >= self.count:
            image = Image.open(self.folder / ("444.jpg", "420.jpg", "rgb.png")[index % 3]).convert("RGB")
            read = read_image(str(self.folder / "444.jpg"))
            return {"number": -1, "value": (_plain(image), _plain(read))}
        with open(self.journal, "ab", buffering=0) as file:
            file.write(b"%d %d\n" % (os.getpid(), index))
        if self.seeds:
            seed_all(index)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value = self.run(index)
            except Exception as error:
                if not self.catches:
                    raise
                value = raised(error)
        warned = sorted({(each.category.__name__, normal(str(each.message))) for each in caught})
        return {"number": index, "value": value, "warned": warned, "states": generator_states()}


def defer_for_ever() -> None:
    """Let this process go on deferring, although most programs use the pixels."""
    if (functions := sys.modules.get("fastload.deferred.functions")) is not None:
        functions.TRIED_MIN = 1 << 30


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def outcomes(
    kind: Callable[..., DataLoader[Any]], cases: Cases, *, num_workers: int = 2, batch_size: int = 6, **options: Any
) -> list[Any]:
    """Return what each case leaves, in order.

    A case that ends its worker, or hangs, is named; the others run on in new workers.

    Args:
        kind: A loader's class.
        cases: What the workers run.
        num_workers: At least one.
        batch_size: Of the loader.
        options: More of the loader's.
    """
    left, found = list(range(cases.count)), {}
    plain = [cases.count + at for at in range(PLAIN * num_workers * batch_size)]
    how = {"num_workers": num_workers, "batch_size": batch_size, "timeout": HANGS_S, "collate_fn": as_list, **options}
    seed_all(5)
    while left:
        cases.journal.write_bytes(b"")
        order = plain + left
        end = _run(kind(cases, sampler=order, **how), order, found)
        left = [number for number in left if number not in found]
        if end is not None and left:
            culprit = _culprit(end, cases.journal, left)
            found[culprit] = f"ended its worker: {normal(end)}"
            left.remove(culprit)
    return [found[number] for number in range(cases.count)]


def _run(loader: DataLoader[Any], order: list[int], found: dict[int, Any]) -> str | None:
    """Note outcomes until the end; return the message if a worker died or hangs."""
    size = loader.batch_size or 1
    iterator = iter(loader)
    end = None
    for at in range(0, len(order), size):
        try:
            batch = next(iterator)
        except Exception as error:
            if _DEAD.search(str(error)) or "timed out" in str(error):
                end = str(error)
                break
            for index in order[at : at + size]:
                found[index] = raised(error)
            continue
        for sample in batch:
            found[sample["number"]] = described(sample)
    del iterator
    close = getattr(loader, "close", None)
    if close is not None:
        close()
    return end


def _culprit(end: str, journal: Path, left: list[int]) -> int:
    """Return the case that a dead or stuck worker began last."""
    dead = _DEAD.search(end)
    begun = [tuple(map(int, line.split())) for line in journal.read_text().splitlines()]
    of = int(dead[1]) if dead else next((pid for pid, number in begun if number == left[0]), 0)
    last = [number for pid, number in begun if pid == of and number in left]
    return last[-1] if last else left[0]


def epochs(loader: DataLoader[Any], count: int = 2) -> list[Any]:
    """Describe the batches and errors of some epochs, and the generators' states after each."""
    seen: list[Any] = []
    seed_all(5)
    for _ in range(count):
        iterator = iter(loader)
        while True:
            try:
                seen.append(described(next(iterator)))
            except StopIteration:
                break
            except Exception as error:
                seen.append(raised(error))
                if _DEAD.search(str(error)):
                    return seen
        seen.append(generator_states())
    del iterator
    close = getattr(loader, "close", None)
    if close is not None:
        close()
    return seen


def differences(ours: Sequence[Any], theirs: Sequence[Any], name: Callable[[int], str]) -> str:
    """List the cases whose outcomes differ by ``name``; empty if none does."""
    assert len(ours) == len(theirs)
    parts = []
    differing = [at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    for at in differing[:12]:
        parts.append(f"\n{name(at)}\n  ours:   {str(ours[at])[:900]}\n  torch's: {str(theirs[at])[:900]}")
    return f"{len(differing)} of {len(ours)} differ: {differing}" + "".join(parts) if differing else ""
