"""Run the decoding kernels on damaged data, to be watched by compute-sanitizer."""

from __future__ import annotations

import io
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from stageable import INTERVAL_COUNT, KINDS, PLANES, ROW_ENDS, SCAN_COUNT, noise, staged_number
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import FastLoader, _core
from fastload.device.decode.files import Decoder

SIDE, IMAGES, ROUNDS = 48, 24, 6
SETTLED_S = 3.5  # only then is a file kept
SEGMENT_MCUS, POINT_BYTES = 4, 12  # as in decode_layout.h


def files() -> list[bytes]:
    made = []
    for number in range(IMAGES):
        kind = KINDS[number % len(KINDS)]
        content = io.BytesIO()
        image = noise(60 + 11 * number, 90 + 5 * number, number)
        (image.convert("L") if number % 7 == 3 else image).save(content, "JPEG", **kind)
        made.append(content.getvalue())
    return made


def damage(memory: torch.Tensor, number: int, rng: np.random.Generator) -> None:
    """Overwrite some of an image's data or points, with any bits."""
    begin = number * _core.Staging.bytes_per_image
    fields = memory[begin : begin + 56].view(torch.int32).tolist()
    data, data_bytes, points = fields[:3]
    column, columns, _, rows = fields[10:14]
    first = column // (2 * SEGMENT_MCUS) * 2 * SEGMENT_MCUS
    count = rows * ((column + columns - first + SEGMENT_MCUS - 1) // SEGMENT_MCUS + 1)
    of_points = not staged_number(memory, number, INTERVAL_COUNT) and rng.integers(2) == 0  # else they are to be found
    if staged_number(memory, number, SCAN_COUNT):  # progressive: its values, and how many there are
        begin = staged_number(memory, number, ROW_ENDS)
        length = staged_number(memory, number, PLANES) - begin
    else:
        begin, length = (points, count * POINT_BYTES) if of_points else (data, data_bytes)
    for at in rng.integers(0, length, max(1, length // 16)):
        memory[begin + int(at)] = int(rng.choice([0, 255, rng.integers(256)]))


def damaged(device: torch.device) -> int:
    """Decode damaged batches; return how many images the kernels refused."""
    contents, rng, refused = files(), np.random.default_rng(0), 0
    index, pool, decoder = _core.JpegIndex(1 << 22, whole=True), _core.Pool(2), Decoder(device, waits=True)
    crops = np.array([[0, 0, 0, 0, SIDE, SIDE, 0, 0, SIDE, SIDE, 0, 0]] * IMAGES, np.int32)
    want = torch.zeros(IMAGES, SIDE, SIDE, 3, dtype=torch.uint8)
    pool.submit(contents, want, geometry=crops, index=index).wait()
    for round_ in range(ROUNDS):
        staged = decoder.files(torch.zeros_like(want).pin_memory(), lambda pixels: [pixels])
        known = index if round_ % 3 else None  # else the kernels find the points
        pool.submit(contents, staged._pixels, geometry=crops, index=known, staging=staged.staging).wait()
        hostile = [number for number, on_gpu in enumerate(staged.is_staged()) if on_gpu and (number + round_) % 2]
        for number in hostile:
            damage(staged._run._memory, number, rng)
        pixels, failed = staged.to(device), staged.failed()
        refused += len(failed)
        assert {*failed} <= {*hostile}
        good = [number for number in range(IMAGES) if number not in hostile]
        assert torch.equal(pixels.cpu()[good], want[good])
    pool.close()
    return refused


def augmented() -> tuple[int, int]:
    """Load epochs of random transforms.

    Returns:
        How many images the GPU decoded, and how many of them were of files that it kept.
    """
    with tempfile.TemporaryDirectory() as folder:
        (there := Path(folder, "a")).mkdir()
        for number, content in enumerate(files()):
            (there / f"{number}.jpg").write_bytes(content)
        steps = [transforms.RandomResizedCrop(SIDE), transforms.RandAugment(2, 15), transforms.ToTensor()]
        dataset = ImageFolder(folder, transforms.Compose(steps))
        time.sleep(SETTLED_S)
        options = {"batch_size": 12, "num_workers": 2, "engine": "native", "decode": "gpu"}
        with FastLoader(dataset, device_cache_bytes="auto", **options) as loader:
            for _ in range(3):
                for _batch in loader:
                    pass
            stats = loader.stats()
            return stats.gpu_images, stats.kept_images


def main() -> None:
    device = torch.device("cuda", 0)
    refused, (gpu_images, kept_images) = damaged(device), augmented()
    print(f"refused {refused}, augmented {gpu_images}, kept {kept_images}")
    torch.cuda.synchronize()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
