"""Probes that read a tensor by functions of torch, NumPy, Pillow and Python."""

from __future__ import annotations

import array
import copy
import hashlib
import io
import itertools
import json
import math
import operator
import pickle
import pprint
import struct
import zlib
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
import torchvision
import torchvision.transforms.functional as F
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from .probing import enter_all, probe

enter_all(
    {
        # as an array
        "numpy": lambda x: x.numpy(),
        "numpy_copied": lambda x: x.numpy().copy(),
        "numpy_bytes": lambda x: x.numpy().tobytes(),
        "numpy_forced": lambda x: x.numpy(force=True),
        "asarray": lambda x: np.asarray(x),
        "array": lambda x: np.array(x),
        "array_as_double": lambda x: np.asarray(x, dtype=np.float64),
        "array_method": lambda x: x.__array__(),
        "array_method_as_double": lambda x: x.__array__(np.float64),
        "array_wrap": lambda x: x.__array_wrap__(np.ones(3)),
        "has_array_interface": lambda x: hasattr(x, "__array_interface__"),
        "numpy_ufunc": lambda x: np.add(x, 1),
        "numpy_ufunc_on_array": lambda x: np.arange(48) + x,
        "numpy_stack": lambda x: np.stack([x, x]),
        "numpy_mean": lambda x: (np.mean(np.asarray(x)), np.max(x.numpy())),
        "numpy_ascontiguous": lambda x: np.ascontiguousarray(x),
        "numpy_frombuffer": lambda x: np.frombuffer(x.numpy(), dtype=np.uint8),
        "numpy_strided_view": lambda x: np.lib.stride_tricks.as_strided(x.numpy(), (9, 9)),
        "numpy_allclose": lambda x: np.allclose(x, x),
        "numpy_saved": lambda x: np.load(_saved_by_numpy(x)),
        "numpy_nditer": lambda x: sum(float(each) for each in itertools.islice(np.nditer(x.numpy()), 99)),
        "numpy_vstack_of_rows": lambda x: np.vstack(list(x)),
        "memoryview_of_array": lambda x: bytes(memoryview(x.numpy())),
        "memoryview_of_tensor": lambda x: memoryview(x),
        "bytes_of_array": lambda x: bytes(x.numpy()),
        "bytearray_of_array": lambda x: bytearray(x.numpy()),
        "array_module": lambda x: array.array("B", x.numpy().tobytes()).tolist()[:99],
        "struct": lambda x: struct.unpack_from("8B", x.numpy()),
        "hashlib_of_array": lambda x: hashlib.sha256(x.numpy()).hexdigest(),
        "zlib_of_array": lambda x: zlib.crc32(x.numpy()),
        # dlpack
        "dlpack": lambda x: torch.from_dlpack(x),
        "dlpack_of_numpy": lambda x: np.from_dlpack(x),
        "dlpack_method": lambda x: torch.from_dlpack(x.__dlpack__()),
        "dlpack_device": lambda x: str(x.__dlpack_device__()),
        "dlpack_capsule": lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
        "dlpack_private": lambda x: torch._C._from_dlpack(torch._C._to_dlpack(x)),
        "dlpack_private_versioned": lambda x: torch._C._from_dlpack(torch._C._to_dlpack_versioned(x)),
        "dlpack_copied": lambda x: torch.from_dlpack(x, copy=True),
        # numbers
        "item": lambda x: x[0, 0, 0].item(),
        "item_of_a_view": lambda x: x.view(-1)[1234].item(),
        "float": lambda x: float(x[1, 2, 3]),
        "int": lambda x: int(x[1, 2, 3]),
        "index": lambda x: operator.index(x[1, 2, 3].to(torch.int64)),
        "bool": lambda x: bool(x[2, 2, 2]),
        "complex": lambda x: complex(x[2, 2, 2]),
        "tolist": lambda x: x.tolist()[1][2][:9],
        "format": lambda x: f"{x[0, 0, 0]:.5f} {x.mean(dtype=torch.float64):e}",
        "repr": repr,
        "str": str,
        "str_of_a_row": lambda x: str(x[0, 0]),
        "pprint": lambda x: pprint.pformat({"x": x}),
        "percent": lambda x: "%s" % x[0],  # noqa: UP031
        "round": lambda x: round(x[0, 0, 0].item() * 10),
        "math": lambda x: math.floor(x[0, 1, 1]),
        "sum_of_python": lambda x: sum(x[0, 0]),
        "max_of_python": lambda x: max(x[0, 0]),
        "sorted": lambda x: [float(each) for each in sorted(x[0, 0])],
        "iteration": lambda x: [row.sum() for plane in x for row in plane],
        "list": lambda x: list(x),
        "unpacking": lambda x: _unpacked(*x),
        "star": lambda x: [*x[0, 0]],
        "zip": lambda x: [float(a - b) for a, b in zip(x[0, 0], x[1, 0], strict=True)],
        "reversed": lambda x: reversed(x),
        "contains": lambda x: (x[0, 0, 0].item() in x, 123456 in x),
        "comparison": lambda x: (x > 0.3).sum(),
        "equal": lambda x: torch.equal(x, x.clone()),
        "equality": lambda x: x == x,
        "allclose": lambda x: torch.allclose(x, x + 0),
        "isnan": lambda x: torch.isnan(x).any(),
        "dictionary_key": lambda x: {x: 1}[x],
        "json": lambda x: json.dumps(x.tolist()),
        # reductions and other functions
        "sum": lambda x: x.sum(),
        "mean": lambda x: x.mean(),
        "mean_of_channels": lambda x: x.mean((1, 2), dtype=torch.float64),
        "std": lambda x: x.std(),
        "var_mean": lambda x: torch.var_mean(x.double(), (1, 2)),
        "min_max": lambda x: (x.min(), x.max(), x.aminmax()),
        "argmax": lambda x: x.argmax(),
        "norm": lambda x: x.norm(),
        "histc": lambda x: torch.histc(x.float(), 9),
        "bincount": lambda x: x.to(torch.uint8).flatten().bincount(),
        "unique": lambda x: x.unique(),
        "sort": lambda x: x.sort(),
        "topk": lambda x: x.flatten().topk(5),
        "kthvalue": lambda x: x.flatten().kthvalue(7),
        "median": lambda x: x.median(),
        "quantile": lambda x: x.float()[0].quantile(0.3),
        "nonzero": lambda x: (x > 1).nonzero(),
        "masked_select": lambda x: x.masked_select(x > 0),
        "boolean_index": lambda x: x[x > 0],
        "take": lambda x: x.take(torch.tensor([1, 99, 999])),
        "gather": lambda x: x.gather(2, torch.zeros(3, 4, 5, dtype=torch.int64)),
        "index_by_tensor": lambda x: x[:, torch.tensor([1, 5, 7])],
        "index_by_list": lambda x: x[[2, 1, 0]],
        "ellipsis_index": lambda x: x[..., None, 3],
        "einsum": lambda x: torch.einsum("chw->hw", x),
        "matmul": lambda x: (x.float() @ x.float().mT)[0],
        "conv2d": lambda x: torch.nn.functional.conv2d(x.float()[None], torch.ones(1, 3, 3, 3)),
        "interpolate": lambda x: torch.nn.functional.interpolate(x.float()[None], 9),
        "grid_sample": lambda x: torch.nn.functional.grid_sample(
            x.float()[None], torch.zeros(1, 2, 2, 2), align_corners=False
        ),
        "unfold": lambda x: x.unfold(1, 5, 5),
        "fft": lambda x: torch.fft.rfft2(x.float()).abs(),
        "cumsum": lambda x: x.cumsum(1),
        "cat": lambda x: torch.cat([x, x]),
        "stack": lambda x: torch.stack([x, x]),
        "where": lambda x: torch.where(x > 0, x, 1),
        "to_double": lambda x: x.double(),
        "to_half": lambda x: x.half(),
        "view_of_bytes": lambda x: x.view(torch.uint8),
        "view_of_int32": lambda x: x.view(torch.int32),
        "sparse": lambda x: x.to_sparse().coalesce().values(),
        "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8).int_repr(),
        "complex_view": lambda x: torch.view_as_complex(x.float().view(3, 48, 24, 2)).abs(),
        "nested": lambda x: torch.nested.nested_tensor([x, x[:, 1:]]).unbind(),
        "foreach": lambda x: torch._foreach_add([x, x], 1),
        "make_grid": lambda x: torchvision.utils.make_grid(x, normalize=True),
        "draw_bounding_boxes": lambda x: torchvision.utils.draw_bounding_boxes(
            x.to(torch.uint8), torch.tensor([[1.0, 2.0, 9.0, 9.0]])
        ),
        "to_pil_image": lambda x: F.to_pil_image(x),
        "pil_fromarray": lambda x: Image.fromarray((x.permute(1, 2, 0).numpy() * 7).astype(np.uint8)),
        "encode_jpeg": lambda x: torchvision.io.encode_jpeg(x.to(torch.uint8)),
        "encode_png": lambda x: torchvision.io.encode_png(x.to(torch.uint8)),
        "rotate": lambda x: F.rotate(x, 20),
        "affine": lambda x: F.affine(x, 10, [1, 2], 1.1, [3, 4]),
        "gaussian_blur": lambda x: F.gaussian_blur(x, [5, 5]),
        "resized": lambda x: v2.functional.resize(x, [20, 22]),
        "elastic": lambda x: v2.ElasticTransform()(x),
        "jitter": lambda x: v2.ColorJitter(0.5, 0.5, 0.5, 0.2)(x),
        "five_crop": lambda x: F.five_crop(x, [20, 20]),
        "erase_noise": lambda x: v2.RandomErasing(1.0, value="random")(x),
        "mixup": lambda x: v2.MixUp(num_classes=3)(torch.stack([x, x.flip(-1)]).float(), torch.tensor([0, 2])),
        "random_mask": lambda x: torch.nn.functional.dropout(x.float(), 0.3),
        # made anew
        "clone": lambda x: x.clone(),
        "clone_channels_last": lambda x: x[None].clone(memory_format=torch.channels_last),
        "copy": lambda x: copy.copy(x),
        "deepcopy": lambda x: copy.deepcopy(x),
        "deepcopy_of_two": lambda x: copy.deepcopy([x, x[0]]),
        "pickle": lambda x: pickle.loads(pickle.dumps(x)),
        "pickle_2": lambda x: pickle.loads(pickle.dumps(x, protocol=2)),
        "pickle_of_views": lambda x: pickle.loads(pickle.dumps({"x": x, "y": x[:, 3:]})),
        "reduce_ex": lambda x: x.__reduce_ex__(2)[0].__name__,
        "torch_save": lambda x: _loaded(x),
        "torch_save_of_a_view": lambda x: _loaded(x[:, 5:9]),
        "torch_save_legacy": lambda x: _loaded(x, _use_new_zipfile_serialization=False),
        "tensor_of_tensor": lambda x: torch.tensor(x),
        "as_tensor": lambda x: torch.as_tensor(x),
        "as_tensor_of_array": lambda x: torch.as_tensor(np.asarray(x)),
        "new_tensor": lambda x: x.new_tensor(x),
        "tensor_constructor": lambda x: torch.Tensor(x.float()),
        "parameter": lambda x: torch.nn.Parameter(x.float()),
        "buffer": lambda x: torch.nn.BatchNorm2d(3).eval()(x.float()[None]),
        "module": lambda x: torch.nn.Sequential(torch.nn.Flatten(0), torch.nn.Linear(6912, 2))(x.float()).detach(),
        "state_dict": lambda x: _state_dict(x),
        "tv_image": lambda x: tv_tensors.Image(x),
        "tv_mask": lambda x: tv_tensors.Mask(x[0]),
        "tv_wrapped": lambda x: tv_tensors.wrap(x, like=tv_tensors.Image(torch.zeros(3, 1, 1))),
        "pure_tensor": lambda x: v2.ToPureTensor()(x),
        "empty_copied": lambda x: torch.empty_like(x).copy_(x),
        "copied_to_slices": lambda x: _into_slices(x),
        "type_as": lambda x: x.type_as(torch.zeros(1, dtype=torch.float64)),
        "type_converted": lambda x: x.type("torch.DoubleTensor"),
        "pinned": lambda x: x.is_pinned(),
        "to_meta": lambda x: x.to("meta"),
        "to_device": lambda x: x.to(torch.device("cpu"), non_blocking=True, copy=True),
        "repeat": lambda x: x.repeat(1, 2, 1),
        "tile": lambda x: torch.tile(x, (2,)),
        "expand": lambda x: x.expand(2, *x.shape),
        "split": lambda x: x.split(1),
        "chunk": lambda x: torch.chunk(x, 2, -1),
        "unbind": lambda x: x.unbind(),
        "hash_of_tensor": lambda x: hash(x) == id(x),
        "printoptions": lambda x: _printed(x),
    }
)


