"""What torchvision.io decodes is made later, or natively at once, with its bits."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from jpeg_writer import FACTORS, write_jpeg
from photos import jpeg
from PIL import Image
from torchvision.io import ImageReadMode, decode_image, decode_jpeg, read_image
from torchvision.transforms.v2 import functional

from fastload import _core
from fastload.deferred import decode_elsewhere, decoding, functions, memory, staging
from fastload.deferred.functions import TRIED_MIN, Deferral
from fastload.deferred.memory import content_to_send, is_deferred
from fastload.device.decode.files import StagedLayout
from fastload.device.decode.received import StagedBatch
from fastload.lazy import functions as lazy_functions
from fastload.lazy import images as lazy_images
from fastload.lazy.files import ROOM
from fastload.memory import unfilled
from fastload.pipeline.installed import decodes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torchvision", "ignore::FutureWarning:torch.jit")
DATA = jpeg(1, 90, 120)
LEVEL = 77


def bytes_of(data: bytes) -> torch.Tensor:
    return torch.tensor(bytearray(data), dtype=torch.uint8)


def damaged() -> bytes:
    """A file with sound markers that libjpeg decodes, and the core does not."""
    data = bytearray(DATA)
    data[1000:1002] = b"\xff\xd0"
    return bytes(data)


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = (40, 30), **options: object) -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, "white").save(out, kind, **options)
    return out.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    return jpeg(2, 33, 44, exif=exif)


def outcome(function, *arguments, **options):
    """What a call returns, or its error."""
    try:
        made = function(*arguments, **options)
    except Exception as error:
        return type(error), str(error)
    storage = made.untyped_storage()
    properties = made.dtype, made.stride(), made.storage_offset(), storage.nbytes(), storage.resizable(), made._version
    return type(made), *properties, made.tolist()


@pytest.fixture
def library():
    """torchvision, which has been compared with."""
    assert lazy_images.prepare()
    assert memory.guard_pages()
    decoding._library.cache_clear()
    made = decoding._library()
    assert "4:2:0" in made.subsamplings
    made.comparisons = 0
    yield made
    decoding._library.cache_clear()


@pytest.fixture
def deferral(library):
    made = Deferral()
    made.install_decoding()
    yield made
    made._replaced.undo()
    unfilled.serve(None)


@pytest.fixture
def another(monkeypatch):
    """Let torchvision decode all to one level, which tells its pixels from Pillow's."""

    def decode(data):
        with Image.open(io.BytesIO(data)) as image:
            return np.full((image.height, image.width, 3), LEVEL, np.uint8)

    monkeypatch.setattr(decoding, "_decoded", decode)


READS = {
    "decode_image": lambda data: decode_image(data, "RGB"),
    "decode_image, unchanged": decode_image,
    "decode_jpeg": lambda data: decode_jpeg(data, ImageReadMode.RGB),
    "decode_jpeg of a list": lambda data: decode_jpeg([data], mode="rgb")[0],
    "with an orientation, if there were one": lambda data: decode_image(data, "RGB", True),
    "the operator": lambda data: torch.ops.image.decode_jpeg(data, 3),
}


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_tensors_are_torchvisions(deferral, read, at_once):
    files = [DATA, *(write_jpeg(60, 50, FACTORS[name], restart=3) for name in FACTORS if name != "gray")]
    expected = [outcome(read, bytes_of(data)) for data in files]
    deferral._trials[decoding].is_lost = at_once
    with deferral:
        made = [read(bytes_of(data)) for data in files]
    assert set(map(is_deferred, made)) == {not at_once}
    assert {each._is_view() for each in made} == {at_once}
    assert [outcome(lambda each=each: each) for each in made] == expected


@pytest.mark.parametrize(
    ("use", "is_lost"),
    [
        (lambda x: x.float().sum(), True),
        (lambda x: x.half().sum(), True),
        (lambda x: x.float().div(255).sum(), False),
        (lambda x: x.float(), True),
    ],
    ids=["levels as floats", "as halves", "computed floats", "not looked at, nor sent"],
)
def test_deferring_goes_on_where_it_saves_work(deferral, use, is_lost):
    with deferral:
        kept = [use(decode_image(bytes_of(DATA), "RGB")) for _ in range(TRIED_MIN)]
    assert len(kept) == deferral.take_counts()[0] == TRIED_MIN
    assert deferral._trials[decoding].is_lost == is_lost


