"""Users' collate functions, and datasets that keep, share or change their tensors."""

from __future__ import annotations

import collections
import ctypes
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.transforms as v1
import torchvision.transforms.functional as F
from photos import MEAN, STD
from PIL import Image
from torch.overrides import _get_current_function_mode_stack as _modes
from torch.utils.data import Dataset, IterableDataset, default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

from .files import SOUND
from .outcomes import defer_for_ever, generator_states
from .programs import Counting, Opaque, Pair, Record

SIZE = 24
TRANSFORMS: tuple[Callable[[Image.Image], torch.Tensor], ...] = (
    v1.Compose([v1.RandomResizedCrop(SIZE), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    v2.Compose(
        [v2.RandomResizedCrop(SIZE), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    ),
    v1.Compose([v1.RandomResizedCrop(SIZE), v1.PILToTensor()]),
    v1.Compose([v1.Resize(28), v1.CenterCrop(SIZE), v1.ToTensor(), v1.RandomErasing(0.7)]),
    v1.Compose([v1.RandomResizedCrop(SIZE), v1.RandAugment(), v1.ToTensor(), v1.RandomErasing(0.7, value="random")]),
    v2.Compose([v2.RandomResizedCrop(SIZE), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.ToImage(), v2.ToPureTensor()]),
)


def photo(folder: Path, index: int) -> Image.Image:
    defer_for_ever()
    files = SOUND if index // 4 % 3 == 2 else SOUND[:3]  # whose small images are deferred: all of a batch, mostly
    return Image.open(folder / files[index % len(files)]).convert("RGB")


class Photos(Dataset):
    """Samples with two views of an image; each four have one transform."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        image = photo(self.folder, index)
        transform = TRANSFORMS[index // 4 % len(TRANSFORMS)]
        return {"image": transform(image), "view": transform(image), "label": index}


class Decoded(Photos):
    """Samples of files whose images have pixels before they are deferred."""

    def __getitem__(self, index: int) -> Any:
        defer_for_ever()
        files = "rgb.png", "lossy.webp", "rgba.png", "grey.png", "lossless.webp", "palette.png"
        image = Image.open(self.folder / files[index % len(files)]).convert("RGB")
        return {"image": TRANSFORMS[(4, 0)[index // 4 % 2]](image), "view": TRANSFORMS[0](image)}


class KeepsLast(Photos):
    """Looks at the sample before, which it has kept, and gives it out again."""

    last: Any = None

    def __getitem__(self, index: int) -> Any:
        former, self.last = self.last, super().__getitem__(index)
        seen = None if former is None else (former["image"].double().sum().item(), former["view"]._version)
        return {**self.last, "former": seen, "again": self.last["image"] if former is None else former["image"].clone()}


class Caches(Photos):
    """Makes each image once."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder, count)
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> Any:
        key = index % 5
        if key not in self.cache:
            self.cache[key] = F.to_tensor(photo(self.folder, key).resize((SIZE, SIZE)))
        x = self.cache[key]
        return {"image": x, "view": F.normalize(x, MEAN, STD), "label": index}


class ReusesOneTensor(Photos):
    """Writes each sample to one tensor, which each sample of a batch shares."""

    buffer: torch.Tensor | None = None

    def __getitem__(self, index: int) -> Any:
        x = F.to_tensor(photo(self.folder, index).resize((SIZE, SIZE)))
        if self.buffer is None:
            self.buffer = x
        else:
            self.buffer.mul_(0.5).add_(x)
        return {"image": self.buffer.clone(), "view": self.buffer[:, 2:].clone(), "label": index}


class WholeBatches(Photos):
    """Makes the samples of a batch together, and changes the ones before."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        samples = [self[index] for index in indices]
        samples[0]["image"].copy_(samples[-1]["image"])
        samples[-1]["view"][..., :4] = 1
        if len(samples) > 1:
            samples[1]["image"] = samples[0]["image"]
        return samples


class ChangesTheImage(Photos):
    """Draws on the image after it has become a tensor."""

    def __getitem__(self, index: int) -> Any:
        image = photo(self.folder, index).resize((SIZE, SIZE))
        x = F.to_tensor(image)
        image.paste((index, 2, 3), (0, 0, 9, 9))
        y = F.to_tensor(image)
        image.close()
        return {"image": x, "view": y, "label": index}


class States(Photos):
    """Says with each sample how its worker's generators are."""

    def __getitem__(self, index: int) -> Any:
        return {**super().__getitem__(index), "states": repr(generator_states())}


class LeavesModesOn(Photos):
    """Switches a mode on in one batch and off in a later one."""

    mode: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.mode is None:
            self.mode = Counting()
            self.mode.__enter__()
        before = self.mode.count
        sample = {**super().__getitem__(index), "seen": self.mode.count - before}
        if index % 16 >= 14:
            self.mode.__exit__(None, None, None)
            self.mode = None
        return {**sample, "modes": [type(mode).__name__ for mode in _modes() if type(mode) is Counting]}


class Stream(IterableDataset):
    """Photos as a stream, divided among workers, with the states of their generators."""

    def __init__(self, folder: Path, count: int) -> None:
        self.photos = Photos(folder, count)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        for index in range(info.id, len(self.photos), info.num_workers):
            yield {**self.photos[index], "states": repr(generator_states())}


def _images(samples: list[Any]) -> list[torch.Tensor]:
    return [sample["image"] for sample in samples]


def _both(samples: list[Any]) -> list[torch.Tensor]:
    return [sample[name] for sample in samples for name in ("image", "view")]


def _into_new(samples: list[Any]) -> Any:
    first = samples[0]["image"]
    out = torch.empty(len(samples), *first.shape, dtype=first.dtype)
    for at, sample in enumerate(samples):
        out[at] = sample["image"]
    return out


def _into_shared(samples: list[Any]) -> Any:
    """As torch's own collate function does."""
    first = samples[0]["image"]
    storage = first._typed_storage()._new_shared(len(samples) * first.numel(), device="cpu")
    return torch.stack(_images(samples), 0, out=first.new(storage).resize_(len(samples), *first.shape))


def _padded(samples: list[Any]) -> Any:
    crops = [x[:, : 10 + at, : 20 - at] for at, x in enumerate(_images(samples))]
    height, width = (max(x.shape[side] for x in crops) for side in (1, 2))
    return torch.stack([torch.nn.functional.pad(x, (0, width - x.shape[2], 0, height - x.shape[1])) for x in crops])


def _mixed(samples: list[Any]) -> Any:
    batch = torch.stack(_images(samples)).float()
    weight, order = torch.rand(1), torch.randperm(len(samples))
    return batch * weight + batch[order] * (1 - weight), order


def _pasted(samples: list[Any]) -> Any:
    batch = default_collate(samples)
    batch["image"][:, :, 3:9, 4:8] = batch["view"].flip(0)[:, :, 3:9, 4:8]
    return batch


def _prefetched(samples: list[Any]) -> Any:
    """As of NVIDIA's examples: bytes by NumPy, in the layout of channels last."""
    out = torch.zeros((len(samples), 3, SIZE, SIZE), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    for at, x in enumerate(_images(samples)):
        out[at] += torch.from_numpy(np.asarray(x).astype(np.uint8))
    return out


def _normalized(samples: list[Any]) -> Any:
    batch = torch.stack(_images(samples)).float()
    return batch.sub_(torch.tensor(MEAN).view(1, 3, 1, 1)).div_(torch.tensor(STD).view(1, 3, 1, 1))


def _changed_before(samples: list[Any]) -> Any:
    samples[0]["image"].mul_(0)
    samples[1]["image"][0] = samples[2]["image"][0]
    return default_collate(samples)


def _in_threads(samples: list[Any]) -> Any:
    with ThreadPoolExecutor(2) as pool:
        return torch.stack(list(pool.map(lambda x: x.flip(-1), _images(samples))))


def _copied_by_address(samples: list[Any]) -> Any:
    first = samples[0]["image"].contiguous()
    out = torch.empty(len(samples), *first.shape, dtype=first.dtype)
    size = first.numel() * first.element_size()
    for at, x in enumerate(_images(samples)):
        dense = x.contiguous()
        ctypes.memmove(out.data_ptr() + at * size, dense.data_ptr(), size)
    return out


def _with_state(batch: torch.Tensor) -> Any:
    return batch, batch._version, batch.is_shared(), batch.untyped_storage().resizable()


def _of_sizes(samples: list[Any]) -> Any:
    try:
        return default_collate([x[:, at:] for at, x in enumerate(_images(samples))])
    except RuntimeError as error:
        return str(error)


_kept: list[Any] = []


def _with_the_one_before(samples: list[Any]) -> Any:
    former = [x.double().sum() for x in _kept]
    _kept[:] = _images(samples)
    return former, torch.stack(_kept)


def _refusing(samples: list[Any]) -> Any:
    raise ValueError(f"cannot collate {samples[0]['image'].shape}")


def _stacking_unequal(samples: list[Any]) -> Any:
    return torch.stack([x[:, at:] for at, x in enumerate(_images(samples))])


COLLATES: tuple[Callable[[list[Any]], Any], ...] = (
    default_collate,
    lambda samples: samples,
    lambda samples: torch.stack(_images(samples)),
    lambda samples: torch.stack(_images(samples), dim=1),
    lambda samples: torch.stack(tuple(_both(samples))),
    lambda samples: (_images(samples), [sample["label"] for sample in samples]),
    lambda samples: {sample["label"]: sample["image"] for sample in samples},
    lambda samples: torch.cat([x[None] for x in _images(samples)]),
    lambda samples: torch.cat(_both(samples), -1),
    lambda samples: torch.cat([torch.stack(_images(samples)), torch.stack(_images(samples)).flip(-1)]),
    lambda samples: torch.cat((torch.stack(_images(samples))[1:], torch.stack(_images(samples))[:1]), dim=-4),
    lambda samples: torch.concat([torch.stack(_images(samples)), torch.stack(_images(samples)).add(1)], 0),
    lambda samples: torch.cat([torch.stack(_images(samples)), torch.ones(1, *samples[0]["image"].shape)]),
    lambda samples: torch.cat([torch.empty(0), torch.stack(_images(samples))]),
    lambda samples: torch.cat(_images(samples), out=torch.empty(0)),
    lambda samples: _with_state(torch.concatenate([torch.stack(_images(samples))] * 2, axis=0)),
    lambda samples: torch.stack(_images(samples)).half(),
    lambda samples: torch.stack(_images(samples)).contiguous(memory_format=torch.channels_last),
    lambda samples: torch.stack(_images(samples)).to(memory_format=torch.channels_last, dtype=torch.bfloat16),
    lambda samples: torch.stack(_images(samples)).permute(0, 2, 3, 1),
    lambda samples: torch.stack(_images(samples))[:, :, 2:-2, ::2],
    lambda samples: torch.stack(_images(samples)).flip(0),
    lambda samples: torch.stack([torch.stack(_images(samples)), torch.stack(_images(samples)).flip(-1)]),
    lambda samples: torch.from_numpy(np.stack([np.asarray(x) for x in _images(samples)])),
    lambda samples: np.stack([x.numpy() for x in _images(samples)]),
    lambda samples: torch.stack(_images(samples)).unbind(0),
    lambda samples: torch.stack(_images(samples)).split(2),
    lambda samples: Pair(default_collate(samples), _images(samples)[0]),
    lambda samples: Record(_images(samples), Record(default_collate([s["view"] for s in samples]))),
    lambda samples: Opaque(_images(samples)),
    lambda samples: Opaque(torch.stack(_images(samples))),
    lambda samples: collections.OrderedDict(x=_images(samples), y=_images(samples)),
    lambda samples: (torch.stack(_images(samples)), samples[0]["image"]),
    lambda samples: [samples[0]["image"]] * 3,
    lambda samples: pickle.loads(pickle.dumps(_images(samples))),
    lambda samples: default_collate(samples[:1]),
    lambda samples: _with_state(default_collate(_images(samples))),
    lambda samples: _with_state(default_collate([x * (at + 1) for at, x in enumerate(_images(samples))])),
    lambda samples: _with_state(default_collate([torch.stack([x, x]) for x in _images(samples)])),
    lambda samples: _with_state(default_collate([tv_tensors.Image(x) for x in _images(samples)])),
    _of_sizes,
    lambda samples: default_collate([(sample["image"], (sample["view"], str(sample["label"]))) for sample in samples]),
    lambda samples: default_collate([[sample["image"], sample["view"]] for sample in samples]),
    lambda samples: default_collate([Pair(sample["image"], sample["label"]) for sample in samples]),
    lambda samples: default_collate([np.asarray(x) for x in _images(samples)]),
    lambda samples: default_collate([x[0] for x in _images(samples)]),
    lambda samples: default_collate([x.sum() for x in _images(samples)]),
    lambda samples: default_collate(samples)["image"].sum((1, 2, 3)),
    lambda samples: torch.utils.data.default_convert(_images(samples)),
    lambda samples: torch.nn.utils.rnn.pad_sequence([x.flatten() for x in _images(samples)], batch_first=True),
    lambda samples: torch.nested.nested_tensor([x[:, at:] for at, x in enumerate(_images(samples))]).to_padded_tensor(
        0
    ),
    lambda samples: v2.MixUp(num_classes=50)(torch.stack(_images(samples)).float(), torch.arange(len(samples))),
    lambda samples: v2.CutMix(num_classes=50)(torch.stack(_images(samples)), torch.arange(len(samples))),
    lambda samples: v1.Normalize(MEAN, STD)(torch.stack(_images(samples)).float()),
    lambda samples: v2.RandomHorizontalFlip(0.5)(torch.stack(_images(samples))),
    lambda samples: torch.stack(_images(samples)).mul(2).sub_(1),
    lambda samples: torch.vstack(_images(samples)),
    lambda samples: torch.utils.data._utils.collate.default_collate(samples),
    _into_new,
    _into_shared,
    _padded,
    _mixed,
    _pasted,
    _prefetched,
    _normalized,
    _changed_before,
    _in_threads,
    _copied_by_address,
    _with_the_one_before,
    _with_the_one_before,
    _with_the_one_before,
    _refusing,
    _stacking_unequal,
)


def collate_in_turn(samples: list[Any]) -> Any:
    """Collate each batch of four by a function of its own."""
    number = samples[0]["label"] // 4
    return {"number": number, "batch": COLLATES[number % len(COLLATES)](samples), "states": generator_states()}
