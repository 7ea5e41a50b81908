"""Replace torchvision's functions that make tensors of images, so that these are deferred.

What a function does to the levels is learnt from an image that has all of them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import dis
import faulthandler
import functools
import inspect
import math
import signal
import sys
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.utils.dlpack
from PIL import Image

from fastload import _core
from fastload.deferred import decoding, memory
from fastload.deferred.calls import at_once, canvas, colors, compiled, copies, joins, rearranged, resizes, stacks
from fastload.deferred.content import Content, take_painted_s
from fastload.deferred.geometry import SIDE_MIN, strides_of
from fastload.deferred.picked import picked_of
from fastload.deferred.recorder import (
    IDENTITY,
    CallRecorder,
    called_on_levels,
    described,
    is_plain_context,
    shared_table,
)
from fastload.lazy import functions as lazy_functions
from fastload.lazy.images import levels_of, mask_of, pending_of
from fastload.pipeline.installed.patches import is_written_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fastload.deferred.picked import Picked
    from fastload.lazy.pixels import File, Pending

_HOME: Final = "torchvision.transforms.functional"
_PLACES: Final = (
    _HOME,
    "torchvision.transforms.v2.functional",
    "torchvision.transforms.v2.functional._type_conversion",
)
_NAMES: Final = ("to_tensor", "pil_to_tensor")

_METHODS: Final = ("view", "permute", "contiguous", "to", "div")
"""Methods that the functions call, which the user may have replaced."""

_OF_A_PROCESSOR: Final = ("transformers.image_processing_backends", "TorchvisionBackend", "process_image")
"""A method that makes a tensor of an image, for all of transformers' image processors on torchvision."""

_V2: Final = "torchvision.transforms.v2.functional._misc"
_V1: Final = "torchvision.transforms._functional_tensor"
_OF_SEVERAL_CALLS: Final = (
    (_V2, "to_dtype_image", ("to", "mul", "mul_"), called_on_levels),
    (_V1, "convert_image_dtype", ("to", "__truediv__", "mul", "div"), called_on_levels),
    (_V1, "resize", ("unsqueeze", "to", "clamp", "squeeze"), resizes.resized_in_float),
)
"""Functions that make several calls for each image: module, name, the methods that they call, what records them."""

_NORMALIZE: Final = (
    (_V1, "normalize", ("clone", "any", "view", "sub_", "div_"), at_once.normalized(2)),
    (_V2, "normalize_image", ("view", "sub", "div_"), at_once.normalized(1)),
)
"""Those that also make what is not deferred."""

_POINTERS: Final = (
    (torch.Tensor, "data_ptr"),
    (torch.Tensor, "untyped_storage"),
    (torch.Tensor, "__dlpack__"),
    (torch._C, "_to_dlpack"),
    (torch.utils.dlpack, "to_dlpack"),
)
"""What gives a pointer to a tensor's memory, which then may be given to the kernel. It reads no unpainted memory, and
expects the tensor to stay where it is."""


_HANDLERS: Final = (
    (faulthandler, "enable"),
    (faulthandler, "disable"),
    (_signal, "signal"),  # which signal's calls
    (torch._C, "_set_worker_signal_handlers"),
)
"""What changes this process's actions at memory faults."""

LEVELS_MIN_BYTES: Final = 1 << 16
"""Pixels that are made become a deferred tensor from this size on. Python makes smaller ones as fast as it defers."""

MASK_MIN_BYTES: Final = 1 << 14
"""As much of masks, whose tensors programs mostly enlarge, or convert to integers of 8 bytes."""

TRIED_MIN: Final = 16
"""Images that a function defers before it is known whether that is worth while."""


class DeferralTrial:
    """Learns from its first images whether deferring what a function makes is worth while.

    If most are used as bytes before they are returned, it is not: these are made as fast at once, and recording takes
    time.

    Attributes:
        is_lost: Whether it is not.
    """

    def __init__(self) -> None:
        self.is_lost = False
        self._files: list[File] = []  # of this batch
        self._tried = self._gained = 0

    def begin(self) -> None:
        """Begin a batch."""
        self._files.clear()  # of one that failed

    def add(self, file: File) -> None:
        """Note that pixels of a file were deferred."""
        self._files.append(file)

    def end(self) -> None:
        """Learn from a batch."""
        self._tried += len(self._files)
        self._gained += sum(file.has_gained for file in self._files)
        self._files.clear()
        if self._tried >= TRIED_MIN:
            self.is_lost = 2 * self._gained < self._tried
            self._tried = self._gained = 0