def test_a_path_is_read(deferral, tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(DATA)
    expected = read_image(path)
    with deferral:
        made = read_image(path)
    assert is_deferred(made)
    assert torch.equal(made, expected)


OTHERS = {
    "gray": (jpeg(3, 30, 40, "L"), "UNCHANGED"),
    "gray as RGB": (jpeg(3, 30, 40, "L"), "RGB"),
    "RGB as gray": (DATA, "GRAY"),
    "with transparency": (DATA, "RGBA"),
    "CMYK": (jpeg(3, 30, 40, "CMYK"), "UNCHANGED"),
    "progressive": (jpeg(3, 30, 40, progressive=True), "RGB"),
    "PNG": (encoded("PNG"), "RGB"),
    "WebP": (encoded("WEBP"), "RGB"),
    "one column": (jpeg(3, 30, 1), "RGB"),
    "turned": (turned(), "RGB", True),
    "turned by another segment": (turned().replace(b"Exif", b"Exxx"), "RGB", True),
    "truncated": (DATA[:-2], "RGB"),
    "truncated, and more behind": (DATA[:1500] + bytes(99), "RGB"),
    "no data": (b"", "RGB"),
    "text": (b"text" * 9, "RGB"),
    "a film behind it": (DATA + bytes(3 * 90 * 120 + ROOM), "RGB"),
    "an unknown mode": (DATA, "red"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_and_modes_are_left_to_torchvision(deferral, name):
    data, *rest = OTHERS[name]
    for at_once in (False, True):
        deferral._trials[decoding].is_lost = at_once
        expected = outcome(decode_image, bytes_of(data), *rest)
        with deferral:
            assert outcome(decode_image, bytes_of(data), *rest) == expected
    assert decoding.pending_of(bytes_of(DATA), 3) is not None
    if isinstance(expected[1], torch.dtype):
        assert decoding.pending_of(bytes_of(data), ImageReadMode[rest[0]].value, *rest[1:]) is None


def test_other_arguments_are_left_to_torchvision(library):
    data = bytes_of(DATA)
    tensors = [data.repeat_interleave(2)[::2], data[None], data.char(), data.as_subclass(torch.nn.Buffer), DATA, None]
    assert [decoding.pending_of(each, 3) for each in tensors] == [None] * 6
    assert [decoding.pending_of(data, mode) for mode in (1, 3.0, True, False, None, "RGB")] == [None] * 6
    assert [decoding.pending_of(data, 3, exif) for exif in (None, 1, "")] == [None] * 3


def test_the_files_bytes_may_change_later(deferral):
    data = bytes_of(DATA)
    expected = decode_image(data)
    with deferral:
        made = decode_image(data)
        data.zero_()
        data.resize_(3 * data.numel())  # which its ``numpy()`` would forbid
    assert torch.equal(made, expected)


def test_other_threads_and_programs_in_between_are_torchvisions(deferral):
    with deferral, ThreadPoolExecutor(1) as pool:
        assert not is_deferred(pool.submit(decode_image, bytes_of(DATA)).result())
    assert not is_deferred(decode_image(bytes_of(DATA)))


def test_pointers_stay_guarded_when_images_of_pillow_are_lazy_no_more(deferral, tmp_path):
    with deferral:
        made = decode_image(bytes_of(DATA))
    lazy_functions.uninstall()
    with (tmp_path / "written").open("wb", buffering=0) as file:
        os.write(file.fileno(), made.permute(1, 2, 0).numpy())  # the kernel does not wait
    assert (tmp_path / "written").read_bytes() == made.permute(1, 2, 0).contiguous().numpy().tobytes()


def test_functions_of_v2_are_recorded_as_one_call_each(deferral):
    with deferral:
        made = functional.to_dtype(decode_image(bytes_of(DATA)), torch.float32, scale=True)
        made = functional.normalize(made, [0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    assert is_deferred(made)
    assert [key[0].__name__ for key in deferral.recorder._compared] == ["to_dtype_image", "normalize_image"]


def test_operators_are_what_they_were(deferral):
    for name in ("decode_image", "decode_jpeg"):
        packet = getattr(torch.ops.image, name)
        assert isinstance(packet, torch._ops.OpOverloadPacket)
        assert (packet.__name__, packet.overloads()) == (name, ["default"])
    with deferral:
        assert not is_deferred(torch.ops.image.decode_jpeg.default(bytes_of(DATA), 3))
        assert not is_deferred(torch.jit.script(decode_image)(bytes_of(DATA)))


def test_the_first_images_are_compared(deferral, library, another):
    library.comparisons = 2
    with deferral, pytest.warns(RuntimeWarning, match="torchvision.io decodes at once from now on"):
        first = decode_image(bytes_of(DATA))
    assert library.differs
    with deferral:
        later = decode_image(bytes_of(DATA))
    assert not is_deferred(first)
    assert not is_deferred(later)
    assert torch.equal(first, later)


def test_the_first_images_are_torchvisions_own(deferral, library):
    library.comparisons = 2
    with deferral:
        made = [decode_image(bytes_of(DATA)) for _ in range(3)]
    assert list(map(is_deferred, made)) == [False, False, True]
    assert torch.equal(made[0], made[2])


def test_a_torchvision_that_decodes_otherwise_is_noticed(library, another):
    decoding._library.cache_clear()
    assert not decoding._library().subsamplings
    assert decoding.pending_of(bytes_of(DATA), 3) is None


def test_files_whose_subsampling_torchvision_decodes_otherwise_are_left_to_it(library, monkeypatch):
    monkeypatch.setattr(library, "subsamplings", frozenset({"4:2:0"}))
    assert decoding.pending_of(bytes_of(DATA), 3) is not None
    monkeypatch.setattr(library, "subsamplings", frozenset({*decodes.SUBSAMPLINGS} - {"4:2:0"}))
    assert decoding.pending_of(bytes_of(DATA), 3) is None


@pytest.mark.parametrize("changed", decodes.SUBSAMPLINGS)
def test_probes_of_each_subsampling_are_compared(library, changed):
    original = decoding._decoded

    def decode(data):
        pixels = original(data).copy()
        pixels[-1, -1, -1] ^= data == decodes.probe(changed)
        return pixels

    assert decodes.subsamplings_as(decode) == decodes.subsamplings_as(original) - {changed}


def test_torchvision_decodes_what_the_core_does_not(deferral, another):
    with deferral:
        made = decode_image(bytes_of(damaged()), "RGB")[:, 10:20, 30:50].flip(-1)
    memory.paint(memory.memory_of(made))
    assert (made == LEVEL).all()


@pytest.mark.slow
def test_it_does_so_for_an_access_without_python(deferral):
    expected = decode_image(bytes_of(damaged()))[:, 10:20, 30:50].flip(-1)
    with deferral:
        made = decode_image(bytes_of(damaged()), "RGB")[:, 10:20, 30:50].flip(-1)
    assert is_deferred(made)
    assert torch.equal(made, expected)


def test_a_process_without_python_asks_for_torchvision(deferral, tmp_path):
    noted = tmp_path / "noted"
    program = f"import os, struct, sys; open({str(noted)!r}, 'w').write(sys.argv[-1])"
    program += f"; os.write(1, struct.pack('=II', 90, 120) + bytes([{LEVEL}]) * 90 * 120 * 3)"
    assert _core.guard_pages([sys.executable, "-I", "-c", program])
    try:
        with deferral:
            made = decode_image(bytes_of(damaged()), "RGB")
        assert (made == LEVEL).all()
        assert noted.read_text() == "torchvision"
    finally:
        memory.guard_pages()


def test_it_gets_torchvisions_pixels():
    for data in (DATA, damaged()):
        height, width, pixels = decode_elsewhere._by_torchvision(data)
        expected = decode_jpeg(bytes_of(data), "RGB")
        assert torch.equal(bytes_of(pixels).view(height, width, 3).permute(2, 0, 1), expected)


def test_the_host_makes_images_that_a_gpu_cannot_decode_by_their_library(library, another):
    images = [decoding.pending_of(bytes_of(data), 3).cropped((5, 6, 50, 40)) for data in (damaged(), DATA)]
    files, _, programs = staging._programs(images)
    end = sum(map(len, files))
    slot = bytes_of(b"".join([*files, programs]))
    batch = StagedBatch((), StagedLayout(b"", 0, None, None, ()), 0, b"", b"", {}, (end, slot.numel()))
    of_torchvision, native = staging.paint_images(slot, batch, [0, 1])
    assert (of_torchvision == LEVEL).all()
    assert np.array_equal(native, decode_jpeg(bytes_of(DATA), "RGB")[:, 6:40, 5:50].permute(1, 2, 0).numpy())


def test_damaged_files_are_left_to_torchvision_at_once(deferral):
    deferral._trials[decoding].is_lost = True
    expected = decode_image(bytes_of(damaged()))
    with deferral:
        assert torch.equal(decode_image(bytes_of(damaged())), expected)


@pytest.mark.parametrize("sent", [True, False])
def test_it_decodes_at_once_where_programs_use_the_pixels(deferral, monkeypatch, sent):
    monkeypatch.setattr(functions, "TRIED_MIN", 4)
    for _ in range(2):
        with deferral:
            made = [decode_image(bytes_of(DATA)) for _ in range(3)]
            crops = [each[:, :40, :50] for each in made]
            for each in crops[2 * sent :]:
                each.sum()
            used = [content_to_send(each) is not None for each in crops]
        images, *_ = deferral.take_counts()
        assert (images, sum(used)) == (3, 2 * sent)
    with deferral:
        last = decode_image(bytes_of(DATA))
    assert is_deferred(last) == sent


def test_a_batch_that_fails_teaches_nothing(deferral, monkeypatch):
    monkeypatch.setattr(functions, "TRIED_MIN", 2)
    with contextlib.suppress(IndexError), deferral:
        kept = [decode_image(bytes_of(DATA)) for _ in range(4)]
        raise IndexError
    with deferral:
        made = [decode_image(bytes_of(DATA)) for _ in range(2)]
        assert all(content_to_send(each) is not None for each in made)
    deferral.take_counts()
    with deferral:
        last = decode_image(bytes_of(DATA))
    assert all(map(is_deferred, [*kept, last]))