def _saved_by_numpy(x: Any) -> io.BytesIO:
    file = io.BytesIO()
    np.save(file, x)
    return io.BytesIO(file.getvalue())


def _unpacked(red: Any, green: Any, blue: Any) -> Any:
    return blue - red, green


def _loaded(x: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(x, file, **options)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def _state_dict(x: torch.Tensor) -> Any:
    module = torch.nn.Module()
    module.register_buffer("x", x)
    return module.state_dict()


def _into_slices(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(2, *x.shape, dtype=x.dtype)
    out[0] = x
    out[1].copy_(x.flip(-1))
    return out


def _printed(x: torch.Tensor) -> str:
    torch.set_printoptions(precision=7, threshold=20)
    try:
        return str(x)
    finally:
        torch.set_printoptions(profile="default")


@probe
def assertions_of_torch(x):
    torch.testing.assert_close(x, x.clone(), rtol=0, atol=0)
    torch._assert(bool((x == x).all()), "differs from itself")
    return x.amax()


@probe
def numpy_ufunc_with_out(x):
    out = np.zeros(x.shape, np.float64)
    np.multiply(x, 2, out=out)
    return out


@probe
def numpy_vectorized(x):
    return np.vectorize(lambda v: v + 1)(x.numpy()[0])


@probe
def torch_function_of_a_list(x):
    return torch.block_diag(x[0], x[1])[:5]


@probe
def applied(x):
    """``apply_`` calls back for each number."""
    seen = []
    x.clone().apply_(lambda value: seen.append(value) or value)
    return seen


@probe
def reads_in_a_callback_of_another_tensor(x):
    other = torch.zeros(4, dtype=torch.float64)
    return other.apply_(lambda _: float(x[1, 1, 1]))


@probe
def mapped(x):
    return x.double().map_(x.double(), lambda a, b: a + 2 * b)
