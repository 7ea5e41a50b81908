"""Install FastLoader in the script of ``fastload run`` and in its child processes.

``fastload run`` puts this folder on ``PYTHONPATH``, so that every Python started below it (the script itself, spawned
workers, ``torchrun``'s ranks) imports this file at startup. When torch has been imported, it replaces DataLoader by
FastLoader; it imports neither torch nor fastload itself, so a program without torch is hardly affected.

A child may be any Python, also one without fastload: this file has no dependencies and uses Python 3.6 syntax.
"""

import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False  # type checkers know the name; typing itself takes time to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class Watch:
    """A finder that observes the import of torch, and then installs FastLoader.

    FastLoader cannot be installed while fastload's own modules are half imported (a script may import fastload first,
    and that imports torch), so their imports are counted, and the last one to end installs.
    """

    def __init__(self, settings: str) -> None:
        self.settings = settings
        self.torch_ready = False
        self.in_fastload = 0

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Find torch and fastload's modules by the other finders, and observe their execution."""
        package = name.partition(".")[0]
        if name != "torch" and package != "fastload":
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self.listen(spec.loader, package)
                return spec
        return None

    def listen(self, loader: "Any", package: str) -> None:
        """Replace ``exec_module`` on this instance until it has run.

        The loader keeps its type, which other tools may check.
        """
        exec_module = loader.exec_module

        def exec_and_notify(module: "ModuleType") -> None:
            del loader.exec_module
            self.in_fastload += package == "fastload"
            try:
                exec_module(module)
                self.torch_ready = self.torch_ready or package == "torch"
            finally:
                self.in_fastload -= package == "fastload"
                if self.torch_ready and not self.in_fastload:
                    self.install()

        try:
            loader.exec_module = exec_and_notify
        except AttributeError:  # a loader with slots
            complain("the import system of this Python cannot be listened to")

    def install(self) -> None:
        """Replace DataLoader by FastLoader, once."""
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        try:
            from fastload.commands.run.patch import install_from_settings
        except ImportError as error:
            complain(error)
        else:
            install_from_settings(self.settings)


def complain(reason: object) -> None:
    """Print why nothing was replaced."""
    sys.stderr.write(f"fastload run: DataLoader stays torch's own in process {os.getpid()}: {reason}\n")


def run_hidden_sitecustomize(folder: str) -> None:
    """Run the ``sitecustomize`` that this file hides, if any, and remove us from ``sys.path``."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("FASTLOAD_RUN"):
    watch = Watch(os.environ["FASTLOAD_RUN"])
    sys.meta_path.insert(0, watch)
    if "torch" in sys.modules:  # already imported by a .pth file
        watch.install()
run_hidden_sitecustomize(os.path.dirname(os.path.realpath(__file__)))
