"""A look at what a thread is doing, now and then: is it in a codec, or in the dataset's own code?

A worker's clock says how long a fetch took, and how much of that it computed. What it computed is only seen on its
stack. So a thread of its own looks there for a second or two, some 40 times a second, while samples are fetched, and
adds the processor time since its last look to what it sees. It then ends.
"""

from __future__ import annotations

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

LOOKS: Final = 60
INTERVAL_S: Final = 0.023  # no multiple of anything that beats
_DEPTH: Final = 12
_STANDARD: Final = os.path.dirname(os.__file__) + os.sep

# Of installed packages and of the standard library: somebody's own folder may have any name.
_CODECS: Final = re.compile(
    r"/(?:site|dist)-packages/"
    r"(PIL/\w*Image(File|Plugin)\.py|torchvision/io/|torchcodec/|torchaudio/|imageio/|tifffile/|soundfile|decord/|av/"
    r"|librosa/core/audio|simplejpeg|turbojpeg|skimage/io/|pydicom/|nibabel/|zarr/|blosc)"
    rf"|^{re.escape(_STANDARD)}(zipfile|gzip\.py|lzma\.py|bz2\.py)"
)
_PILLOW: Final = re.compile(r"/(?:site|dist)-packages/PIL/Image\.py$")
# Pillow's own loops in C. Its getpixel() and putpixel() are not: who calls those computes in Python.
_PILLOW_LOOPS: Final = frozenset(
    {"convert", "crop", "_crop", "draft", "filter", "frombytes", "load", "open", "quantize", "reduce", "resize"}
    | {"rotate", "thumbnail", "tobytes", "transform", "transpose", "verify"}
)
_CALLS: Final = re.compile(r"\b(imdecode|imread|imdecodemulti|decode_\w+|decompress\w*|loads?_image|read_image)\s*\(")


def is_codec(frame: FrameType) -> bool:
    """Whether a stack, from its innermost frame on, is inside a codec for images, sound or archives."""
    walked: FrameType | None = frame
    for depth in range(_DEPTH):
        if walked is None:
            return False
        code = walked.f_code
        if _CODECS.search(code.co_filename):
            return True
        if _PILLOW.search(code.co_filename):
            if code.co_name in _PILLOW_LOOPS:
                return True
        elif depth == 0 and _CALLS.search(_call_at(code, walked.f_lasti)):
            return True
        elif "/site-packages/" in code.co_filename or not code.co_filename.startswith((_STANDARD, "<frozen")):
            return False  # the user's own code, or a library that is no codec
        walked = walked.f_back
    return False


def _call_at(code: CodeType, instruction: int) -> str:
    """The source of the expression that is being evaluated: native functions have no frame of their own."""
    if instruction < 0:
        return ""
    for number, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        if number == instruction // 2:
            if line is None or line != end_line:
                return "" if line is None else linecache.getline(code.co_filename, line)
            return linecache.getline(code.co_filename, line).encode()[column:end_column].decode("utf-8", "replace")
    return ""


def place_of(frame: FrameType) -> str:
    """Where the innermost frame that is the user's stands: ``file.py:12 in function``."""
    walked: FrameType | None = frame
    while walked is not None:
        name = walked.f_code.co_filename
        if "/site-packages/" not in name and not name.startswith((_STANDARD, "<frozen")):
            break
        if walked.f_back is None or walked.f_back.f_code.co_name in ("fetch", "fetch_measured"):
            break
        walked = walked.f_back
    walked = walked or frame
    return f"{os.path.basename(walked.f_code.co_filename)}:{walked.f_lineno} in {walked.f_code.co_name}"


class StackSampler:
    """Looks at the calling thread, from a thread of its own.

    Args:
        fetching: Whether the thread is fetching just now.
        saw: Told of each look: seconds computed and seconds waited since the last one, whether the thread is in a
            codec, and where it is.
    """

    def __init__(self, fetching: Callable[[], bool], saw: Callable[[float, float, bool, str], None]) -> None:
        self._fetching = fetching
        self._saw = saw
        self._left = LOOKS
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._target = threading.get_ident()
        self._clock = 0

    @property
    def is_done(self) -> bool:
        """Whether it has seen enough."""
        return self._left <= 0

    def start(self) -> None:
        """Begin, or go on. Called by the thread that is looked at."""
        if self._thread is not None or self.is_done:
            return
        self._target = threading.get_ident()
        try:
            self._clock = time.pthread_getcpuclockid(self._target)  # here: of a thread that has ended it is undefined
        except (AttributeError, OSError):  # no such clock here
            self._left = 0
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._look, name="fastload-looker", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads, or the process is about to end
            self._thread, self._left = None, 0
            return
        _looking.add(self)

    def stop(self) -> None:
        """Wait until the thread is gone. Idempotent."""
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
        _looking.discard(self)

    def _look(self) -> None:
        try:
            clock = self._clock
            computed, now = time.clock_gettime(clock), time.monotonic()
            while self._left > 0 and not self._stop.wait(INTERVAL_S):
                frame = sys._current_frames().get(self._target)
                before, computed = computed, time.clock_gettime(clock)
                then, now = now, time.monotonic()
                if frame is None or not self._fetching():
                    continue
                spent = computed - before
                self._left -= 1
                self._saw(spent, max(0.0, now - then - spent), is_codec(frame), place_of(frame))
                del frame
        except (OSError, ValueError):  # the thread is gone
            self._left = 0


_looking: weakref.WeakSet[StackSampler] = weakref.WeakSet()


def _before_fork() -> None:
    """No thread of this process's own is to be in the way of a fork."""
    for looker in list(_looking):
        looker.stop()


os.register_at_fork(before=_before_fork)
