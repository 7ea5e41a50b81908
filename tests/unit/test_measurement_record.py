from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

import fastload
from benchmarks.tables import with_farthest
from fastload.measurement import record
from fastload.measurement.record import (
    Spread,
    environment,
    extent,
    interleave,
    ratio,
    save,
    write_json,
)

ROOT = Path(__file__).parents[2]


def test_contenders_take_turns_and_nobody_is_always_first() -> None:
    calls: list[str] = []

    def contender(name: str, value: float) -> float:
        calls.append(name)
        return value + len(calls)

    result = interleave({"a": lambda: contender("a", 0), "b": lambda: contender("b", 100)}, repeats=3)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert result["a"].values == (1, 4, 5)
    assert result["b"].values == (102, 103, 106)


def test_ratio_is_taken_round_by_round() -> None:
    # A machine that became ten times slower half way: the ratio does not see it.
    quotient = ratio(Spread.of([1.0, 10.0, 10.0]), Spread.of([2.0, 20.0, 20.0]))
    assert quotient.values == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        ratio(Spread.of([1.0]), Spread.of([1.0, 2.0]))


def test_spread_summarizes() -> None:
    spread = Spread.of([5, 1, 3])
    assert spread.median == 3
    assert spread.plus_minus == "66.7%"
    assert spread.record() == {"median": 3, "min": 1, "max": 5, "values": [5, 1, 3]}


def test_one_repeat_claims_no_spread() -> None:
    one, three = Spread.of([1234.5]), Spread.of([3, 1, 2])
    assert (one.plus_minus, Spread.of([0, 0]).plus_minus) == ("–", "–")
    assert [extent(each.record(), ",.1f") for each in (one, three)] == ["one repeat", "1.0 to 3.0"]
    assert [with_farthest(each.record(), ",.1f", " ms") for each in (one, three)] == ["1,234.5 ms", "2.0 ± 1.0 ms"]


def test_no_table_formats_a_spread_by_itself() -> None:
    """The functions that do know of one repeat."""
    by_itself = re.compile(r"\[[\"']min[\"']\]:|\.relative\b|± \{(?!spread\})")
    files = [path for name in ("fastload", "benchmarks") for path in (ROOT / name).rglob("*.py")]
    assert [path.name for path in files if by_itself.search(path.read_text())] == ["record.py", "tables.py"]


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1 value"):
        Spread.of([])
    with pytest.raises(ValueError, match="repeats must be >= 1, got 0"):
        interleave({}, 0)


def test_environment_names_what_ran() -> None:
    record = environment()
    assert record["torch"] == torch.__version__
    assert record["fastload"] == fastload.__version__
    assert 1 <= record["usable_cpus"] <= record["cpus"]
    assert record["pillow"][0].isdigit()
    assert (record["gpu"] is not None) == torch.cuda.is_available()
    json.dumps(record, allow_nan=False)


def test_commit_of_a_checkout_without_history_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "fastload"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(record, "__file__", str(package / "measurement" / "record.py"))
    monkeypatch.delenv("FASTLOAD_COMMIT", raising=False)
    assert record._commit() is None
    monkeypatch.setenv("FASTLOAD_COMMIT", "abc")
    assert record._commit() == "abc"
    # A repository around it that does not track it is not its history.
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert record._commit() == "abc"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert record._commit() == head
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "new.json").touch()
    assert record._commit() == head
    (tmp_path / "benchmarks" / "new.py").touch()
    assert record._commit() == head + "-dirty"
    (tmp_path / "benchmarks" / "new.py").unlink()
    (package / "__init__.py").write_text("changed = True\n")
    assert record._commit() == head + "-dirty"


def test_a_record_is_saved_where_it_was_asked_for_and_named_once_it_is_complete(tmp_path: Path, capsys) -> None:
    save(None, {"complete": True})
    save(tmp_path / "a.json", {"complete": False})
    assert json.loads((tmp_path / "a.json").read_text()) == {"complete": False}
    assert capsys.readouterr().out == ""
    save(tmp_path / "a.json", {"complete": True})
    assert capsys.readouterr().out == f"figures: {tmp_path / 'a.json'}\n"


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write_json(tmp_path / "results" / "a.json", {"x": 1.5})
    assert json.loads(path.read_text()) == {"x": 1.5}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"x": float("nan")})
    assert json.loads(path.read_text()) == {"x": 1.5}
    assert [entry.name for entry in path.parent.iterdir()] == ["a.json"]
