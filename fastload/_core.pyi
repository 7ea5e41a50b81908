from collections.abc import Callable, Sequence
from os import PathLike
from types import FunctionType
from typing import Any, ClassVar, Literal, TypeAlias

from typing_extensions import Buffer

# A file's bytes, or its path.
_Source: TypeAlias = Buffer | str | PathLike[str] | PathLike[bytes]
# (crop top, left, height, width, out height, width, window top, left, height, width, flip horizontal, flip vertical)
_Geometry: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, bool, bool]
# boxes (top, left, height, width), in order, and torch's generator's state before normal_ draws noise for one after the
# other; None if they get none
_Erased: TypeAlias = tuple[list[tuple[int, int, int, int]], bytes | None]
# (status, errno, image width, image height, file bytes, detail)
_Outcome: TypeAlias = tuple[str, int, int, int, int, str]
_Array: TypeAlias = Any  # a NumPy array or a CPU tensor, uint8
_Floats: TypeAlias = Any  # the same of float32

class Generator:
    STATE_BYTES: int  # of torch's get_state(); those of seed_others come behind it
    def __init__(self, seed: int) -> None: ...
    def seed(self, seed: int) -> None: ...
    def seed_others(self, seed: int) -> None: ...
    def random(self) -> int: ...
    def rand(self) -> float: ...
    def randint(self, low: int, high: int) -> int: ...
    def randperm(self, count: int) -> list[int]: ...
    def skip_normals(self, count: int) -> None: ...  # what torch.empty(count).normal_() draws
    def uniform(self, low: float, high: float, fused: bool = True, excludes_upper: bool = True) -> float: ...
    def get_state(self) -> bytes: ...
    def set_state(self, state: bytes) -> None: ...

# Applies steps, given as (kind, fields), to an image, whose memory may change. Returns whether they fit the image and
# the result fits `out`. Both are HWC with 3 channels. With a generator, all ops may follow a first step.
def apply_steps(
    steps: Sequence[tuple[str, dict[str, Any]]],
    image: _Array,
    out: _Array,
    pass_rule: str = "horizontal_first",
    generator: Generator | None = None,
) -> bool: ...

# Where an image takes its pixels from in one of its size: (H, W) int32, numbers of these row by row, -1 outside.
class PixelPlaces:
    def __init__(self, numbers: Any) -> None: ...

# One image: a part of an encoded file, its size, flips and steps. With `levels`, (height, width), the file is these.
class ImageProgram:
    def __init__(
        self,
        data: Buffer,
        geometry: _Geometry | Sequence[int],
        filter: str = "bilinear",
        steps: Sequence[tuple[str, dict[str, Any]]] = (),
        levels: tuple[int, int] | None = None,
        library: str = "Pillow",
        place: tuple[int, int, int, int] | None = None,  # in the tensor's image, else all of it
    ) -> None: ...
    # Of levels of one channel, their height and width given: the row and the column of each pixel there, 1-D int32.
    @staticmethod
    def picked(
        data: Buffer,
        levels: tuple[int, int],
        rows: Any,
        columns: Any,
        place: tuple[int, int, int, int] | None = None,
    ) -> ImageProgram: ...

