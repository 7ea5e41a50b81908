"""Sample a thread's stack: is it in a codec, or in the dataset's own code?

A worker's clock gives a fetch's length and how much of it was computing. What it computed shows only on its stack. So a
separate thread samples the stack some 40 times a second while samples are fetched, and attributes the processor time
since the previous sample to what it finds there. It ends after a second or two.
"""

from __future__ import annotations

import atexit
import itertools
import linecache
import os
import re
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

SAMPLES: Final = 60
INTERVAL_S: Final = 0.023  # no multiple of common periods, so that samples do not align with them
_DEPTH: Final = 12
_STANDARD: Final = os.path.dirname(os.__file__) + os.sep

# Only in installed packages and the standard library: a user's folder may have any name.
_CODECS: Final = re.compile(
    r"/(?:site|dist)-packages/"
    r"(PIL/\w*Image(File|Plugin)\.py|torchvision/io/|torchcodec/|torchaudio/|imageio/|tifffile/|soundfile|decord/|av/"
    r"|librosa/core/audio|simplejpeg|turbojpeg|skimage/io/|pydicom/|nibabel/|zarr/|blosc)"
    rf"|^{re.escape(_STANDARD)}(zipfile|gzip\.py|lzma\.py|bz2\.py)"
)
_PILLOW: Final = re.compile(r"/(?:site|dist)-packages/PIL/Image\.py$")
_registered: Final[set[str]] = set()
# Pillow's loops in C. Not getpixel() and putpixel(): the loops that call those are in Python.
_PILLOW_LOOPS: Final = frozenset(
    {"convert", "crop", "_crop", "draft", "filter", "frombytes", "load", "open", "quantize", "reduce", "resize"}
    | {"rotate", "thumbnail", "tobytes", "transform", "transpose", "verify"}
)
_CALLS: Final = re.compile(r"\b(imdecode|imread|imdecodemulti|decode_\w+|decompress\w*|loads?_image|read_image)\s*\(")


def register_codec(file: str) -> None:
    """Count a module's functions as a codec's, by its file."""
    _registered.add(file)


def is_codec(frame: FrameType) -> bool:
    """Whether a stack's inner frames are in a codec for images, sound or archives."""
    walked: FrameType | None = frame
    for depth in range(_DEPTH):
        if walked is None:
            return False
        code = walked.f_code
        if code.co_filename in _registered or _CODECS.search(code.co_filename):
            return True
        if _PILLOW.search(code.co_filename):
            if code.co_name in _PILLOW_LOOPS:
                return True
        elif depth == 0 and _CALLS.search(_call_at(code, walked.f_lasti)):
            return True
        elif "/site-packages/" in code.co_filename or not code.co_filename.startswith((_STANDARD, "<frozen")):
            return False  # the user's own code, or a library other than a codec
        walked = walked.f_back
    return False


def _call_at(code: CodeType, instruction: int) -> str:
    """Source of the expression being evaluated. Native functions have no frame of their own."""
    if instruction < 0:
        return ""
    for line, end_line, column, end_column in itertools.islice(code.co_positions(), instruction // 2, None):
        if line is None or line != end_line:
            return "" if line is None else linecache.getline(code.co_filename, line)
        return linecache.getline(code.co_filename, line).encode()[column:end_column].decode("utf-8", "replace")
    return ""


def place_of(frame: FrameType) -> str:
    """Location of the innermost frame of user code, else of all: ``file.py:12 in function``."""
    walked: FrameType | None = frame
    while walked is not None:
        name = walked.f_code.co_filename
        if "/site-packages/" not in name and not name.startswith((_STANDARD, "<frozen")):
            break
        if walked.f_back is not None and walked.f_back.f_code.co_name == "fetch":
            break
        walked = walked.f_back
    walked = walked or frame
    return f"{os.path.basename(walked.f_code.co_filename)}:{walked.f_lineno} in {walked.f_code.co_name}"


class StackSampler:
    """Samples the calling thread's stack from a thread of its own.

    Args:
        fetching: Returns whether the sampled thread is fetching now.
        record: Called for each sample with the seconds computed and waited since the last one, whether the thread is in
            a codec, and its location.
    """

    def __init__(self, fetching: Callable[[], bool], record: Callable[[float, float, bool, str], None]) -> None:
        self._fetching = fetching
        self._record = record
        self._left = SAMPLES
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._target = threading.get_ident()
        self._clock = 0

    @property
    def is_done(self) -> bool:
        """Whether it has taken all its samples."""
        return self._left <= 0

    def start(self) -> None:
        """Start or resume. Called by the thread to be sampled."""
        if self._thread is not None or self.is_done:
            return
        self._target = threading.get_ident()
        try:
            self._clock = time.pthread_getcpuclockid(self._target)  # by the thread itself: undefined once it has ended
        except (AttributeError, OSError):  # no such clock on this system
            self._left = 0
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._sample, name="fastload-stack-sampler", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # out of threads, or the interpreter is shutting down
            self._thread, self._left = None, 0
            return
        _running.add(self)

    def stop(self) -> None:
        """Stop the thread and join it. Idempotent."""
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
        _running.discard(self)

    def _sample(self) -> None:
        try:
            computed, now = time.clock_gettime(self._clock), time.monotonic()
            while self._left > 0 and not self._stop.wait(INTERVAL_S):
                computed, now = self._take(computed, now)
        except (OSError, ValueError):  # the thread has ended
            self._left = 0

    def _take(self, computed: float, now: float) -> tuple[float, float]:
        """Take a sample; returns the thread's processor time and the time, both in seconds.

        A function, as the thread must not hold the frame between two samples: it would free the caller's objects, long
        after the call that owned them.
        """
        frame = sys._current_frames().get(self._target)
        before, computed = computed, time.clock_gettime(self._clock)
        then, now = now, time.monotonic()
        if frame is not None and self._fetching():
            spent = computed - before
            self._left -= 1
            self._record(spent, max(0.0, now - then - spent), is_codec(frame), place_of(frame))
        return computed, now


_running: weakref.WeakSet[StackSampler] = weakref.WeakSet()


def _stop_all() -> None:
    """Stop all samplers, before a fork and before Python ends.

    A thread that frees objects while Python ends aborts the process ("terminate called without an active exception").
    """
    for sampler in list(_running):
        sampler.stop()


os.register_at_fork(before=_stop_all)
atexit.register(_stop_all)