class _Samples:
    """As of :meth:`Deferral.samples`."""

    def __init__(self, deferral: Deferral, indices: Sequence[Any]) -> None:
        self._deferral, self._indices = deferral, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Any]:
        try:
            for index in self._indices:
                self._deferral.begin_sample()
                yield index
        finally:  # also if a stream ends, which closes this
            self._deferral.end_samples()


class Deferral:
    """Defers the tensors of one worker process, in the thread that makes its batches.

    Without any, this takes no time: the recorder takes a microsecond of each call of torch's, and once the process has
    had one, a look for deferred tensors takes two of each sample.

    Attributes:
        recorder: Records what is done to them.
        deferred: How many images became deferred tensors since they were counted.
    """

    def __init__(self) -> None:
        joins.install()
        rearranged.install()
        canvas.install()
        copies.install()
        resizes.install()
        self.recorder = CallRecorder()
        self.deferred = 0
        self._thread = self._told = self._away_for = 0
        self._records = self._is_prepared = self._normalizes = self._compiles = False
        self._pauses = False
        self._tables: dict[Any, tuple[torch.Tensor, bool, bool] | None] = {}
        self._values: dict[Any, at_once.Values | None] = {}
        self._makers, self._replaced = lazy_functions.Replacements(), lazy_functions.Replacements()
        self._trials: defaultdict[Any, DeferralTrial] = defaultdict(DeferralTrial)

    def install_decoding(self) -> None:
        """Replace what decodes JPEG files for torchvision.io."""
        decoding.replace_operators(self._replaced.replace, self._decode)

    def install(self) -> None:
        """Replace the functions that make tensors of images, unless they are patched or replaced already."""
        for name in _PLACES:
            module = sys.modules.get(name)
            for function in _NAMES:
                original = getattr(module, function, None)
                if is_written_in(original, _HOME) and original.__name__ == function:
                    self._makers.replace(module, function, self._in_place_of(original))
        home, processor, function = _OF_A_PROCESSOR
        holder = getattr(sys.modules.get(home), processor, None)
        original = None if holder is None else vars(holder).get(function)
        if is_written_in(original, home):
            self._makers.replace(holder, function, self.in_place_of_method(original))

    def uninstall(self) -> None:
        """Put them back."""
        self._makers.undo()

    def _prepare(self) -> None:
        """Replace what gets deferred tensors and does not come by the recorder, for good."""
        if self._is_prepared:
            return
        self._is_prepared = True
        stacks.install()
        self._replace_normalize()
        self._replace_functions(_OF_SEVERAL_CALLS)
        replace = self._replaced.replace
        for home, function, new in colors.functions(self.recorder, self._is_on):
            replace(home, function, new)
        for holder, function in _POINTERS:
            replace(holder, function, _before(getattr(holder, function), memory.hold))
        replace(torch.Tensor, "numpy", _before(torch.Tensor.numpy, memory.fix))
        replace(torch.utils, "swap_tensors", _before(torch.utils.swap_tensors, memory.forget))
        replace(torch.Tensor, "_typed_storage", _storage_of(torch.Tensor._typed_storage, self._is_on))
        replace(torch.UntypedStorage, "resize_", _resize_storage(torch.UntypedStorage.resize_))
        replace(torch.UntypedStorage, "resizable", _is_resizable(torch.UntypedStorage.resizable))
        replace(torch.UntypedStorage, "is_shared", _is_shared(torch.UntypedStorage.is_shared))
        for holder, function in _HANDLERS:
            replace(holder, function, _guarding(getattr(holder, function)))

    def _replace_functions(self, functions: Iterable[tuple[str, str, tuple[str, ...], Callable[..., Any]]]) -> None:
        for home, function, methods, record in functions:
            original = getattr(sys.modules.get(home), function, None)
            if is_written_in(original, home) and original.__name__ == function:
                self._replaced.replace(sys.modules[home], function, self.recorded_by(record, original, methods))

    def _replace_normalize(self) -> None:
        if not self._normalizes:
            self._normalizes = True
            self._replace_functions(_NORMALIZE)

    def __enter__(self) -> None:
        """Defer tensors until the batch is made, and record from the first one on."""
        self._thread = threading.get_ident()
        for trial in self._trials.values():
            trial.begin()
        memory.begin_batch()
        take_painted_s()  # what was painted before, maybe in the process that this one was forked from
        if _core.has_deferred_memory():  # that the program has kept
            self._pauses = False
            self._record()

    def samples(self, indices: Sequence[Any]) -> _Samples:
        """Let a batch's samples be made, each when its index is taken.

        Recording takes time of each call of torch's, and what draws random numbers makes many. So once a batch has
        shown that its samples use no deferred tensor before they have made one, recording pauses until then.
        """
        return _Samples(self, indices)

    def begin_sample(self) -> None:
        """Pause, if samples let that be."""
        self.recorder.is_early = True
        if self._pauses and self._records:
            self._records = False
            self.recorder.__exit__()

    def end_samples(self) -> None:
        """Record what makes a batch of samples, if these have deferred tensors."""
        self.recorder.is_early = False
        if self.deferred and self._thread == threading.get_ident():  # not once a traceback held this beyond the batch
            self._record()

    def _record(self) -> None:
        self._prepare()
        if not self._compiles and compiled.is_imported():
            self._compiles = True
            for home, function, new in compiled.functions(self._leave, self._come_back):
                self._replaced.replace(home, function, new)
        if not self._records:
            self._records = True
            self.recorder.__enter__()

    def _leave(self, frame: int) -> None:
        if self._records and not self._away_for and self._thread == threading.get_ident():
            self._away_for = frame
            self.recorder.__exit__()

    def _come_back(self, frame: int) -> None:
        if self._away_for == frame:
            self._away_for = 0
            self.recorder.__enter__()

    take_painted_s = staticmethod(take_painted_s)

    def take_counts(self) -> tuple[int, int, str]:
        """End a batch: return its images deferred and looks, and the usual line."""
        painted_by = self.recorder.painted_by
        looks = painted_by.total() - self._told
        place = described(painted_by.most_common(1)[0][0]) if looks else ""
        images, self.deferred, self._told = self.deferred, 0, painted_by.total()
        if images:
            self._pauses, self.recorder.was_needed_early = not self.recorder.was_needed_early, False
        for trial in self._trials.values():
            trial.end()
        return images, looks, place

    def __exit__(self, *error: object) -> None:
        self._thread = 0
        if self._records:
            self._records, self._away_for = False, 0
            self.recorder.__exit__(*error)

    def _is_on(self) -> bool:
        """Whether this thread makes a batch, and calls of torch's mean what they usually do."""
        return self._thread == threading.get_ident() and is_plain_context(int(self._records))

    def _in_place_of(self, original: Any) -> Any:
        calls = _globals_of(original)

        @functools.wraps(original)
        def function(*arguments: Any, **rest: Any) -> Any:
            is_plain = len(arguments) == 1 and not rest and not torch.compiler.is_compiling()
            made = None
            if is_plain:
                key = original, *calls()
                if at_once.is_small(arguments[0], LEVELS_MIN_BYTES):
                    made = self._made_at_once(original, arguments[0], key)
                else:
                    made = self._made(original, arguments[0], key)
                    made = self._made_of_mask(original, arguments[0], key) if made is None else made
            return original(*arguments, **rest) if made is None else made

        return function

    def in_place_of_method(self, original: Any) -> Any:
        """Wrap a method of an image and constants that reads its object's class alone.

        Of the image it may read a transparent colour, which is left to it.
        """
        named, calls = _read_by(original), _globals_of(original)

        @functools.wraps(original)
        def method(self_: Any, image: Any, *arguments: Any, **rest: Any) -> Any:
            given = rest if named is None else {name: rest[name] for name in named if name in rest}
            key = original, *calls(), type(self_), *given.items()
            made = None
            is_opaque = isinstance(image, Image.Image) and "transparency" not in image.info
            is_plain = not arguments and rest.get("device") is None and not torch.compiler.is_compiling()
            if is_opaque and is_plain and _is_hashable(key):
                made = self._made(functools.partial(original, self_, **rest), image, key)
            return original(self_, image, *arguments, **rest) if made is None else made

        return method

    def recorded_by(self, record: Callable[..., Any], original: Any, names: Sequence[str]) -> Any:
        """Wrap one of :data:`_OF_SEVERAL_CALLS`, whose calls ``record`` gets first."""
        methods, calls = [getattr(torch.Tensor, name) for name in names], _globals_of(original)
        called = calls()

        @functools.wraps(original)
        def function(*arguments: Any, **rest: Any) -> Any:
            if torch.compiler.is_compiling():  # the original, in one graph with what is around it
                return original(*arguments, **rest)
            as_usual = methods == [getattr(torch.Tensor, name) for name in names] and called == calls()
            made = None
            if as_usual and self._is_on() and not self.recorder.is_off:
                made = record(self.recorder, original, arguments, rest)
            return original(*arguments, **rest) if made is None else made

        for name, value in (("__script_if_tracing_wrapper", True), ("__original_fn", original)):
            setattr(function, name, value)  # so that torch.jit compiles the original
        return function

    def _decode(self, *arguments: Any) -> torch.Tensor | None:
        """Make what an operator of torchvision decodes; ``None`` if it is to be called."""
        if not self._may_defer() or len(arguments) not in (2, 3):
            return None
        pending = decoding.pending_of(*arguments)
        if pending is None:
            return None
        made = None
        if not (trial := self._trials[decoding]).is_lost:
            made = self._tensor(pending, shared_table(IDENTITY), trial, planar=False, resizable=True)
        return decoding.made_at_once(pending) if made is None else made

    def _may_defer(self) -> bool:
        return not self.recorder.is_off and self._is_on() and (_core.guard_is_ours() or memory.guard_pages())

    def _made(self, original: Any, image: Any, kind: tuple[Any, ...]) -> torch.Tensor | None:
        trial = self._trials[kind[0]]
        if trial.is_lost or not self._may_defer():
            return None
        pending = pending_of(image, SIDE_MIN) or levels_of(image, LEVELS_MIN_BYTES, SIDE_MIN)
        if pending is None:
            return None
        if not pending.is_trusted:  # made now, which compares it: a batch has no other tensors than its others
            pending = pending.made()
        if pending.file.is_decoded and 3 * math.prod(pending.size) < LEVELS_MIN_BYTES:
            return None
        return self._by_table(original, pending, kind, "RGB", trial)

    def _made_of_mask(self, original: Any, image: Any, kind: tuple[Any, ...]) -> torch.Tensor | None:
        trial = self._trials[kind[0], "masks"]
        if trial.is_lost or not self._may_defer():
            return None
        if (mask := mask_of(image, SIDE_MIN)) is None or math.prod(image.size) < MASK_MIN_BYTES:
            return None
        return self._by_table(original, picked_of(mask), kind, mask.mode, trial)

    def _by_table(
        self, original: Any, image: Pending | Picked, kind: tuple[Any, ...], mode: str, trial: DeferralTrial
    ) -> torch.Tensor | None:
        if (known := self._table(original, self._key_of(kind, mode))) is None:
            return None
        table, planar, resizable = known
        return self._tensor(image, table, trial, planar=planar, resizable=resizable)

    def _key_of(self, kind: tuple[Any, ...], mode: str) -> tuple[Any, ...]:
        """What a function's result may depend on beside an image's pixels."""
        return mode, kind, torch.get_default_dtype(), *(getattr(torch.Tensor, name) for name in _METHODS)

    def _table(self, original: Any, key: tuple[Any, ...]) -> tuple[torch.Tensor, bool, bool] | None:
        if key not in self._tables:
            self._tables[key] = _table_of(original, key[0])
        return self._tables[key]

    def _made_at_once(self, original: Any, image: Image.Image, kind: tuple[Any, ...]) -> torch.Tensor | None:
        if self.recorder.is_off or not self._is_on():
            return None
        key = self._key_of(kind, image.mode)
        if key not in self._values:
            known = self._table(original, key)
            self._values[key] = at_once.Values(known[0], planar=known[1]) if known and known[2] else None  # NumPy's
            self._replace_normalize()
        values = self._values[key]
        return None if values is None else values.of(image)

    def _tensor(
        self, image: Pending | Picked, table: torch.Tensor, trial: DeferralTrial, *, planar: bool, resizable: bool
    ) -> torch.Tensor | None:
        """Make a deferred tensor of one image; ``None`` without memory for it."""
        self._record()
        self.recorder.is_early = False
        width, height = image.size
        size = (image.channels, height, width)
        stride = strides_of(size, planar=planar)
        content = Content((image,), table, planar or image.channels == 1)
        try:
            with torch._C.DisableTorchFunction():
                tensor = memory.tensor_of(content, size, stride, resizable=resizable)
        except MemoryError:
            return None
        self.deferred += 1
        trial.add(image.file)
        return tensor


