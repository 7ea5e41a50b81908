"""Find the threads, children, shared memory and descriptors that outlive a test.

One look takes 0.1 ms: it reads ``/proc/self`` and lists ``/dev/shm``. Other processes are read on suspicion only: for
children once this process has started one, for the owner of shared memory once there is an entry that was not there.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import functools
import gc
import multiprocessing
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import forkserver, process, resource_sharer, resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import psutil
import torch

SHARED_MEMORY = Path("/dev/shm")
# Descriptors that the CUDA driver, NVML and Python's own random source keep for the life of the process.
KEPT_FOR_LIFE = re.compile(r"^/dev/(nvidia|dri|urandom|null)|^/(proc|sys)/|^/usr/share/zoneinfo")

# Who has made an entry of /dev/shm shows in its name. Torch writes the process into it; from now on multiprocessing
# does, too, in this process and in those that it forks (in spawned ones: into the names of semaphores).
shared_memory._SHM_NAME_PREFIX = f"/psm_{os.getpid()}_"
shared_memory._SHM_SAFE_NAME_LENGTH = len(shared_memory._SHM_NAME_PREFIX) + 8
process.current_process()._config["semprefix"] = f"/mp_{os.getpid()}_"
MAKER = re.compile(r"^(?:torch_|psm_|sem\.mp_|pym-)(\d+)[_-]")
UNMARKED = re.compile(r"^(?:psm_|sem\.)")

LASTING_PROCESSES: set[int] = set()  # what tests share and is no test's own
LASTING_DESCRIPTORS: set[int] = set()

_may_have_children = True  # a process was started since the last look, or the last look found one


def a_process_is_started() -> None:
    """Let the next look search for children."""
    global _may_have_children
    _may_have_children = True


def _noted(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def noted(*args: Any, **options: Any) -> Any:
        a_process_is_started()
        try:
            return start(*args, **options)
        finally:
            a_process_is_started()

    return noted


# Every way in which Python starts a process that stays. Before and after: another thread may look in between.
os.register_at_fork(before=a_process_is_started, after_in_parent=a_process_is_started)
_posixsubprocess.fork_exec = subprocess._fork_exec = _noted(_posixsubprocess.fork_exec)
os.posix_spawn, os.posix_spawnp = _noted(os.posix_spawn), _noted(os.posix_spawnp)


@dataclass(frozen=True)
class Holdings:
    """What this process holds at one moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[psutil.Process]
    shared_memory: frozenset[str]
    descriptors: frozenset[tuple[int, str]]

    @classmethod
    def now(cls) -> Holdings:
        return cls(_threads(), _children(), _shared_memory(), _descriptors())


def survivors(before: Holdings, grace_s: float = 5.0) -> list[str]:
    """Name what is held now but was not before.

    Objects that are being released get ``grace_s``.

    Not counted: the helpers of :mod:`multiprocessing` that live as long as the process (resource tracker, fork server),
    and, once CUDA is up, what its driver opened.
    """
    lasting = _shared_memory() - before.shared_memory  # what comes now is none of the test's, which is over
    slept_s = 0.0  # not the time of the collection: torch takes five seconds for each worker that it ends there
    pause = 0.01
    while left := _beyond(before, lasting):
        if slept_s > grace_s:
            break
        if slept_s > 0.02:  # most go by themselves meanwhile, and a collection takes as long as many tests
            gc.collect()
        multiprocessing.active_children()  # reaps those that have ended
        if resource_sharer._resource_sharer._address is not None:
            resource_sharer.stop(timeout=1)
        lasting &= _shared_memory()
        time.sleep(pause)
        slept_s += pause
        pause = min(2 * pause, 0.2)
    return left if _beyond(before, lasting, ignore_stuck_queues=True) else []


def _beyond(before: Holdings, lasting: frozenset[str], *, ignore_stuck_queues: bool = False) -> list[str]:
    now = Holdings.now()
    if now.descriptors - before.descriptors:
        kept = _descriptors_of_ended_workers()
        now = replace(now, descriptors=frozenset(d for d in now.descriptors if d[0] not in kept))
    if ignore_stuck_queues:
        # Torch tells its pin-memory thread to end through the queue that workers write to. A worker that leaves while
        # it writes takes the queue's lock with it, and the thread that feeds this process's message waits for ever.
        stuck = {thread for thread in now.threads - before.threads if thread.name == "QueueFeederThread"}
        pipes = sorted(d for d in now.descriptors - before.descriptors if d[1].startswith("pipe:"))
        now = replace(now, threads=now.threads - stuck, descriptors=now.descriptors - set(pipes[: 2 * len(stuck)]))
    left = [f"thread {thread.name}" for thread in now.threads - before.threads]
    left += [f"process {describe(child)}" for child in now.children - before.children]
    left += [f"shared memory {name}" for name in _ours(now.shared_memory & lasting)]
    left += [f"descriptor {number} -> {target}" for number, target in now.descriptors - before.descriptors]
    return left


