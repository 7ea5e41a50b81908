"""Probes in modes and contexts of torch: autograd, functorch, own modes, compilers, subclasses."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, ClassVar

import torch
import torch.utils._pytree as pytree
import torchvision.transforms as v1
import torchvision.transforms.functional as F
from photos import MEAN, STD
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .probing import KINDS, enter_all, probe
from .programs import Counting


class Dispatching(TorchDispatchMode):
    """Notes operators below autograd, and what their first arguments hold."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.seen: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.seen.append(str(function))
        if self.reads:
            tensors = [each for each in pytree.tree_leaves(arguments) if isinstance(each, torch.Tensor)]
            self.seen += [each.double().sum().item() for each in tensors[:1] if each.numel()]
        return function(*arguments, **(options or {}))


class Watching(TorchFunctionMode):
    """Notes functions that are called, and the first numbers of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        self.seen.append(getattr(function, "__name__", str(function)))
        if type(result) is torch.Tensor and result.numel() and "empty" not in self.seen[-1]:
            self.seen.append(result.flatten()[0].item())
        return result


class Doubling(TorchFunctionMode):
    """Changes what functions are given."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is torch.Tensor.add or getattr(function, "__name__", "") == "add":
            arguments = (arguments[0] * 2, *arguments[1:])
        return function(*arguments, **(options or {}))


