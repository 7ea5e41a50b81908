"""Probes of a tensor as a Python object: type, identity, attributes, lifetime, metadata."""

from __future__ import annotations

import collections
import gc
import inspect
import sys
import weakref
from typing import Any

import numpy as np
import torch
import torchvision.transforms.functional as F
from torchvision import tv_tensors
from torchvision.transforms import v2

from .probing import enter_all, probe
from .programs import Marked, Opaque

enter_all(
    {
        "type": lambda x: (type(x).__name__, type(x) is torch.Tensor, type(x).__mro__[1].__name__),
        "class_attribute": lambda x: (x.__class__.__name__, isinstance(x, torch.Tensor), torch.is_tensor(x)),
        "type_text": lambda x: x.type(),
        "dict": lambda x: x.__dict__,
        "vars": lambda x: vars(x),
        "members": lambda x: sorted(
            name for name in dir(x) if name != "H" and inspect.ismethod(getattr(x, name, None))
        ),
        "module_of_functions": lambda x: (x.add.__module__, x.numpy.__self__ is x, x.sum.__name__),
        "unknown_attribute": lambda x: x.no_such_attribute,
        "unknown_private_attribute": lambda x: x._no_such_attribute,
        "slots": lambda x: hasattr(x, "__slots__"),
        # has_torch_function((x,)) tells: it is true while any function mode is on, and fastload's is.
        "torch_function": lambda x: x.__torch_function__.__name__,
        "torch_dispatch": lambda x: type(x).__torch_dispatch__ is torch.Tensor.__torch_dispatch__,
        "keyset": lambda x: str(torch._C._dispatch_keys(x)),
        "shape": lambda x: (x.shape, x.size(), x.size(1), len(x), x.ndim, x.dim(), x.numel(), x.nelement()),
        "dtype": lambda x: (x.dtype, x.element_size(), x.itemsize, x.nbytes, x.is_floating_point(), x.is_complex()),
        "stride": lambda x: (x.stride(), x.stride(0), x.storage_offset(), x.dim_order()),
        "contiguity": lambda x: (x.is_contiguous(), torch._prims_common.is_non_overlapping_and_dense(x)),
        "contiguity_channels_last": lambda x: [
            y.is_contiguous(memory_format=torch.channels_last) for y in (x[None], x[None].mT)
        ],
        "suggested_format": lambda x: str(torch._prims_common.suggest_memory_format(x[None])),
        "strides_of_results": lambda x: [
            y.stride()
            for y in (x + 1, x.flip(-1), x.clone(), x.contiguous(), x[..., 2:], x.permute(1, 2, 0), x[None], x * x)
        ],
        "strides_of_like": lambda x: (torch.empty_like(x).stride(), torch.zeros_like(x[None]).stride()),
        "device": lambda x: (str(x.device), x.is_cpu, x.is_cuda, x.is_meta, x.get_device(), x.layout),
        "grad_facts": lambda x: (x.requires_grad, x.is_leaf, x.grad, x.grad_fn, x.retains_grad, x._backward_hooks),
        "flags": lambda x: (x.is_conj(), x.is_neg(), x.is_inference(), x.is_quantized, x.is_nested, x.is_sparse),
        "shared": lambda x: (x.is_shared(), x.is_pinned()),
        "version": lambda x: x._version,
        "versions_after_reads": lambda x: [
            (read(x), x._version)[1] for read in (torch.sum, torch.Tensor.numpy, torch.Tensor.tolist, repr)
        ],
        "version_after_normalize": lambda x: F.normalize(x.float(), [0.5], [0.5])._version,
        "version_in_place": lambda x: F.normalize(x, [0.5], [0.5], inplace=True)._version,
        "version_of_view": lambda x: (x.mul_(1)._version, x[0]._version, x.detach()._version, x.data._version),
        "version_of_results": lambda x: [y._version for y in (x + 1, x.clone(), x.flip(0), torch.stack([x, x]))],
        "base": lambda x: (x._base is None, x[0]._base is x, x._is_view(), x[0]._is_view(), x.view(-1)._base is x),
        "base_of_base": lambda x: x[0][1:]._base is x,
        "hash": lambda x: hash(x) == hash(x),
        "identity_of_results": lambda x: [
            y is x for y in (x.contiguous(), x.to(x.dtype), x.cpu(), x.detach(), x.data, x.view(x.shape), x.float())
        ],
        "identity_of_no_op_transforms": lambda x: [
            t(x) is x for t in (v2.Identity(), v2.RandomHorizontalFlip(0.0), v2.RandomErasing(0.0), v2.ToPureTensor())
        ],
        "memory_of_results": lambda x: [
            y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            for y in (
                x.contiguous(),
                x[1:],
                x.detach(),
                x.float(),
                x.clone(),
                x.flip(0),
                x.reshape(-1),
                x.permute(2, 0, 1),
            )
        ],
        "equality_of_addresses": lambda x: [y.data_ptr() == x.data_ptr() for y in (x[0], x[:], x.detach(), x + 0)],
        "nbytes_of_storage": lambda x: (x.untyped_storage().nbytes(), x[1].untyped_storage().nbytes()),
        "sizeof": lambda x: (sys.getsizeof(x), x.__sizeof__()),
        "bool_of_many": lambda x: bool(x),
        "index_error": lambda x: x[7],
        "type_error": lambda x: x + "text",
        "shape_error": lambda x: x.view(7, 7),
        "broadcast_error": lambda x: x + torch.ones(5, 5),
        "normalize_error": lambda x: F.normalize(x, [0.1, 0.2], [0.5, 0.5]),
        "normalize_zero_std": lambda x: F.normalize(x.float(), [0.1, 0.2, 0.3], [0.5, 0.0, 0.5]),
        "stack_error": lambda x: torch.stack([x, x[0]]),
        "stack_of_types": lambda x: torch.stack([x, x.double()]),
        "cat_error": lambda x: torch.cat([x, x[:, 1:]], 0),
        "in_place_cast_error": lambda x: x.to(torch.uint8).mul_(0.5),
        "convert_error": lambda x: F.convert_image_dtype(F.convert_image_dtype(x.float(), torch.float16), torch.int64),
        "erase_error": lambda x: F.erase(x, 0, 0, 5, 5, torch.zeros(4, 5, 5)),
        "to_pil_error": lambda x: F.to_pil_image(x[None]),
        "to_tensor_of_tensor": lambda x: F.to_tensor(x),
        "pil_to_tensor_of_tensor": lambda x: F.pil_to_tensor(x),
        "to_image_of_tensor": lambda x: v2.functional.to_image(x),
        "item_of_many": lambda x: x.item(),
        "attribute_set": lambda x: (setattr(x, "note", "n"), x.note, x.__dict__, x.clone().__dict__, x[0].__dict__)[1:],
        "attribute_of_tensor": lambda x: (setattr(x, "other", x[0]), x.other)[1],
        "as_subclass": lambda x: x.as_subclass(Marked),
        "as_subclass_shares": lambda x: (x.as_subclass(Marked).mul_(2), x)[1],
        "subclass_arithmetic": lambda x: x.as_subclass(Marked) * 2 + 1,
        "subclass_constructor": lambda x: Marked(x.float()),
        "make_subclass": lambda x: torch.Tensor._make_subclass(Marked, x),
        "tv_image_arithmetic": lambda x: (tv_tensors.Image(x) * 2, type(tv_tensors.Image(x) + 1).__name__),
        "tv_image_kept_type": lambda x: _with_returned_type(x),
        "tv_video": lambda x: tv_tensors.Video(x[None]),
        "opaque": Opaque,
        "in_a_deque": lambda x: collections.deque([x]).pop(),
        "as_a_key": lambda x: {x: "found"}[x],
        "in_a_set": lambda x: x in {x},
        "in_a_list": lambda x: any(x is y for y in [x.clone(), x]),
        "in_an_object_array": lambda x: _in_object_array(x),
        "numpy_of_object": lambda x: np.array([x, None], dtype=object)[0],
        "hooked": lambda x: _hooked(x),
    }
)


