"""A user's script passes ``mypy --strict``: elements keep their types, and wrong arguments are found."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
from typing import get_type_hints

import pytest

from fastload import FastLoader
from fastload.options import Options, OwnArguments

SCRIPT = """
    import torch
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset

    import fastload
    from fastload import FastLoader, Plan, Report, Stats, Verification, verify


    class Images(Dataset[tuple[Tensor, int]]):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.zeros(3, 4, 4), index


    def train(loader: FastLoader[tuple[Tensor, int]]) -> None:
        for images, label in fastload.progress(loader, desc="epoch"):
            reveal_type(images)
            reveal_type(label)
        plan: Plan = loader.plan
        report: Report = loader.report()
        stats: Stats = loader.stats()
        print(plan, report, stats)


    theirs: DataLoader[tuple[Tensor, int]] = DataLoader(Images(), batch_size=4)
    train(FastLoader(Images(), batch_size=4, num_workers="auto", memory_format=None, dtype=torch.bfloat16))
    train(fastload.DataLoader(Images()))
    with FastLoader.wrap(theirs, device="cuda:0", engine="native", exact=False) as wrapped:
        train(wrapped)
    result: Verification = verify(lambda: theirs, batches=None, seed=1)
    for number in fastload.progress([1, 2]):
        reveal_type(number)
    for text in fastload.prefetch_to_device(["a", "b"]):
        reveal_type(text)
    for images, _ in fastload.capture(wrapped, 1, 2):
        reveal_type(images)
"""

MISTAKES = {
    'FastLoader.wrap(theirs, devise="cpu")': "devise",
    'FastLoader.wrap(theirs, engine="fast")': "engine|Literal",
    "FastLoader.wrap(theirs, device_prefetch=None)": "device_prefetch|None",
    "FastLoader(Images(), exact=1)": "exact|bool",
    "fastload.no_such_name": "no_such_name",
}


def check(folder, source):
    script = folder / "script.py"
    script.write_text(source)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=", str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_users_script_is_checked_strictly(tmp_path):
    pytest.importorskip("mypy")
    source = textwrap.dedent(SCRIPT)
    code, said = check(tmp_path, source)
    assert code == 0, said
    revealed = [re.search(r'Revealed type is "(?:torch\._tensor\.)?(.*?)"$', line)[1] for line in said]
    assert [name.removeprefix("builtins.") for name in revealed] == ["Tensor", "int", "int", "str", "Tensor"]
    lines = len(source.splitlines())
    code, said = check(tmp_path, source + "\n".join(MISTAKES))
    errors = {int(line.split(":")[1]) - lines: line for line in said if " error: " in line}
    assert sorted(errors) == list(range(1, len(MISTAKES) + 1)), said
    for line, expected in zip(sorted(errors), MISTAKES.values(), strict=True):
        assert re.search(expected, errors[line]), errors[line]


def test_the_typed_arguments_of_wrap_are_the_options():
    assert list(OwnArguments.__annotations__) == [field.name for field in dataclasses.fields(Options)]
    assert get_type_hints(OwnArguments) == {
        name: get_type_hints(Options)[name] for name in OwnArguments.__annotations__
    }
    taken = inspect.signature(FastLoader).parameters
    assert all(name in taken for name in OwnArguments.__annotations__)