def _before(original: Any, do: Callable[[torch.Tensor], None]) -> Any:
    """A function of tensors that first does something with each."""

    @functools.wraps(original)
    def function(*arguments: Any, **rest: Any) -> Any:
        for each in arguments:
            if isinstance(each, torch.Tensor):
                do(each)
        return original(*arguments, **rest)

    return function


def _read_by(function: Any) -> tuple[str, ...] | None:
    """The names of a function's parameters; ``None`` if it reads others, too."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    others = code.co_varnames[len(names) :][
        : (code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)).bit_count()
    ]
    read = [step.argval for step in dis.get_instructions(code)]
    read += [name for two in read if type(two) is tuple for name in two]  # of one instruction, from Python 3.13 on
    return None if {*others}.intersection(read) else names


def _globals_of(function: Any) -> Callable[[], tuple[Any, ...]]:
    """Return what looks up a function's globals, which the user may replace."""
    space = function.__globals__
    names = [name for name in function.__code__.co_names if name in space]
    return lambda: tuple(map(space.get, names))


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _storage_of(original: Any, here: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def typed_storage(tensor: torch.Tensor) -> Any:
        storage = joins.storage_to_stack_into() if here() else None
        return original(tensor) if storage is None else storage

    return typed_storage


def _resize_storage(original: Any) -> Any:
    @functools.wraps(original)
    def resize_(storage: torch.UntypedStorage, *arguments: Any, **rest: Any) -> Any:
        found = _core.deferred_memory_at(storage.data_ptr())
        moved = None if found is None else memory.leave(found)
        return original(storage if moved is None else moved, *arguments, **rest)

    return resize_


def _is_resizable(original: Any) -> Any:
    @functools.wraps(original)
    def resizable(storage: torch.UntypedStorage) -> Any:
        found = _core.deferred_memory_at(storage.data_ptr())
        return original(storage) if found is None else found.resizable

    return resizable


def _is_shared(original: Any) -> Any:
    @functools.wraps(original)
    def is_shared(storage: torch.UntypedStorage) -> Any:
        found = _core.deferred_memory_at(storage.data_ptr())
        return original(storage) if found is None else found.is_shared

    return is_shared


def _guarding(original: Any) -> Any:
    @functools.wraps(original)
    def function(*arguments: Any, **rest: Any) -> Any:
        try:
            return original(*arguments, **rest)
        finally:
            memory.guard_pages()

    return function


def let_faults_through() -> None:
    """Keep threads from blocking memory faults, at which the kernel would end the process.

    They are told that they do. Call it before there are other threads.
    """
    original, fault = _signal.pthread_sigmask, int(signal.SIGSEGV)
    thread = threading.local()

    @functools.wraps(original)
    def pthread_sigmask(how: int, mask: Iterable[int], /) -> Any:
        numbers = list(mask)
        rest = numbers if how == signal.SIG_UNBLOCK else [each for each in numbers if each != fault]
        found = original(how, rest)
        blocked = getattr(thread, "blocks_faults", False)
        if how == signal.SIG_SETMASK or fault in numbers:
            thread.blocks_faults = how != signal.SIG_UNBLOCK and fault in numbers
        return found | {fault} if blocked else found

    _signal.pthread_sigmask = pthread_sigmask


def _table_of(function: Any, mode: str) -> tuple[torch.Tensor, bool, bool] | None:
    """Learn each level's value by a function, its layout, and whether it is resizable."""
    channels = Image.getmodebands(mode)
    levels = np.arange(256, dtype=np.uint8).repeat(channels).tobytes() * SIDE_MIN  # all, in each channel
    with torch._C.DisableTorchFunction():
        made = function(Image.frombytes(mode, (256, SIDE_MIN), levels))
        size = (channels, SIDE_MIN, 256)
        if type(made) is not torch.Tensor or made.shape != size:
            return None
        resizable = made.untyped_storage().resizable()  # which it is not any more once the table is NumPy's, too
        for planar in (True, False):
            if made.stride() == strides_of(size, planar=planar):
                return shared_table(made[:, 0]), planar, resizable
    return None
