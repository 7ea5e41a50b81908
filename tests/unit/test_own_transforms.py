"""Run small transforms of one's own natively where their code is known; others are refused."""

from __future__ import annotations

import linecache
import random
import textwrap
import threading
from random import uniform

import numpy as np
import PIL.ImageOps
import pytest
import torch
import torchvision.transforms as v1
from photos import assert_same, both, make_folder
from PIL import Image, ImageFilter, ImageOps
from torchvision.datasets import ImageFolder

from fastload import FastLoader, _core
from fastload.pipeline.code import own_transforms
from fastload.pipeline.recipe import Recipe, Refusal, read_recipe

NATIVE = {"device": "cpu", "engine": "native"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("photos"), 13)


class Blur:
    """As in DINO and DeiT-III."""

    def __init__(self, p=0.5, low=0.1, high=2.0):
        self.p = p
        self.low = low
        self.high = high

    def __call__(self, img):
        do_it = random.random() <= self.p
        if not do_it:
            return img

        return img.filter(ImageFilter.GaussianBlur(radius=random.uniform(self.low, self.high)))


class AlwaysBlur:
    """As in MoCo."""

    def __init__(self, sigma=(0.1, 2.0)):
        self.sigma = sigma

    def __call__(self, x):
        """
        Blur it,
          always.
        """
        sigma = random.uniform(self.sigma[0], self.sigma[1])
        x = x.filter(ImageFilter.GaussianBlur(radius=sigma))
        return x  # noqa: RET504


class ScaledBlur:
    """As in Barlow Twins."""

    def __init__(self, p=0.6):
        self.p = p

    def __call__(self, img):
        if random.random() < self.p:
            sigma = random.random() * 1.9 + 0.1
            return img.filter(ImageFilter.GaussianBlur(sigma))
        else:  # noqa: RET505
            return img


class Starred:
    def __init__(self, radius=(0.0, 3)):
        self.radius = radius

    def __call__(self, image):
        if 0.3 >= random.random():  # noqa: SIM300
            return image
        return image.filter(ImageFilter.GaussianBlur(uniform(*self.radius)))


class Solarize:
    def __init__(self, p=0.4):
        self.p = p

    def __call__(self, img):
        return ImageOps.solarize(img) if random.random() < self.p else img


class Threshold(torch.nn.Module):
    def __init__(self, threshold=90.5):
        super().__init__()
        self.threshold = threshold

    def forward(self, img):
        out = ImageOps.solarize(img.convert("RGB"), self.threshold)
        return PIL.ImageOps.equalize(out)


class Gray:
    """As in DeiT-III."""

    def __init__(self, inner=None, p=0.5):
        self.p = p
        self.inner = inner or v1.Grayscale(3)

    def __call__(self, img):
        if random.random() > self.p:
            pass
        else:
            img = self.inner(img)
        return ImageOps.invert(img)


class Chain:
    def __init__(self):
        self.first = v1.ColorJitter(0.4, 0.4, 0.4, 0.1)
        self.second = Blur()

    def __call__(self, img):
        img = self.second(self.first(img))
        if random.random() < 0.5:
            return ImageOps.autocontrast(img)
        return img


KNOWN = {
    "blur with a chance": Blur,
    "blur": AlwaysBlur,
    "blur by a slope": ScaledBlur,
    "blur by a pair": Starred,
    "solarize": Solarize,
    "solarize and equalize": Threshold,
    "another transform": Gray,
    "one that draws": lambda: Gray(v1.RandomChoice([v1.ColorJitter(0.4), Blur()])),
    "several": Chain,
    "in RandomApply": lambda: v1.RandomApply([AlwaysBlur()], p=0.5),
    "in RandomChoice": lambda: v1.RandomChoice([Gray(), Solarize(), Blur(1.0)]),
    "never": lambda: Blur(-1),
    "always": lambda: Blur(2),
}


def with_step(step):
    return v1.Compose([v1.RandomResizedCrop(24), step, v1.RandomHorizontalFlip(), v1.ToTensor()])


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_gives_torchs_batches(root, name, workers):
    def dataset():
        random.seed(5)
        return ImageFolder(root, with_step(KNOWN[name]()))

    assert_same(*both(dataset, FastLoader, NATIVE, batch_size=4, num_workers=workers))


@pytest.mark.parametrize("name", KNOWN)
def test_the_main_processs_generators_go_on_as_torchs(root, name):
    """Without workers."""

    def states(loader_class, **own):
        torch.manual_seed(7)
        random.seed(7)
        for _ in loader_class(ImageFolder(root, with_step(KNOWN[name]())), 5, shuffle=True, **own):
            pass
        return torch.get_rng_state().tolist(), random.getstate()

    assert states(FastLoader, **NATIVE) == states(torch.utils.data.DataLoader)


