"""Report leaks of every test, and select tests."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import effort
import memory
import pytest
import references
import torch
from leaks import Holdings, survivors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nvtx_injection import Trace

HERE = Path(__file__).parent
WATCHED = ("conformance", "property", "unit")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what is to run in the background. All programs that the tests start would inherit it, and Ctrl-C
    # would do nothing there.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Python 3.14's default gives workers nothing that cannot be pickled, such as a test's local classes, and starts them in
# seconds. Tests name it, or run programs that are given no start method.
multiprocessing.set_start_method("fork")

gc.disable()  # until tests are collected: what that makes stays


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run slow tests, too")
    parser.addoption("--all", action="store_true", help="run every test, as thoroughly as it can: see tests/effort.py")


def pytest_configure(config: pytest.Config) -> None:
    effort.load_profile(everything=config.getoption("all"))
    if config.getoption("numprocesses", None):  # this process only distributes the tests
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests and most of large products.

    Options, a test's name or a marker select them. Left out are also tests that look at the code only, and without a
    GPU those that need one.
    """
    if any("::" in argument for argument in config.args):
        return
    everything, chosen = config.getoption("all"), bool(config.getoption("markexpr"))
    left_out = set() if chosen else {"lint"}
    if not everything and not chosen:
        left_out |= {"thorough"} if config.getoption("slow") else {"thorough", "slow"}
    if not torch.cuda.is_available() and os.environ.get("FASTLOAD_REQUIRE_GPU") != "1":
        left_out.add("gpu")
    dropped = {item for item in items if any(item.get_closest_marker(name) is not None for name in left_out)}
    if not everything and not chosen:
        dropped |= effort.beyond_pairs([item for item in items if item not in dropped])
        if not any(Path(argument).is_file() for argument in config.args):
            left = [item for item in items if item not in dropped]
            dropped |= effort.beyond_few(left, slow=config.getoption("slow"))
    config.hook.pytest_deselected(items=list(dropped))
    items[:] = [item for item in items if item not in dropped]


def pytest_collection_finish() -> None:
    memory.read_sources()
    memory.freeze()
    gc.enable()
    memory.into_huge_pages()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Any:
    handled = yield
    if nextitem is not None and nextitem.path != item.path:
        memory.freeze()  # what this file's tests have imported, too
    return handled


def pytest_runtest_setup(item: pytest.Item) -> None:
    references.begin(item)
    if item.get_closest_marker("gpu") is None or torch.cuda.is_available():
        return
    if os.environ.get("FASTLOAD_REQUIRE_GPU") == "1":
        pytest.fail("this test needs a CUDA device, and FASTLOAD_REQUIRE_GPU=1 says that there is one", pytrace=False)
    pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True, scope="session")
def a_key_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's key is neither used nor made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def traced(tmp_path: Path) -> Callable[..., Trace]:
    """Run scripts in the test's folder with an NVTX tool attached."""
    from nvtx_injection import run_traced

    return functools.partial(run_traced, folder=tmp_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    if report.failed and references.forget():
        report.sections.append(
            ("torch's results", "were kept from an earlier run, and are deleted now: see tests/references.py")
        )
    return report


_FAILED = pytest.StashKey[bool]()


@pytest.fixture(autouse=True)
def gradients_stay_enabled(request: pytest.FixtureRequest) -> Any:
    """A test that leaves gradients disabled is named in a warning."""
    yield
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        warnings.warn(f"{request.node.nodeid} left gradients disabled", stacklevel=1)


@pytest.fixture(autouse=True)
def nothing_survives(request: pytest.FixtureRequest) -> Any:
    """No thread, child process, entry of /dev/shm or file descriptor survives a test."""
    if request.path.relative_to(HERE).parts[0] not in WATCHED:
        yield
        return
    if request.node.get_closest_marker("gpu") is not None:
        torch.zeros(1, device="cuda")  # what the driver keeps for life is there before the test
    before = Holdings.now()
    yield
    if not request.node.stash.get(_FAILED, False):  # a failed test's traceback holds on to what it used
        if (files := sys.modules.get("fastload.memory.memory_files")) is not None:
            while files.of_processes:  # which are kept to be used again
                files.of_processes.popitem()[1].close()
        left = survivors(before)
        assert not left, f"left behind by the test: {left}"