class Logging(torch.Tensor):
    """A subclass with its own handling of functions."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        cls.seen.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, arguments, options or {})


class Wrapper(torch.Tensor):
    """A subclass by dispatch that holds a tensor."""

    @staticmethod
    def __new__(cls, x: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, strides=x.stride())

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        def unwrapped(each: Any) -> Any:
            return each.x if isinstance(each, Wrapper) else each

        return function(*pytree.tree_map(unwrapped, arguments), **pytree.tree_map(unwrapped, options or {}))


def scripted_function(x: torch.Tensor) -> torch.Tensor:
    return torch.flip(x * 2 + 1, [-1])[:, 1:]


_scripted: list[Any] = []


def _script() -> Any:
    if not _scripted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _scripted.append(torch.jit.script(scripted_function))
    return _scripted[0]


def _within(context: Any, function: Any) -> Any:
    with context:
        return function()


enter_all(
    {
        # autograd
        "requires_grad": lambda x: x.float().requires_grad_().requires_grad,
        "backward": lambda x: _gradient(x, lambda y: (y * y).sum()),
        "backward_through_views": lambda x: _gradient(x, lambda y: (y[:, 1:5].flip(-1) ** 3).mean()),
        "backward_as_a_constant": lambda x: _gradient(torch.ones(3, 48, 48), lambda w: (w * x).sum()),
        "saved_for_backward": lambda x: (torch.ones(3, 1, 1).requires_grad_() * x).grad_fn._saved_other,
        "linear_backward": lambda x: _linear(x),
        "autograd_grad": lambda x: _grad(x),
        "custom_function": lambda x: Doubled.apply(x.float().requires_grad_()).detach(),
        "checkpointed": lambda x: _checkpointed(x),
        "saved_tensor_hooks": lambda x: _saved_hooks(x),
        "set_grad_disabled": lambda x: _within(torch.set_grad_enabled(False), lambda: x * 2),
        "no_grad": lambda x: _within(torch.no_grad(), lambda: (x * 2, x.requires_grad)),
        "enable_grad": lambda x: _within(torch.enable_grad(), lambda: x.add_(1)),
        "inference_mode": lambda x: _within(torch.inference_mode(), lambda: (x * 2).clone().is_inference()),
        "inference_values": lambda x: _within(torch.inference_mode(), lambda: (x * 2).tolist()[0][0]),
        "inference_in_place": lambda x: (_within(torch.inference_mode(), lambda: x.mul_(2).sum().item()), x._version),
        "forward_ad": lambda x: _forward(x),
        "detect_anomaly": lambda x: _within(torch.autograd.detect_anomaly(False), lambda: _gradient(x, torch.sum)),
        "autocast": lambda x: _within(torch.autocast("cpu", torch.bfloat16), lambda: x[0].float() @ x[1].float()),
        "profiler": lambda x: _profiled(x),
        "deterministic": lambda x: _deterministic(x),
        # functorch
        "vmap": lambda x: torch.vmap(lambda plane: plane * 2 + plane.sum())(x),
        "vmap_of_two": lambda x: torch.vmap(torch.dot, in_dims=(0, 0))(x[0], x[1]),
        "vmap_with_it_inside": lambda x: torch.vmap(lambda each: (each * x).sum())(torch.arange(3, dtype=x.dtype)),
        "functorch_grad": lambda x: torch.func.grad(lambda y: (y**2).sum())(x),
        "functorch_grad_with_it_inside": lambda x: torch.func.grad(lambda w: (w * x).sum())(torch.ones(3, 48, 48)),
        "functorch_jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,)),
        "functorch_vjp": lambda x: torch.func.vjp(torch.sin, x)[1](torch.ones_like(x)),
        "functorch_jacrev": lambda x: torch.func.jacrev(lambda y: (y * y).sum((1, 2)))(x[:, :3, :3]),
        "functorch_functionalize": lambda x: torch.func.functionalize(lambda y: y.clone().mul_(2))(x),
        "functional_call": lambda x: torch.func.functional_call(torch.nn.Flatten(0), {}, (x,)),
        # modes of functions
        "own_mode_around": lambda x: _within(Counting(), lambda: (x.sum(), x.numpy())),
        "own_mode_counts": lambda x: _counted(x),
        "own_mode_that_reads": lambda x: _watched(x),
        "own_mode_that_changes": lambda x: _within(Doubling(), lambda: x.add(1)),
        "two_modes": lambda x: _within(Counting(), lambda: _within(Watching(), lambda: x * 2)),
        "base_mode": lambda x: _within(BaseTorchFunctionMode(), lambda: x.flip(0)),
        "functions_disabled": lambda x: _within(torch._C.DisableTorchFunction(), lambda: (x.sum(), x.numpy().sum())),
        "functions_disabled_item": lambda x: _within(torch._C.DisableTorchFunction(), lambda: x[0, 0, 0].item()),
        "functions_disabled_in_place": lambda x: _within(torch._C.DisableTorchFunction(), lambda: x.mul_(2)),
        "functions_disabled_stack": lambda x: _within(torch._C.DisableTorchFunction(), lambda: torch.stack([x, x])),
        "functions_disabled_address": lambda x: _within(
            torch._C.DisableTorchFunction(), lambda: bytes(x.untyped_storage()[5000:6000])
        ),
        "subclass_functions_disabled": lambda x: _within(
            torch._C.DisableTorchFunctionSubclass(), lambda: (x * 2).sum()
        ),
        "device_context": lambda x: _within(torch.device("cpu"), lambda: (x * 2, torch.zeros(2))),
        "meta_device_context": lambda x: _within(torch.device("meta"), lambda: (x.sum(), torch.zeros(2).is_meta)),
        "default_device": lambda x: _default_device(x),
        "mode_stack": lambda x: len(torch.overrides._get_current_function_mode_stack()) >= 0,
        # modes of dispatch
        "dispatch_mode": lambda x: _dispatched(x, reads=False),
        "dispatch_mode_that_reads": lambda x: _dispatched(x, reads=True),
        "dispatch_wrapper": lambda x: Wrapper(x) * 2 + 1,
        "dispatch_wrapper_flip": lambda x: torch.flip(Wrapper(x), [-1]),
        "dispatch_wrapper_stack": lambda x: torch.stack([Wrapper(x), Wrapper(x)]),
        "function_subclass": lambda x: _logged(x),
        "fake_mode": lambda x: _fake(x),
        "flop_counter": lambda x: _flops(x),
        "meta_of_it": lambda x: torch.empty_like(x, device="meta").shape,
        # below Python
        "aten_operator": lambda x: torch.ops.aten.add(x, x),
        "aten_overload": lambda x: torch.ops.aten.mul.Tensor(x, x),
        "aten_in_place": lambda x: torch.ops.aten.mul_.Scalar(x, 2).sum(),
        "aten_view": lambda x: torch.ops.aten.select.int(x, 0, 1),
        "prims": lambda x: torch.ops.prims.convert_element_type(x, torch.float64),
        "private_functions": lambda x: torch._C._VariableFunctions.flip(x, [-1]),
        "private_methods": lambda x: torch._C.TensorBase.mul(x, 2),
        "private_numpy": lambda x: torch._C.TensorBase.numpy(x),
        "private_tolist": lambda x: torch._C.TensorBase.tolist(x)[0][0],
        "private_nn": lambda x: torch._C._nn.avg_pool2d(x[None].float(), 2),
        "private_linalg": lambda x: torch._C._linalg.linalg_norm(x.float()),
        "super_method": lambda x: super(torch.Tensor, x).sum(),
        "refs": lambda x: torch._refs.add(x, 1),
        "masked_tensor": lambda x: torch.masked._ops.sum(x, mask=x > 0),
        # compilers
        "scripted": lambda x: _script()(x),
        "scripted_normalize": lambda x: _scripted_normalize(x),
        "traced_by_jit": lambda x: _traced(x),
        "traced_with_it_as_a_constant": lambda x: _traced_constant(x),
        "fx_traced": lambda x: torch.fx.symbolic_trace(lambda y: torch.flip(y, [-1]) + 1)(x),
        "forked_by_jit": lambda x: torch.jit.wait(torch.jit.fork(scripted_function, x)),
    }
)


class Doubled(torch.autograd.Function):
    """Doubles in place, as an own function of autograd."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * context.saved_tensors[0]


