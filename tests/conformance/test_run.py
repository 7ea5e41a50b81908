"""``fastload run`` runs a program unchanged, with FastLoader in place of every DataLoader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from fastload.commands import cli

pytestmark = pytest.mark.slow

FASTLOAD = (sys.executable, "-m", "fastload", "run")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def call(*command, **more):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=170)


def run(path, source, *options, **more):
    """Write a script, run it under ``fastload run``, which must succeed; return its output."""
    path.write_text(textwrap.dedent(source))
    done = call(*FASTLOAD, *options, str(path), **more)
    assert done.returncode == 0, done.stderr
    return done


WHO = """
    import json, sys
    main = sys.modules["__main__"]
    print(json.dumps({
        "arguments": sys.argv, "path": sys.path, "name": __name__, "file": globals().get("__file__"),
        "spec": __spec__ and [__spec__.name, __spec__.origin], "main": [main.__dict__ is globals(), sorted(globals())],
        "flags": [list(sys.flags), sys.warnoptions, sys._xoptions, sys.stdout.write_through],
        "modules": ["torch" in sys.modules, "fastload" in sys.modules],
    }))
"""


@pytest.mark.parametrize("how", [["script.py"], ["-m", "script"], ["-m", "package"], ["-c", textwrap.dedent(WHO)]])
def test_the_program_sees_what_plain_python_shows_it(folder, how):
    (folder / "script.py").write_text(textwrap.dedent(WHO))
    (folder / "package").mkdir()
    (folder / "package" / "__main__.py").write_text(textwrap.dedent(WHO))
    command = [*how, "--device", "x", "--", "y"]
    python = [sys.executable, "-O", "-u", "-Wignore::UserWarning", "-Xutf8"]
    plain = call(*python, *command)
    ours = call(*python, "-m", "fastload", "run", "--device", "cpu", *command)
    assert (ours.returncode, ours.stderr) == (0, "")
    assert json.loads(ours.stdout) == json.loads(plain.stdout)


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('no data')",
        "def f():\n    raise ValueError('bad')\nf()",
        "import signal; signal.raise_signal(signal.SIGINT)",
        "syntax error",
    ],
)
def test_the_program_ends_as_under_plain_python(folder, source):
    (folder / "script.py").write_text(source)
    plain = call(sys.executable, "script.py")
    ours = call(*FASTLOAD, "script.py")
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert ours.returncode in (1, 3, -signal.SIGINT)


def test_a_script_that_is_not_there_gives_pythons_own_error(folder):
    done = call(*FASTLOAD, "nothing.py")
    assert done.returncode == 2
    assert "can't open file" in done.stderr


def test_every_name_is_fastloader_and_isinstance_holds_in_every_direction(folder):
    run(
        folder / "script.py",
        """
        from abc import ABC
        import copy, inspect, pickle
        import torch
        from torch.utils.data import DataLoader
        import torch.utils.data.dataloader
        import fastload
        from fastload.commands.run.patch import TorchDataLoader

        assert DataLoader is torch.utils.data.DataLoader is torch.utils.data.dataloader.DataLoader
        assert issubclass(DataLoader, fastload.FastLoader) and DataLoader is not TorchDataLoader
        assert repr(DataLoader) == repr(TorchDataLoader)

        class Mine(DataLoader):
            def __init__(self, size, *args, **kwargs):
                super(Mine, self).__init__(range(size), *args, **kwargs)
        class Typed(DataLoader[int]):
            pass
        class Abstract(DataLoader, ABC):
            pass

        loader = DataLoader(range(4), 2)
        assert type(loader) is DataLoader and [b.tolist() for b in loader] == [[0, 1], [2, 3]]
        assert [b.tolist() for b in Mine(4, batch_size=3)] == [[0, 1, 2], [3]]
        plain = TorchDataLoader(range(4))
        explicit = fastload.DataLoader(range(4))
        for other in (loader, Mine(4), Typed(range(4)), Abstract(range(4)), plain, explicit):
            assert isinstance(other, DataLoader) and isinstance(other, TorchDataLoader)
            assert issubclass(type(other), DataLoader)
            assert isinstance(other, fastload.FastLoader) == (other is not plain)
        assert isinstance(Mine(4), Mine) and not isinstance(loader, Mine) and not isinstance(plain, Mine)
        assert not isinstance(plain, Typed) and not isinstance([], DataLoader) and not issubclass(list, DataLoader)
        assert isinstance(loader, DataLoader | None)

        own = inspect.signature(DataLoader.__init__).parameters
        torchs = inspect.signature(TorchDataLoader.__init__).parameters
        assert list(own)[: len(torchs)] == list(torchs)
        assert {name: p.default for name, p in own.items() if name in torchs} == {
            name: p.default for name, p in torchs.items()}
        assert type(pickle.loads(pickle.dumps(loader))) is type(copy.deepcopy(loader)) is DataLoader
        assert pickle.loads(pickle.dumps(DataLoader)) is DataLoader
        try:
            loader.batch_size = 3
        except ValueError as error:
            assert str(error) == "batch_size attribute should not be set after DataLoader is initialized"
        else:
            raise SystemExit("batch_size was set")
        """,
    )


def test_options_are_the_defaults_of_fastloaders_own_arguments(folder):
    run(
        folder / "script.py",
        """
        import inspect
        import torch
        from torch.utils.data import DataLoader
        from fastload import FastLoader
        from fastload.commands.run.patch import TorchDataLoader

        expected = dict(device="cpu", memory_format=torch.contiguous_format, dtype=torch.bfloat16, device_prefetch=3,
                        engine="torch", max_pinned_bytes=1000, max_index_bytes=2000,
                        decode="cpu", device_cache_bytes="auto", on_error="skip", max_errors=7)
        wrapped = FastLoader.wrap(TorchDataLoader([0]))
        for loader in (DataLoader([0]), FastLoader([0]), type("Mine", (DataLoader,), {})([0]), wrapped):
            assert {name: vars(loader)[name] for name in expected} == expected
        defaults = {name: p.default for name, p in inspect.signature(DataLoader([0]).__init__).parameters.items()}
        assert {name: defaults[name] for name in expected} == expected
        assert DataLoader([0], engine="auto", dtype=None).dtype is None
        assert next(iter(DataLoader([torch.ones(2)]))).dtype == torch.bfloat16
        """,
        *["--device", "cpu", "--memory-format", "contiguous", "--dtype", "bfloat16", "--device-prefetch", "3"],
        *["--engine", "torch", "--max-pinned-bytes", "1000", "--max-index-bytes", "2000"],
        *["--decode", "cpu", "--device-cache-bytes", "auto", "--on-error", "skip", "--max-errors", "7"],
    )


@pytest.mark.parametrize("text", ["-1", "1.5", "nan", "few", "1e400"])
def test_max_errors_is_a_count_or_a_share(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", f"--max-errors={text}", "script.py"])
    assert f"must be a count, or a share from 0.0 to 1.0, got '{text}'" in capsys.readouterr().err


def test_a_script_may_import_fastload_before_torch(folder):
    source = """
        from fastload import prefetch_to_device
        from torch.utils.data import DataLoader
        from fastload import FastLoader
        assert DataLoader is not FastLoader and issubclass(DataLoader, FastLoader)
    """
    assert run(folder / "script.py", source).stderr == ""


def test_whichever_module_of_fastload_imports_torch_first(folder):
    source = """
        import importlib.util, sys, types
        package = types.ModuleType("fastload")  # as if fastload/__init__.py imported nothing
        package.__path__ = importlib.util.find_spec("fastload").submodule_search_locations
        sys.modules["fastload"] = package
        from fastload.loader import FastLoader
        from torch.utils.data import DataLoader
        assert DataLoader is not FastLoader and issubclass(DataLoader, FastLoader)
    """
    assert run(folder / "script.py", source).stderr == ""


@pytest.mark.thorough
def test_fastloads_own_modules_keep_torchs_dataloader(folder):
    run(
        folder / "script.py",
        """
        import importlib, pkgutil, sys
        import torch.utils.data
        import fastload
        for module in pkgutil.walk_packages(fastload.__path__, "fastload."):
            if "bench" not in module.name and "bootstrap" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        holders = [name for name, module in sys.modules.items() if name.startswith("fastload")
                   and torch.utils.data.DataLoader in [v for v in vars(module).values() if isinstance(v, type)]]
        holders = set(holders) - {"fastload.elsewhere"}  # which stands for FastLoader where nothing is patched
        assert holders <= {"fastload.commands.run.patch"}, holders
        """,
    )


def test_the_sitecustomize_that_ours_hides_still_runs(folder):
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("import builtins; builtins.site_was_here = __file__")
    done = run(
        folder / "script.py",
        """
        import sitecustomize, sys
        from torch.utils.data import DataLoader
        assert site_was_here == sitecustomize.__file__ == sys.path[1] + "/sitecustomize.py", site_was_here
        print(DataLoader.__mro__[1].__name__)
        """,
        PYTHONPATH=str(folder / "site"),
    )
    assert done.stdout == "FastLoader\n"


def test_a_child_without_fastload_says_so_once_and_goes_on(folder):
    done = run(
        folder / "script.py",
        """
        import sys
        sys.modules["fastload"] = None  # as in an environment where it is not installed
        import torch
        from torch.utils.data import DataLoader
        print(DataLoader.__mro__[1].__name__, [m for m in sys.meta_path if type(m).__name__ == "Watch"])
        """,
    )
    assert done.stdout == "Generic []\n"
    assert done.stderr.startswith("fastload run: DataLoader stays torch's own in process ")
    assert done.stderr.count("\n") == 1


def test_a_torch_that_fails_to_import_fails_as_ever_and_may_be_tried_again(folder):
    (folder / "broken").mkdir()
    (folder / "broken" / "torch.py").write_text("1 / 0")
    done = run(
        folder / "script.py",
        """
        import sys
        sys.path.insert(0, "broken")
        try:
            import torch
        except ZeroDivisionError:
            sys.path.remove("broken")
        from torch.utils.data import DataLoader
        print(DataLoader.__mro__[1].__name__, type(sys.modules["torch"].__spec__.loader).__name__)
        """,
    )
    assert done.stdout == "FastLoader SourceFileLoader\n"


CHILDREN = """
    import multiprocessing, sys
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Names(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return f"{DataLoader.__mro__[1].__name__} {DataLoader([0]).device_prefetch}"

    def child(loader, queue):
        queue.put((type(loader) is DataLoader, [list(batch) for batch in loader]))

    if __name__ == "__main__":
        start = sys.argv[1]
        loader = DataLoader(Names(), batch_size=2, num_workers=1, multiprocessing_context=start)
        print(*[name for batch in loader for name in batch], sep=", ")
        context = multiprocessing.get_context(start)
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(DataLoader(Names(), batch_size=4), queue))
        process.start()
        print(queue.get())
        process.join()
        sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_and_child_processes_get_it_too(folder, start):
    (folder / "script.py").write_text(textwrap.dedent(CHILDREN))
    done = call(*FASTLOAD, "--device", "cpu", "--device-prefetch", "2", "script.py", start)
    assert done.returncode == 0, done.stderr
    names = ["FastLoader 2"] * 4
    assert done.stdout.splitlines() == [", ".join(names), str((True, [names]))]