def _with_returned_type(x: torch.Tensor) -> Any:
    with tv_tensors.set_return_type("TVTensor"):
        return tv_tensors.Image(x) * 2


def _in_object_array(x: torch.Tensor) -> Any:
    array = np.empty(1, dtype=object)
    array[0] = x
    return array[0]


def _hooked(x: torch.Tensor) -> Any:
    y = x.float().clone().requires_grad_()
    seen: list[torch.Tensor] = []
    y.register_hook(seen.append)
    (y * 2).sum().backward()
    return seen, y.grad


@probe
def type_assigned(x):
    x.__class__ = Marked
    return type(x).__name__, x


@probe
def weak_reference(x, make):
    make.made.clear()
    reference = weakref.ref(x)
    alive = reference() is x
    del x
    return alive, reference() is None


@probe
def weak_reference_with_a_callback(x, make):
    make.made.clear()
    called = []
    reference = weakref.ref(x, lambda _: called.append(1))
    del x
    return called, reference() is None


@probe
def finalizer(x, make):
    make.made.clear()
    called = []
    weakref.finalize(x, called.append, 1)
    del x
    return called


@probe
def weak_keys(x, make):
    make.made.clear()
    table = weakref.WeakKeyDictionary()
    table[x] = 1
    count = len(table)
    del x
    return count, len(table)