def _gradient(x: torch.Tensor, function: Any) -> torch.Tensor | None:
    y = x.float().detach().requires_grad_()
    function(y).backward()
    return y.grad


def _linear(x: torch.Tensor) -> Any:
    torch.manual_seed(1)
    layer = torch.nn.Conv2d(3, 2, 3)
    layer(x.float()[None]).sum().backward()
    return layer.weight.grad


def _grad(x: torch.Tensor) -> Any:
    w = torch.ones(3, 1, 1, requires_grad=True)
    (gradient,) = torch.autograd.grad((w * x).sum(), w)
    return gradient


def _checkpointed(x: torch.Tensor) -> Any:
    w = torch.ones(3, 1, 1, requires_grad=True)
    torch.utils.checkpoint.checkpoint(lambda y: (y * x).sin(), w, use_reentrant=False).sum().backward()
    return w.grad


def _saved_hooks(x: torch.Tensor) -> Any:
    seen: list[Any] = []
    w = torch.ones(3, 1, 1, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda y: seen.append(y.sum().item()) or y, lambda y: y):
        (w * x).sum().backward()
    return seen, w.grad


def _forward(x: torch.Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return torch.autograd.forward_ad.unpack_dual(dual * dual).tangent.clone()


def _profiled(x: torch.Tensor) -> Any:
    with torch.autograd.profiler.profile() as profile:
        y = (x * 2).flip(-1)
    names = [event.name for event in profile.function_events]
    return y, "aten::mul" in names and "aten::flip" in names


def _deterministic(x: torch.Tensor) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        y = x.clone()
        y.index_put_((torch.tensor([0, 0]),), torch.ones(2, 48, 48, dtype=x.dtype), accumulate=True)
        return y, torch.empty_like(x)[0, 0], x.flip(-1)
    finally:
        torch.use_deterministic_algorithms(False)


def _counted(x: torch.Tensor) -> Any:
    with Counting() as mode:
        y = F.normalize(x.float(), [0.5], [0.5])
        z = torch.stack([y, y.flip(-1)])[..., 1:]
    return mode.count, z


def _watched(x: torch.Tensor) -> Any:
    with Watching() as mode:
        y = (x.float() * 2).flip(-1)
        y.sub_(1)
    return mode.seen, y


def _default_device(x: torch.Tensor) -> Any:
    torch.set_default_device("cpu")
    try:
        return x * 2, x.sum()
    finally:
        torch.set_default_device(None)


def _dispatched(x: torch.Tensor, *, reads: bool) -> Any:
    with Dispatching(reads=reads) as mode:
        y = (x * 2).flip(-1)
        total = y.sum()
    return mode.seen, y, total


def _logged(x: torch.Tensor) -> Any:
    Logging.seen.clear()
    y = x.as_subclass(Logging) * 2
    z = y.flip(-1).sum()
    return list(Logging.seen), y.as_subclass(torch.Tensor), z.as_subclass(torch.Tensor)


def _fake(x: torch.Tensor) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(x)
        return (fake * 2).shape, type(fake).__name__


def _flops(x: torch.Tensor) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as mode:
        y = x[0].float() @ x[1].float()
    return mode.get_total_flops(), y


def _scripted_normalize(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.script(torch.nn.Sequential(v1.Normalize(MEAN, STD), v1.RandomHorizontalFlip(1.0)))
    return module(x.float())


def _traced(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(scripted_function, x)(x)


def _traced_constant(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(lambda y: y * x, torch.ones(3, 1, 1))(torch.full((3, 1, 1), 2.0))


@probe
def mode_entered_before_it_was_made(x, make):
    with Watching() as mode:
        y = make()
        y = y * 2
    return mode.seen, y


@probe
def mode_left_open_by_a_stack(x, make):
    with contextlib.ExitStack() as stack:
        mode = stack.enter_context(Counting())
        y = KINDS["floats"](make.image())
        inner = stack.enter_context(Watching())
        z = y.flip(-1)
    return mode.count, inner.seen, z, y


@probe
def modes_popped_out_of_order(x):
    mode = Counting()
    mode.__enter__()
    y = x * 2
    mode.__exit__(None, None, None)
    return y, x * 3, mode.count


@probe
def made_with_functions_disabled(x, make):
    with torch._C.DisableTorchFunction():
        y = F.to_tensor(make.image())
        z = F.normalize(y, MEAN, STD)
    return y * 1, z


@probe
def made_in_inference_mode(x, make):
    with torch.inference_mode():
        y = F.to_tensor(make.image())
        z = F.normalize(y, MEAN, STD)
        facts = y.is_inference(), z.is_inference()
    return facts, y.clone(), z.clone()


@probe
def made_in_inference_mode_and_changed_outside(x, make):
    with torch.inference_mode():
        y = F.to_tensor(make.image())
    y.mul_(2)
    return y.clone(), y._version


@probe
def made_without_gradients(x, make):
    with torch.no_grad():
        y = F.to_tensor(make.image())
    return (y * torch.ones(1, requires_grad=True)).detach(), y.requires_grad


@probe
def made_in_a_dispatch_mode(x, make):
    with Dispatching(reads=False) as mode:
        y = F.to_tensor(make.image())
        z = F.normalize(y, MEAN, STD)
    return len(mode.seen) > 0, y, z


@probe
def made_on_another_device(x, make):
    with torch.device("meta"):
        y = F.to_tensor(make.image())
        z = F.pil_to_tensor(make.image())
    return y.is_meta, z.is_meta, y, z


@probe
def made_with_a_default_device(x, make):
    torch.set_default_device("meta")
    try:
        y = F.to_tensor(make.image())
        z = v1.PILToTensor()(make.image())
    finally:
        torch.set_default_device(None)
    return y.device, z.device


@probe
def made_with_gradients_disabled_globally(x, make):
    former = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        y = F.to_tensor(make.image()).mul_(2)
    finally:
        torch.set_grad_enabled(former)
    return y, y.requires_grad


@probe
def default_tensor_type(x, make):
    torch.set_default_dtype(torch.float16)
    try:
        y = F.to_tensor(make.image())
        z = F.convert_image_dtype(F.pil_to_tensor(make.image()), torch.get_default_dtype())
        w = F.pil_to_tensor(make.image()) / 255
    finally:
        torch.set_default_dtype(torch.float32)
    return y, z, w


@probe
def functions_replaced_by_the_user(x, make):
    """A user's own patch of a function that a recorder knows."""
    former, calls = F.normalize, []

    def normalize(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return former(*arguments, **options) * 2

    F.normalize = normalize
    try:
        y = v1.Normalize([0.5], [0.5])(x.float())
    finally:
        F.normalize = former
    return calls, y


@probe
def methods_replaced_by_the_user(x, make):
    former = torch.Tensor.mul

    def mul(self: torch.Tensor, other: Any) -> Any:
        return former(self, other) + 1

    torch.Tensor.mul = mul
    try:
        return x.mul(2), torch.mul(x, 2)
    finally:
        torch.Tensor.mul = former


@probe
def jit_module_saved_with_it(x):
    import io

    module = torch.nn.Module()
    module.register_buffer("x", x)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module), file)
        file.seek(0)
        return dict(torch.jit.load(file).named_buffers())["x"]


@probe(slow=True)
def compiled_eagerly(x):
    torch._dynamo.reset()
    return torch.compile(scripted_function, backend="eager")(x)


@probe(slow=True)
def compiled_by_aot(x):
    torch._dynamo.reset()
    return torch.compile(scripted_function, backend="aot_eager")(x)


@probe(slow=True)
def compiled_with_it_as_a_constant(x):
    torch._dynamo.reset()
    return torch.compile(lambda y: y * x + x[0, 0, 0].item(), backend="eager")(torch.ones(3, 1, 1))


@probe(slow=True)
def compiled_transform(x, make):
    torch._dynamo.reset()
    return torch.compile(v1.Normalize(MEAN, STD), backend="eager")(F.to_tensor(make.image()))


@probe(slow=True)
def exported(x):
    module = torch.nn.Sequential(torch.nn.Flatten(1), torch.nn.ReLU())
    return torch.export.export(module, (x.float(),)).module()(x.float())


@probe(slow=True)
def made_by_proxies(x):
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(scripted_function)(x)(x)