TRAIN = """
    import os
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler

    dist.init_process_group("gloo")
    data = torch.arange(8)
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    total = sum(batch.sum() for batch in loader)
    dist.all_reduce(total)
    line = f"{dist.get_rank()} {type(loader).__mro__[1].__name__} {loader.device_prefetch} {total}"
    open(f"rank{dist.get_rank()}", "w").write(line)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("outermost", ["fastload", "torchrun"])
def test_ranks_of_torchrun_get_it_too(folder, outermost):
    (folder / "train.py").write_text(textwrap.dedent(TRAIN))
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--device", "cpu", "--device-prefetch", "2"]
    if outermost == "fastload":
        done = call(*FASTLOAD, *options, "-m", *torchrun, "train.py")
    else:
        done = call(sys.executable, "-m", *torchrun, "-m", "fastload", "run", *options, "train.py")
    assert done.returncode == 0, done.stderr
    assert [(folder / f"rank{rank}").read_text() for rank in (0, 1)] == ["0 FastLoader 2 28", "1 FastLoader 2 28"]


def test_explain_reports_at_exit_who_uses_it_and_every_loaders_plan(folder):
    source = """
        import pickle, sys
        import torch
        from torch.utils.data import DataLoader

        loaders = [DataLoader(range(4), batch_size=2) for _ in range(3)]
        DataLoader(range(4))  # never iterated
        for loader in loaders:
            for _ in range(2):
                list(loader)
        list(loaders[0])
        del loader, loaders

        class Mixin:
            def __new__(cls, *given, **named):
                print("mixed", named["batch_size"])
                return super().__new__(cls)

        class Mixed(DataLoader, Mixin):
            pass

        def run(loader):
            return list(loader)

        kept = [
            DataLoader([torch.ones(1)], num_workers=1),
            Mixed(range(4), batch_size=2),
            pickle.loads(pickle.dumps(DataLoader(range(4)))),
        ]
        for loader in kept:
            run(loader)
        sys.exit(5)
    """
    (folder / "script.py").write_text(textwrap.dedent(source))
    done = call(*FASTLOAD, "--device", "cpu", "--explain", "script.py")
    assert done.returncode == 5
    lines = done.stderr.splitlines()
    assert lines[0].endswith("DataLoader was FastLoader in __main__, torch.utils.data, torch.utils.data.dataloader")
    heads = [
        line.replace(str(folder) + "/", "").strip() for line in lines[1:] if line.startswith("  ") and line[2] != " "
    ]
    assert heads == [
        "script.py:6 (3 loaders, iterated 7 times, script.py:10)",
        "script.py:26 (iterated 1 time, script.py:23)",
        "script.py:27 (iterated 1 time, script.py:23)",
        "script.py:28 (iterated 1 time, script.py:23)",
    ]
    assert done.stdout == "mixed 2\n"
    assert lines.count("    engine torch, batches on cpu") == 4
    assert lines[2] == "    engine torch, batches on cpu"
    assert any("1 worker process" in line for line in lines)


def test_explain_is_silent_in_workers_and_without_loaders(folder):
    (folder / "script.py").write_text("import torch.utils.data")
    assert call(*FASTLOAD, "--explain", "script.py").stderr == ""