@probe
def reference_count(x, make):
    y = make()
    make.made.clear()
    return sys.getrefcount(x), sys.getrefcount(y), x._use_count() if hasattr(x, "_use_count") else None


@probe
def use_count_of_storage(x, make):
    make.made.clear()
    view = x[0]
    counts = [torch._C._storage_Use_Count(x.untyped_storage()._cdata)]
    del view
    return [*counts, torch._C._storage_Use_Count(x.untyped_storage()._cdata)]


@probe
def collected_in_a_cycle(x, make):
    make.made.clear()
    reference = weakref.ref(x)
    cycle: list[Any] = [x]
    cycle.append(cycle)
    del x, cycle
    gc.collect(1)
    return reference() is None


@probe
def known_to_the_collector(x):
    gc.collect(0)
    return gc.is_tracked(x), any(each is x for each in gc.get_objects(1))


@probe
def tensors_that_the_collector_finds(x):
    """Programs that count live tensors touch each."""
    found = [each for each in gc.get_objects(0) if type(each) is torch.Tensor and each.shape == x.shape]
    return sum(each is x for each in found), [each.sum() for each in found if each is x]


@probe
def view_outlives_the_tensor(x, make):
    make.made.clear()
    y = x[:, 7:9]
    del x
    gc.collect(0)
    return y


@probe
def storage_outlives_the_tensor(x, make):
    make.made.clear()
    storage = x.untyped_storage()
    del x
    return bytes(storage[5000:6000])


@probe
def array_outlives_the_tensor(x, make):
    make.made.clear()
    array = x.numpy()
    del x
    return array


@probe
def resurrected(x, make):
    make.made.clear()
    kept = []

    class Keeper:
        def __init__(self, value: Any) -> None:
            self.value = value

        def __del__(self) -> None:
            kept.append(self.value)

    keeper = Keeper(x)
    del x, keeper
    return kept


@probe
def many_freed_unread(x, make):
    """Memory of tensors that are never read is free again."""
    for _ in range(60):
        make()
        make.made.clear()
    return make()


@probe
def closure(x):
    def inner() -> Any:
        return x.sum(), x

    return inner()


@probe
def generator(x):
    def rows() -> Any:
        yield from x[0]

    return list(rows())[:5]


@probe
def default_argument(x):
    def inner(y: Any = x) -> Any:
        return y

    return inner()


@probe
def same_tensor_twice(x):
    return {"a": x, "b": x, "c": [x, x[0]]}


@probe
def kept_from_sample_to_sample(x):
    """See what the process kept of an earlier probe; keep this one's."""
    former = getattr(torch, "_kept_by_a_probe", None)
    torch._kept_by_a_probe = x
    return former


@probe
def kept_by_the_one_before(x):
    return torch.__dict__.pop("_kept_by_a_probe", None)


@probe
def matched(x):
    match x:
        case torch.Tensor(ndim=3, shape=shape):
            return shape
        case _:
            return None


@probe
def operators(x):
    y = x.to(torch.int32)
    return (
        y // 2,
        y % 3,
        -y,
        ~y,
        y << 1,
        y & 7,
        y | 8,
        divmod(7, int(y[0, 0, 0]) or 1),
        abs(y),
        +y,
        y**2,
        2 ** y.clamp(0, 3),
    )


@probe
def reflected_operators(x):
    return 1 + x, 1 - x, 2 * x, 1 / (x + 3), 7 // (x + 5), 2.0**x, np.float32(2) * x


@probe
def in_place_operators(x):
    y = x.double()
    y += 1
    y -= 0.5
    y *= 2
    y /= 3
    y **= 2
    y //= 0.1
    return y


@probe
def typing_of_the_image(x, make):
    image = make.image()
    F.to_tensor(image)
    return type(image).__name__, image.mode, image.size, sorted(image.info), image.getpixel((3, 3)), image.readonly