class Twice:
    def __call__(self, img):
        img.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
        return img


class Dropped:
    """Draws for a blur that is not returned."""

    def __call__(self, img):
        other = img.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))  # noqa: F841
        return img


class Unused:
    def __call__(self, img):
        sigma = random.uniform(0.1, 2.0)  # noqa: F841
        return img


class LateDraw:
    """Draws the radius before the transform within does."""

    def __init__(self):
        self.inner = v1.ColorJitter(0.4)

    def __call__(self, img):
        sigma = random.uniform(0.1, 2.0)
        img = self.inner(img)
        return img.filter(ImageFilter.GaussianBlur(sigma))


class Older:
    """Goes on with the image before the last."""

    def __call__(self, img):
        other = ImageOps.invert(img)
        if random.random() < 0.5:
            return img
        return other


class Counting:
    def __init__(self):
        self.count = 0

    def __call__(self, img):
        self.count += 1
        return ImageOps.invert(img)


class Reading:
    def __call__(self, img):
        if img.size[0] > 20:
            return ImageOps.invert(img)
        return img


class AnotherKernel:
    def __call__(self, img):
        return img.filter(ImageFilter.BoxBlur(random.uniform(0.1, 2.0)))


class NegativeRadius:
    def __call__(self, img):
        return img.filter(ImageFilter.GaussianBlur(random.uniform(-1.0, 2.0)))


class Falls:
    def __call__(self, img):  # noqa: RET503
        if random.random() < 0.5:
            return ImageOps.invert(img)


class Resizes:
    def __init__(self):
        self.inner = v1.RandomCrop(20)

    def __call__(self, img):
        if random.random() < 0.5:
            return self.inner(img)
        return img


class Looked(Blur):
    def __getattr__(self, name):
        return 0.5


class Text:
    def __init__(self):
        self.p = "0.5"

    def __call__(self, img):
        return ImageOps.invert(img) if random.random() < self.p else img


def shadowed():
    class Shadowed:
        def __call__(self, img):
            return invert(img)

    invert = ImageOps.solarize
    return Shadowed()


UNKNOWN = [Twice, Dropped, Unused, LateDraw, Older, Counting, Reading, AnotherKernel, NegativeRadius, Falls, Resizes]
UNKNOWN += [Looked, Text, shadowed]


@pytest.mark.parametrize("make", UNKNOWN)
def test_what_is_not_known_stays_python(root, make):
    recipe = read_recipe(ImageFolder(root, with_step(make())))
    assert isinstance(recipe, Refusal)


REBINDING = (
    "self = img",
    "self = ImageOps.invert(img)",
    "self, img = img, img",
    "img = self = img",
    "self: object = img",
    "self += 0",
    "for self in (img,): pass",
    "with img as self: pass",
    "(self := img)",
    "img = img if (self := img) else img",
    "del self",
    "try: pass\nexcept OSError as self: pass",
    "match img:\n    case self: pass",
    "import PIL as self",
    "def self(): pass",
    "class self: pass",
    "img = [img for self in (img,)][0]",
    "img = (lambda: self)() and img",
    "global random",
    "def other():\n    nonlocal self\n    self = img",
)


@pytest.mark.parametrize("statement", REBINDING)
def test_code_that_binds_a_name_in_another_way_is_not_known(root, statement):
    """Here ``self.width`` is not the transform's."""
    body = f"{statement}\nif random.random() < self.width: img = ImageOps.invert(img)\nreturn img"
    source = f"class Own:\n    width = 0\n    def __call__(self, img):\n{textwrap.indent(body, ' ' * 8)}\n"
    name = f"<{statement}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    space = {"random": random, "ImageOps": ImageOps}
    exec(compile(source, name, "exec"), space)
    step = space["Own"]()
    step.width = 2
    del space["Own"].width
    assert isinstance(read_recipe(ImageFolder(root, with_step(step))), Refusal)


def test_a_name_that_now_stands_for_something_else_is_not_known(root, monkeypatch):
    assert isinstance(read_recipe(ImageFolder(root, with_step(Solarize()))), Recipe)
    step = Solarize()
    monkeypatch.setitem(globals(), "random", np.random)
    monkeypatch.setattr(own_transforms, "_known", type(own_transforms._known)())
    assert isinstance(read_recipe(ImageFolder(root, with_step(step))), Refusal)