# Images of one size, one behind the other, whose levels are looked up in a table, (3, 256) or, of picked images,
# (1, 256), of values of 1, 2, 4 or 8 bytes. Fills: (image, top, left, height, width, a value for each channel), in
# order. paint() needs no GIL and returns each image's status; `out` is 1-D uint8.
class TensorProgram:
    def __init__(
        self,
        images: Sequence[ImageProgram],
        size: tuple[int, int],
        pass_rule: str,
        table: Any,
        planar: bool,
        fills: Sequence[tuple[int, int, int, int, int, bytes]] = (),
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...
    # Of one size and table. Makes the program of all their images, one behind the other.
    @staticmethod
    def joined(programs: Sequence[TensorProgram], planar: bool) -> TensorProgram: ...
    # Other images from `first` on, with these fills and no others of theirs, and with values of the same size.
    def with_images(
        self,
        first: int,
        images: Sequence[ImageProgram],
        table: Any,
        fills: Sequence[tuple[int, int, int, int, int, bytes]],
    ) -> TensorProgram: ...
    # Each image's values in the order of dimensions (size, stride in values), the outermost first, from `first` on. For
    # painting only.
    def in_order(self, axes: Sequence[tuple[int, int]], first: int) -> TensorProgram: ...
    # What programs without parts describe, one behind the other. For painting only.
    @staticmethod
    def in_parts(programs: Sequence[TensorProgram]) -> TensorProgram: ...
    # These two return each image's status, and release the GIL. An image whose status is not 0 is unspecified.
    def with_values(self, table: Any) -> TensorProgram: ...  # the same images, without fills
    def paint(self, out: _Array) -> bytes: ...
    def write(self, file: int, offset: int = 0) -> bytes: ...
    def paint_levels(self, image: int, levels: _Array, out: _Array) -> None: ...

# Private memory of a program's size, which an access paints: reading or writing, by an instruction of any thread or
# forked child. Accesses by the kernel (write(2) and the like) fail with EFAULT until it is painted. Has attributes of
# its own. MemoryError: guard_pages() was not called or is False, too much is armed, or there is no address space.
class DeferredMemory:
    def __init__(self, program: TensorProgram) -> None: ...
    # To be replaced by one of the same size until it is painted; ValueError then.
    @property
    def program(self) -> TensorProgram: ...
    @program.setter
    def program(self, program: TensorProgram) -> None: ...
    @property
    def painted(self) -> bool: ...
    @property
    def address(self) -> int: ...
    # Paints it now and returns each image's status. If one is not 0, nothing is painted: call it again with that
    # image's levels, (H, W, 3) uint8. Releases the GIL.
    def paint(self, levels: Sequence[tuple[int, _Array]] = ()) -> bytes: ...
    # A DLPack capsule, which keeps the memory. Strides are in values; names are torch's: uint8, float32, bfloat16.
    def array(self, shape: Sequence[int], strides: Sequence[int], dtype_name: str) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...

# The one in whose slot the address is.
def deferred_memory_at(address: int) -> DeferredMemory | None: ...

# Whether there is any deferred memory, painted or not.
def has_deferred_memory() -> bool: ...

# Makes this process handle memory faults, and says whether it can have deferred memory. `decoder`: a command line that
# decodes an image that the core does not, by the library whose name is appended, see csrc/deferred/other_decoder.h;
# empty: the last one. Idempotent. Installs the handler again if another action was installed meanwhile, which is asked
# then for other faults.
def guard_pages(decoder: Sequence[str] = ()) -> bool: ...

# Whether faults of this thread would be handled now.
def guard_is_ours() -> bool: ...

# The __torch_function__ of a mode, bound to it: the function itself, but mode.record(function, types, arguments,
# named), unless that is NotImplemented, if a deferred tensor may be among the arguments, or the function is `watched`
# or one of Python's.
def torch_function(
    mode: Any, passed: frozenset[Any], watched: frozenset[Any], plain: frozenset[Any], tensor: type, data_ptr: Any
) -> Any: ...

# Prepares the images of a batch's tensors for a GPU, in 1-D uint8 memory as Staging; those of tensor i begin at byte
# first[i] of the pixels. Each file is staged once. Releases the GIL. Returns, in a byte or an int32 of each image,
# whether it is staged, its owner and its place among all; then Staging's used, wanted, search, codes and finish().
def stage_programs(
    tensors: Sequence[TensorProgram], first: Sequence[int], memory: _Array, most_bytes: int
) -> tuple[bytes, bytes, bytes, int, int, tuple[int, ...], tuple[int, int], list[tuple[int, ...]]]: ...

# Draws the random parameters of a chain of transforms, in torchvision's order. What kinds and fields there are is in
# fastload/pipeline/ops/table.py. add() raises ValueError if an argument is invalid. begin_view() begins another chain
# for the same image.
class DrawPlan:
    def __init__(self) -> None: ...
    def add(self, kind: str, **fields: Any) -> None: ...
    def begin_view(self) -> None: ...
    def set_uniform_rule(self, fused: bool, excludes_upper: bool) -> None: ...
    def draw(
        self,
        generator: Generator,
        width: int,
        height: int,
        known: Sequence[tuple[str, list[float], list[float]]] = ...,
        view: int = 0,
    ) -> tuple[Literal["ok", "exp", "perspective", "crop_too_large"], _Geometry | None, list[float]]: ...
    def draw_erased(self, generator: Generator, width: int, height: int) -> _Erased: ...

# The generator of Python's random: random.seed(seed).
class PythonRandom:
    def __init__(self, seed: int) -> None: ...
    def random(self) -> float: ...
    def randbelow(self, count: int) -> int: ...
    def uniform(self, low: float, high: float) -> float: ...
    def gauss(self, mean: float, deviation: float) -> float: ...
    def get_state(self) -> bytes: ...
    def set_state(self, state: bytes) -> None: ...
    @staticmethod
    def exp(x: float) -> float: ...

# NumPy's global generator: numpy.random.seed(seed).
class NumpyRandom:
    def __init__(self, seed: int) -> None: ...
    def random(self) -> float: ...
    def randint(self, count: int) -> int: ...
    def get_state(self) -> bytes: ...
    def set_state(self, state: bytes) -> None: ...

# A generator from which batches draw in the order of submission. `state` is torch's get_state(), with Python's and
# NumPy's behind it if the plan draws from these.
class RandomStream:
    def __init__(self, state: bytes) -> None: ...
    @staticmethod
    def from_seed(seed: int) -> RandomStream: ...

# A submitted batch. It keeps the images' bytes and the output alive, and cancels itself when dropped.
#
# cancel() ends the batch at once: wait() returns "done", and samples without an outcome become "cancelled", with
# undefined pixels. It then waits for threads that still work on the batch and returns whether they have stopped using
# its memory, which happens soon unless a read is stuck. Don't reuse the output until cancel() has returned True. It may
# be dropped: it stays alive as long as needed. A negative limit waits forever; a signal handler may raise meanwhile.
#
# wait() returns "requested" when the batch needs help; request() is then one of
#   ("sample", index, []): the draws of this sample cannot be made here, outcome(index) says why. Process it from
#       generator_before(index), write its pixels yourself, then call skip() with the generator's state afterwards;
#   ("exp", index, [x]): call provide("exp", [x], [torch.exp(x)]), in float32;
#   ("perspective", index, corners): call provide("perspective", corners, torchvision's coefficients), see
#       perspective_coefficients(); without any if torchvision raises an error.
# outcome(), geometry() and statuses() (one byte per sample, an index into status_names()) are final once wait() returns
# "done". So is erased(): what a random erasing fills in each sample, see _Erased.
# Samples that are not "ok" are black; generator_before() still works for them. With len() it returns the state after
# the last sample; `None` if the draws have not got that far.
class Job:
    def __len__(self) -> int: ...
    def wait(self, timeout: float = -1.0) -> Literal["done", "requested", "timeout"]: ...
    def cancel(self, timeout_s: float = -1.0) -> bool: ...
    def request(self) -> tuple[Literal["none", "sample", "exp", "perspective"], int, list[float]]: ...
    def provide(self, kind: str, question: list[float], answer: list[float]) -> None: ...
    def skip(self, state_after: bytes) -> None: ...
    def generator_before(self, sample: int) -> bytes | None: ...
    def statuses(self) -> bytes: ...
    def outcome(self, sample: int) -> _Outcome: ...
    def geometry(self, sample: int) -> _Geometry | None: ...
    def erased(self) -> list[_Erased]: ...
    # Of all threads on it so far, without tasks in progress.
    def work_seconds(self) -> float: ...

def kernel_source(file: str) -> str: ...  # the text of a file in csrc/gpu/kernels

# The files of a batch, prepared in `memory` (uint8, aligned to 16 bytes) for the kernels of decode.cu. finish() may be
# called once, when no thread adds files any more, and returns parts of the batch whose intermediate results take at
# most so many bytes: (first image, images, byte of the work list, its items, bytes of coefficients, other bytes, most
# columns and rows of regions, and of results, whether any image's columns are resized first, and has steps).
class FoundPoints:
    # Notes one more file in the index. Thread-safe.
    def learn(self, index: JpegIndex) -> None: ...
    # Whether none is left.
    @property
    def done(self) -> bool: ...

# A part of a device's memory, and how many files in it are known or in use.
class KeptMemory:
    def __init__(self, address: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def users(self) -> int: ...

# The files whose data and points stay in a device's memory. Thread-safe. A file is kept so many seconds after its last
# change. `totals` are files, look-ups that found one, and those that did not.
class KeptFiles:
    def __init__(self, settle_seconds: int = ...) -> None: ...
    # Whether more are to be kept.
    @property
    def wants(self) -> bool: ...
    @wants.setter
    def wants(self, wants: bool) -> None: ...
    def forget(self, memory: KeptMemory) -> None: ...
    @property
    def totals(self) -> tuple[int, int, int]: ...

class Staging:
    bytes_per_image: ClassVar[int]
    table_bytes: ClassVar[int]
    find_table_bytes: ClassVar[int]
    # Each `views` images in a row may be views of one file, which is decoded once. `new_file` says what is done with a
    # file whose points the index does not know: "refuse" leaves it to the threads, "scan" lets them look for points,
    # "find" the kernels. Samples behind the first `most_samples` are left to the threads. These also note in the index
    # what was `found` in an earlier batch.
    def __init__(
        self,
        memory: _Array,
        images: int,
        views: int = ...,
        new_file: str = ...,
        most_samples: int | None = ...,
        found: FoundPoints | None = ...,
        kept: KeptFiles | None = ...,
    ) -> None: ...
    # One byte per image: whether it is in here.
    def has(self) -> bytes: ...
    # The image whose data it is decoded from.
    def owner(self, image: int) -> int: ...
    def remove(self, image: int) -> None: ...
    def finish(self, most_bytes: int) -> list[tuple[int, int, int, int, int, int, int, int, int, int, bool, bool]]: ...
    # Once finished: where the sets of codes begin, and their number.
    @property
    def codes(self) -> tuple[int, int]: ...
    # Once finished, of images whose points are to be found: how many; where their work begins, and how many blocks of
    # threads do it; bytes of intermediate results; bytes of their points, behind the used ones.
    @property
    def search(self) -> tuple[int, int, int, int, int]: ...
    # Before finish(): the bytes of device memory that what is to be kept takes, and where it goes, a multiple of 16.
    @property
    def keep_bytes(self) -> int: ...
    def keep_in(self, memory: KeptMemory, address: int) -> None: ...
    # Once finished, of what is to be kept: where its list begins, and its length.
    @property
    def keeps(self) -> tuple[int, int]: ...
    # Lets later batches use it; `bad` is as for found().
    def keep(self, bad: _Array) -> None: ...
    # How many of its files were kept before.
    @property
    def kept_files(self) -> int: ...
    # What kernels have found; `bad` is an int32 for each image.
    def found(self, points: _Array, bad: _Array) -> FoundPoints: ...
    @property
    def used(self) -> int: ...
    # How many of its files the index did not know.
    @property
    def new_files(self) -> int: ...
    # The bytes that all files together would have taken.
    @property
    def wanted(self) -> int: ...

# Decode threads. submit() returns at once. Each image is decoded, cropped, resized and flipped by its row of `geometry`
# (int32, as _Geometry; a height of 0 for crop, output or window means all of it), or by `plan`, which draws from
# `stream`, from one generator per entry of `seeds`, or not at all. `out` is NHWC with contiguous rows; or, if views
# differ in `sizes` (height, width), (1, 1, pixels, 3) for all first views, then all second ones. `inputs` may also be
# pixels (N, height, width, 3 or, gray, 1) with any strides, of which `indices` are taken. `number` is the
# batch's number in a profile. resize() changes the number of threads, even while they work, and returns the new number.
# work_done() returns the total seconds of work over all threads, and the number of images.
#
# close() cancels all batches and ends the threads. It returns False if threads stuck in a read exceed the limit; they
# are left to end by themselves. A dropped pool closes itself.
# Where to begin within JPEG files that were decoded before, whatever their names. Thread-safe.
class JpegIndex:
    # `whole`: a file's first decode goes on to the file's end, so that there are points for any crop.
    def __init__(self, max_bytes: int, whole: bool = False) -> None: ...
    @property
    def max_bytes(self) -> int: ...
    # (bytes kept, files kept, images whose file was found, images whose file was not, files evicted)
    def totals(self) -> tuple[int, int, int, int, int]: ...

class Pool:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def resize(self, threads: int) -> int: ...
    def work_done(self) -> tuple[float, int]: ...
    # (seconds of work, of those on a core, seconds reading files, of those on a core), totals over all threads. Still
    # available after close().
    def work_times(self) -> tuple[float, float, float, float]: ...
    def submit(
        self,
        inputs: Sequence[_Source] | _Array,
        out: _Array,
        *,
        geometry: _Array | None = None,
        plan: DrawPlan | None = None,
        stream: RandomStream | None = None,
        seeds: Sequence[int] | None = None,
        number: int = 0,
        filter: str = "bilinear",
        pass_rule: str = "horizontal_first",
        max_pixels: int = 0,
        fast: bool = False,
        arrays: bool = False,
        sizes: Sequence[tuple[int, int]] = (),
        index: JpegIndex | None = None,
        indices: _Array | None = None,
        staging: Staging | None = None,
        values: Sequence[Any] = (),
        table: Any = None,
    ) -> Job: ...
    def close(self, timeout_s: float = 5.0) -> bool: ...

# Writes the ints of a list or tuple into an int64 array of as many. Returns False, with the array unspecified, if there
# is anything else among them, bools and NumPy's numbers included, or one that does not fit.
def put_ints(numbers: Any, out: _Array) -> bool: ...

# [values[i] for i in indices], which are an int64 array. Raises IndexError as the list would.
def items_of(values: list[Any], indices: _Array) -> list[Any]: ...

# What Python objects hold, by identity: each entry's value in its dict, or its absence; what is in dicts and lists, in
# order; the classes and dicts of objects; attributes of types; code and defaults of functions. A stamp keeps all of it
# alive, and Python's garbage collection does not see that.
class Stamp:
    def __init__(
        self,
        entries: list[tuple[dict[Any, Any], Any]],
        containers: list[Any],
        objects: list[Any],
        types: list[type],
        functions: list[FunctionType],
    ) -> None: ...

    # Whether everything is what it was. May be false for a type that was not changed, never true for one that was.
    def holds(self) -> bool: ...

# Changes of colour: Pillow's and torchvision's bits, in place on a uint8 HWC image with contiguous rows. They release
# the GIL. `shift` is what torchvision adds to Pillow's hue, 0 to 255; `table` has shape (3, 256).
def adjust_brightness(image: _Array, factor: float) -> None: ...
def adjust_contrast(image: _Array, factor: float) -> None: ...
def adjust_hue(image: _Array, shift: int) -> None: ...
def adjust_saturation(image: _Array, factor: float) -> None: ...
def adjust_sharpness(image: _Array, factor: float) -> None: ...
def apply_table(image: _Array, table: _Array) -> None: ...
def autocontrast(image: _Array) -> None: ...
def equalize(image: _Array) -> None: ...
def invert(image: _Array) -> None: ...
def posterize(image: _Array, bits: int) -> None: ...
def solarize(image: _Array, threshold: float) -> None: ...
def to_grayscale(image: _Array) -> None: ...
def decode(
    data: _Source,
    out: _Array,
    geometry: Sequence[int],
    *,
    filter: str = "bilinear",
    pass_rule: str = "horizontal_first",
    max_pixels: int = 0,
    fast: bool = False,
    index: JpegIndex | None = None,
) -> _Outcome: ...

# What OpenCV makes of a JPEG or PNG file, in what allocate(shape) returns; None if OpenCV has to read it. Pixels are
# "bgr", "rgb", "gray" or "as stored". With `upright`, None for images that may say that they are turned.
def decode_for_opencv(
    data: _Source,
    pixels: str,
    upright: bool,
    allocate: Callable[[tuple[int, ...]], Any],
) -> Any: ...

# New bytes, and a 1-D array of their memory: fill it before anything else gets to see them.
def unfilled_bytes(size: int) -> tuple[bytes, _Array]: ...

# Copies a value of `table`, (C, 256), for each of `levels`, (N, H, W, C) uint8, into `out`, (N, C, H, W), which is
# planar or else channels-last. Values have 2 or 4 bytes. Releases the GIL.
def look_up(levels: _Array, table: Any, out: Any, planar: bool) -> None: ...

# The same of the bytes of one small image. `out` is a writable buffer. Keeps the GIL.
def look_up_bytes(levels: bytes, table: Any, out: Any, planar: bool) -> None: ...

# Hints that memory not written before should get large pages.
def advise_large_pages(array: Any) -> None: ...

# Pillow's GaussianBlur, in place. Images here and below are HWC, with contiguous rows at any distance.
def gaussian_blur(image: _Array, radius: float | tuple[float, float]) -> None: ...

# torch's conv2d of each channel with float32 weights, (height, width), both odd; beyond the edges the mirrored image.
def convolve(source: _Array, weights: _Floats, out: _Floats) -> None: ...

# torchvision's _get_inverse_affine_matrix, of v1 or v2.
def inverse_affine_matrix(
    center: Sequence[float],
    angle: float,
    translate: Sequence[float],
    scale: float,
    shear: Sequence[float],
    v2: bool = False,
) -> list[float]: ...

# torchvision's pad; the margins to the right and below are what `out` has more.
def pad(
    source: _Array,
    out: _Array,
    left: int,
    top: int,
    mode: Literal["constant", "edge", "reflect", "symmetric"],
    fill: Sequence[int],
) -> None: ...

# The matrix of Pillow's Image.rotate, without expand.
def rotation_matrix(angle: float, center: Sequence[float]) -> list[float]: ...

# Pillow's Image.transform.
def transform_affine(
    source: _Array,
    out: _Array,
    matrix: Sequence[float],
    sampling: Literal["nearest", "bilinear", "bicubic"],
    fill: Sequence[int],
) -> None: ...
def transform_perspective(
    source: _Array,
    out: _Array,
    coefficients: Sequence[float],
    sampling: Literal["nearest", "bilinear", "bicubic"],
    fill: Sequence[int],
) -> None: ...

# Pillow's Image.transpose, anticlockwise.
def transpose(
    source: _Array,
    out: _Array,
    how: Literal["flip_horizontal", "flip_vertical", "rotate_90", "rotate_180", "rotate_270"],
) -> None: ...

# Tagged files, see csrc/base/keyed_hash.h; a key has 48 bytes. Both release the GIL.
# What follows the data.
def tags_of(data: Buffer, key: bytes) -> bytes: ...

# The data; `None` if the file cannot be read or was not tagged with the key.
def read_tagged(path: bytes, key: bytes) -> bytes | None: ...
def decode_and_drop(images: Sequence[Buffer], boxes: Sequence[tuple[int, int, int, int]]) -> None: ...

# Pillow's levels or indices of a PNG file of one channel, (H, W, 1). False: not decoded, out holds anything.
def decode_levels(data: bytes, out: _Array) -> bool: ...

# Where a JPEG file's only scan ends, bytes, if it can be decoded without an error; otherwise 0. With `codes` also 0 if
# libjpeg would warn of the scan, all of which is then read, without the GIL.
def scan_end(data: bytes, max_pixels: int = 0, codes: bool = False) -> int: ...
def jpeg_header(data: _Source) -> tuple[str, int, int, int, int, int, str, bool, str]: ...
def libjpeg_version() -> str: ...

# (name, the loaded one's version or of libjpeg that of the headers, the file it was built with, the file that is
# loaded) of each.
def linked_libraries() -> list[tuple[str, str, str, str]]: ...

# What decodes other formats than JPEG: "PNG, WebP with libwebp 1.2.4". Formats are decoded
# whose bit, in the order of the names, is in the mask: none until fastload.vision.calibrate().
def codec_versions() -> str: ...
def format_names() -> list[str]: ...
def trusted_formats() -> int: ...
def set_trusted_formats(mask: int) -> None: ...

# Images decoded by the core's own decoder, by libjpeg-turbo, and by libjpeg-turbo after the own decoder gave up.
def decode_counts() -> tuple[int, int, int]: ...
def set_own_decoder(enabled: bool) -> None: ...
def uses_own_decoder() -> bool: ...

# `out` is the part of what is resized to `size` (rows, columns; if None, that of `out`) from `window` on, then flipped.
def resize(
    source: _Array,
    out: _Array,
    filter: str = "bilinear",
    pass_rule: str = "horizontal_first",
    size: tuple[int, int] | None = None,
    window: tuple[int, int] = (0, 0),
    mirrored: bool = False,
    flipped: bool = False,
) -> None: ...

# `values` is (3, 256) float32, what each level of `source` is resized as, in float, to `size` (rows, columns). `out` is
# 1-D float32, with channels first if `planar`. False, and `out` is unspecified, if values are not finite.
def resize_values(
    source: _Array, values: _Array, out: _Array, size: tuple[int, int], planar: bool, filter: str
) -> bool: ...

# torchvision.transforms.functional._get_perspective_coeffs, or `None` if the core cannot tell how torch rounds them.
# `corners`: width and height of an image, and x and y of where its corners go, clockwise from the top left one.
def perspective_coefficients(corners: Sequence[float]) -> list[float] | None: ...
def seed_for_index(seed: int, epoch: int, index: int) -> int: ...
def set_simd_level(name: str) -> bool: ...
def set_trusted_subsamplings(mask: int) -> None: ...
def simd_level() -> str: ...
def status_names() -> list[str]: ...
def subsampling_names() -> list[str]: ...
def trusted_subsamplings() -> int: ...