def _descriptors_of_ended_workers() -> set[int]:
    """Find descriptors of persistent workers that Torch 2.11 registers with atexit.

    With pinned memory, torch keeps these objects for ever.
    """
    workers = [thing for thing in gc.get_objects() if issubclass(type(thing), multiprocessing.process.BaseProcess)]
    popens = [getattr(worker, "_popen", None) for worker in workers]
    finalizers = [popen.finalizer for popen in popens if popen is not None and popen.poll() is not None]
    return {number for finalizer in finalizers if finalizer.still_active() for number in finalizer._args}


def _threads() -> frozenset[threading.Thread]:
    return frozenset(t for t in threading.enumerate() if not isinstance(t, threading._DummyThread))


def _children() -> frozenset[psutil.Process]:
    """Search all processes for ours (2 ms and more), unless there can be none."""
    global _may_have_children
    if not _may_have_children:
        return frozenset()
    _may_have_children = forkserver._forkserver._forkserver_pid is not None  # which starts processes by itself
    helpers = {resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid, *LASTING_PROCESSES}
    found = frozenset(child for child in psutil.Process().children(recursive=True) if child.pid not in helpers)
    _may_have_children |= bool(found)
    return found


def describe(process: psutil.Process) -> str:
    """Its process id, state and command line, as far as they are known."""
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} ({process.status()}) {' '.join(process.cmdline())}"
    return str(process.pid)


def _shared_memory() -> frozenset[str]:
    return frozenset(entry.name for entry in SHARED_MEMORY.iterdir()) if SHARED_MEMORY.is_dir() else frozenset()


def _ours(names: frozenset[str]) -> list[str]:
    """Leave out what another program on this machine has made.

    By the process in its name, while that lives. What an ended one has made is ours unless a process of others has it
    open or mapped, and so is what has a name of another kind. A name of multiprocessing's that tells no process is ours
    only if one of our processes has it open or mapped.
    """
    ours, doubtful = set(), set()
    for name in filter(_is_this_users, names):
        maker = MAKER.match(name)
        if maker is None or not psutil.pid_exists(int(maker[1])):
            doubtful.add(name)
        elif _is_in_the_family(int(maker[1])):
            ours.add(name)
    if doubtful:
        held, held_by_others = _held()
        for name in filter(_is_this_users, doubtful):  # some are gone by now
            if name in held if UNMARKED.match(name) and MAKER.match(name) is None else name not in held_by_others:
                ours.add(name)
    return sorted(ours)


def _is_this_users(name: str) -> bool:
    with contextlib.suppress(OSError):
        return (SHARED_MEMORY / name).stat().st_uid == os.getuid()
    return False


def _is_in_the_family(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return os.getpid() in (pid, *(parent.pid for parent in process.parents()))
    return False


def _held() -> tuple[set[str], set[str]]:
    """List the shared memory that our processes hold, and what others hold.

    Reads all processes (50 ms).
    """
    family = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    held: set[str] = set()
    held_by_others: set[str] = set()
    for pid in psutil.pids():
        names = held if pid in family else held_by_others
        with contextlib.suppress(OSError):
            names.update(re.findall(r"/dev/shm/(\S+)", Path(f"/proc/{pid}/maps").read_text()))
        with contextlib.suppress(OSError):
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
            names.update(link.removeprefix("/dev/shm/") for link in links)
    return held, held_by_others


def _descriptors() -> frozenset[tuple[int, str]]:
    helpers = {resource_tracker._resource_tracker._fd, forkserver._forkserver._forkserver_alive_fd}
    helpers |= LASTING_DESCRIPTORS
    cuda = torch.cuda.is_initialized()
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of this very listing
            continue
        if int(name) in helpers or KEPT_FOR_LIFE.search(target) or (cuda and target.startswith("anon_inode:")):
            continue
        found.add((int(name), target))
    return frozenset(found)