def test_a_name_that_is_replaced_later_is_not_known(root, monkeypatch):
    step = Solarize()
    assert isinstance(read_recipe(ImageFolder(root, with_step(step))), Recipe)
    monkeypatch.setitem(globals(), "random", np.random)
    assert isinstance(read_recipe(ImageFolder(root, with_step(step))), Refusal)


def test_source_that_is_not_the_codes_is_not_read(root, monkeypatch):
    step = AlwaysBlur()
    source = own_transforms.inspect.getsource(AlwaysBlur.__call__)
    for cache in ("_known", "_trees"):
        monkeypatch.setattr(own_transforms, cache, type(own_transforms._known)())
    monkeypatch.setattr(own_transforms.inspect, "getsource", lambda method: source.replace("[1]", "[0]"))
    assert isinstance(read_recipe(ImageFolder(root, with_step(step))), Refusal)


def test_constants_are_part_of_the_code(root, monkeypatch):
    source = own_transforms.inspect.getsource(ScaledBlur.__call__)
    for cache in ("_known", "_trees"):
        monkeypatch.setattr(own_transforms, cache, type(own_transforms._known)())
    monkeypatch.setattr(own_transforms.inspect, "getsource", lambda method: source.replace("1.9", "1.8"))
    assert isinstance(read_recipe(ImageFolder(root, with_step(ScaledBlur()))), Refusal)


def test_what_is_understood_wrongly_is_refused(root, monkeypatch):
    """A copy of the code is compared with what was read."""
    monkeypatch.setattr(own_transforms, "_same", {})
    monkeypatch.setitem(own_transforms._IMAGE_FUNCTIONS, ImageOps.invert, "equalize")
    recipe = read_recipe(ImageFolder(root, with_step(Gray())))
    assert isinstance(recipe, Refusal)
    assert "something else" in recipe.reasons[0]


def test_the_copy_draws_from_no_generator_of_the_users(root, monkeypatch):
    monkeypatch.setattr(own_transforms, "_same", {})
    random.seed(3)
    before = random.getstate()
    assert isinstance(read_recipe(ImageFolder(root, with_step(Blur()))), Recipe)
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        (random, "random"),
        (random, "uniform"),
        (ImageFilter, "GaussianBlur"),
        (ImageOps, "invert"),
        (Image.Image, "filter"),
    ],
)
def test_functions_that_the_code_names_must_be_the_librarys(root, monkeypatch, holder, name):
    step = Gray(Blur())
    assert isinstance(read_recipe(ImageFolder(root, with_step(step))), Recipe)
    original = getattr(holder, name)
    monkeypatch.setattr(holder, name, lambda *args, **rest: original(*args, **rest))
    assert isinstance(read_recipe(ImageFolder(root, with_step(step))), Refusal)


def test_changed_attributes_are_read_anew(root):
    step = Blur(p=1.0)
    first = read_recipe(ImageFolder(root, with_step(step))).pipeline.nodes
    step.high = 1.0
    assert read_recipe(ImageFolder(root, with_step(step))).pipeline.nodes != first


def test_an_image_that_the_core_does_not_take_is_made_by_the_users_own(tmp_path):
    make_folder(tmp_path, 9)
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    Image.new("RGB", (40, 30), (9, 99, 199)).save(folder / "zz.bmp")
    assert_same(
        *both(
            lambda: ImageFolder(tmp_path, with_step(Chain())),
            FastLoader,
            {"device": "cpu"},
            batch_size=4,
            num_workers=2,
        )
    )


class RarelyUnused:
    """Seldom does what is not known: a comparison on few seeds misses it."""

    def __call__(self, img):
        if random.random() < 1e-9:
            sigma = random.uniform(0.1, 2.0)  # noqa: F841
            return img
        return img


class RarelyLate:
    def __call__(self, img):
        if random.random() < 1e-9:
            sigma = random.uniform(0.1, 2.0)
            img = ImageOps.invert(img)
            return img.filter(ImageFilter.GaussianBlur(sigma))
        return img


class RarelyTwoDraws:
    def __call__(self, img):
        if random.random() < 1e-9:
            first = random.uniform(0.1, 2.0)  # noqa: F841
            second = random.uniform(0.1, 2.0)
            return img.filter(ImageFilter.GaussianBlur(second))
        return img


class RarelyUsedTwice:
    def __call__(self, img):
        if random.random() < 1e-9:
            sigma = random.uniform(0.1, 2.0)
            img = img.filter(ImageFilter.GaussianBlur(sigma))
            return img.filter(ImageFilter.GaussianBlur(sigma))
        return img


class RarelyOlder:
    def __call__(self, img):
        if random.random() < 1e-9:
            other = ImageOps.invert(img)  # noqa: F841
            return ImageOps.equalize(img)
        return img


class RarelyUnbound:
    def __call__(self, img):
        if random.random() < 1e-9:
            return PIL.ImageOps.invert(img)  # noqa: F823 - it raises
        PIL = img
        return PIL  # noqa: RET504


class RoundedSlope:
    """The width of the core's interval would differ by a bit."""

    def __call__(self, img):
        return img.filter(ImageFilter.GaussianBlur(random.random() * 1.9 + 0.3))


class OddNumber(float):
    """No number of Python's own."""


@pytest.mark.parametrize(
    "make",
    [
        *(RarelyUnused, RarelyLate, RarelyTwoDraws, RarelyUsedTwice, RarelyOlder, RarelyUnbound, RoundedSlope),
        lambda: Blur(p=OddNumber(0.5)),
        lambda: Starred((0.1, OddNumber(2.0))),
    ],
)
def test_what_a_comparison_could_miss_is_not_known_by_its_code(root, make, monkeypatch):
    monkeypatch.setattr(own_transforms, "_known", type(own_transforms._known)())
    recipe = read_recipe(ImageFolder(root, with_step(make())))
    assert isinstance(recipe, Refusal)
    assert "what the native core does not know" in recipe.reasons[0]


def test_a_comparison_sees_a_draw_that_changes_no_image(root, monkeypatch):
    monkeypatch.setattr(own_transforms, "_known", type(own_transforms._known)())
    monkeypatch.setattr(own_transforms._Reading, "_draw", lambda reading, value: value)  # forgets it
    recipe = read_recipe(ImageFolder(root, with_step(Unused())))
    assert isinstance(recipe, Refusal)
    assert "something else" in recipe.reasons[0]


def test_instructions_are_part_of_the_code(root, monkeypatch):
    source = own_transforms.inspect.getsource(Blur.__call__)
    for cache in ("_known", "_trees"):
        monkeypatch.setattr(own_transforms, cache, type(own_transforms._known)())
    monkeypatch.setattr(own_transforms.inspect, "getsource", lambda method: source.replace("<=", "<"))
    recipe = read_recipe(ImageFolder(root, with_step(Blur())))
    assert isinstance(recipe, Refusal)
    assert "what the native core does not know" in recipe.reasons[0]


def test_code_that_was_replaced_in_place_is_read_anew(root):
    class Own:
        def __call__(self, img):
            return ImageOps.invert(img)

    assert isinstance(read_recipe(ImageFolder(root, with_step(Own()))), Recipe)
    Own.__call__.__code__ = Reading.__call__.__code__
    assert isinstance(read_recipe(ImageFolder(root, with_step(Own()))), Refusal)


class Held:
    """Attributes that only a module would look up."""

    def __init__(self):
        self._modules = {"p": 0.5}

    def __call__(self, img):
        return ImageOps.invert(img) if random.random() < self.p else img


class Reduced(Blur):
    def __reduce__(self):
        return Solarize, ()


@pytest.mark.parametrize("make", [Held, Reduced])
def test_attributes_and_copies_are_pythons_own(root, make):
    assert isinstance(read_recipe(ImageFolder(root, with_step(make()))), Refusal)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_that_cannot_be_copied_runs_in_torchs_workers(root, workers):
    """They are forked."""

    def dataset():
        step = Blur()
        step.lock = threading.Lock()
        random.seed(5)
        return ImageFolder(root, with_step(step))

    assert_same(*both(dataset, FastLoader, {"device": "cpu"}, batch_size=4, num_workers=workers))
    if workers:
        with pytest.raises(ValueError, match=r"cannot be copied \(TypeError: cannot pickle"):
            FastLoader(dataset(), 4, num_workers=1, **NATIVE)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("python_chance", {"p": float("nan"), "branches": [[]]}),
        ("python_chance", {"p": 0.5, "branches": []}),
        ("python_chance", {"p": 0.5, "branches": [[], [], []]}),
        ("python_blur", {"scale": (-0.1, 2.0)}),
        ("python_blur", {"scale": (0.1, 1e6)}),
        ("python_blur", {"scale": (0.1, float("nan"))}),
    ],
)
def test_the_core_refuses_what_cannot_be(kind, fields):
    with pytest.raises(ValueError, match=r"p must be|one or two|a radius"):
        _core.DrawPlan().add(kind, **fields)
