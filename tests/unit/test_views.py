"""Callables that make several views of an image are known by their code."""

from __future__ import annotations

import itertools
import types

import pytest
import torch
import torchvision.transforms as v1
from hypothesis import given, settings
from hypothesis import strategies as st
from photos import MEAN, STD, assert_same, both, make_folder, mix_in
from plans import text_of
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader, _core, verify
from fastload.pipeline.code.views import views_of
from fastload.pipeline.code.wrappers import parts_of
from fastload.pipeline.recipe import Refusal, read_recipe

HEAD = [
    "class Wrapper:",
    "    def __init__(self, **held):",
    "        self.__dict__ |= held",
    "    def __call__(self, {image}):",
]
CLASSES = itertools.count()


def made(body, image="x", future=False, **held):
    """An object of a class as a user's own module has it."""
    lines = [*HEAD, *(f"        {line}" for line in body.splitlines())]
    source = "from __future__ import annotations\n" * future + "\n".join(lines).replace("{image}", image)
    module = types.ModuleType(f"module_of_a_user_{next(CLASSES)}")
    exec(compile(source.replace("IMAGE", image), module.__name__, "exec", dont_inherit=True), vars(module))
    return module.Wrapper(**held)


SAME = {"base": "A"}
BOTH = {"one": "A", "two": "B"}
CROPS = """crops = []
crops.append(self.large(IMAGE))
crops.append(self.other(IMAGE))
for _ in range(self.n):
    crops.append(self.small(IMAGE))
return crops"""
CROPPED = {"large": "A", "other": "B", "small": "C", "n": 3}
KNOWN = [
    ("q = self.base(IMAGE)\nk = self.base(IMAGE)\nreturn [q, k]", SAME, "AA"),
    ("q = self.base(IMAGE)\nk = self.base(IMAGE)\nreturn q, k", SAME, "AA"),
    ("return [self.base(IMAGE), self.base(IMAGE)]", SAME, "AA"),
    ("return self.base(IMAGE), self.base(IMAGE)", SAME, "AA"),
    ("im1 = self.one(IMAGE)\nim2 = self.two(IMAGE)\nreturn [im1, im2]", BOTH, "AB"),
    ("'''With a docstring.'''\ny1 = self.two(IMAGE)\ny2 = self.one(IMAGE)\nreturn y1, y2", BOTH, "BA"),
    ("return [self.one(IMAGE), self.two(IMAGE)]", BOTH, "AB"),
    ("return (self.two(IMAGE), self.one(IMAGE))", BOTH, "BA"),
    ("return [self.base(IMAGE) for i in range(self.n_views)]", SAME | {"n_views": 3}, "AAA"),
    ("return [t(IMAGE) for t in self.transforms]", {"transforms": ["A", "B", "A"]}, "ABA"),
    ("return [t(IMAGE) for t, n in self.views for _ in range(n)]", {"views": (("A", 1), ("B", 2))}, "ABB"),
    (CROPS, CROPPED, "ABCCC"),
]


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize("image", ["image", "x", "a", "zz"])
@pytest.mark.parametrize(("body", "held", "views"), KNOWN)
def test_what_makes_views_is_known_by_its_code(body, held, views, image, future):
    assert views_of(made(body, image, future, **held)) == list(views)


UNKNOWN = [
    ("return [self.base(IMAGE)]", SAME),
    ("return [self.base(IMAGE), IMAGE]", SAME),
    ("return [self.base(IMAGE), self.base(self.base(IMAGE))]", SAME),
    ("return {self.base(IMAGE), self.base(IMAGE)}", SAME),
    ("q = self.base(IMAGE)\nk = self.base(IMAGE)\nreturn [k, q]", SAME),
    ("q = self.base(IMAGE)\nk = self.base(IMAGE)\nreturn [q, q]", SAME),
    ("return [IMAGE.base(self), IMAGE.base(self)]", SAME),
    ("return [IMAGE.base(self) for _ in range(IMAGE.n)]", SAME | {"n": 2}),
    ("return [IMAGE.base(self) for _ in range(self.n)]", SAME | {"n": 2}),
    ("return [self.base(IMAGE) for _ in range(self.n)]", SAME | {"n": 1}),
    ("return [self.base(IMAGE) for _ in range(self.n)]", SAME | {"n": 2.0}),
    ("return [self.base(IMAGE) for _ in range(self.n)]", SAME | {"n": True}),
    ("return [self.base(IMAGE) for _ in range(self.n)]", SAME | {"n": type("Number", (int,), {})(2)}),
    ("return [self.base(IMAGE) for _ in range(self.n)]", SAME | {"n": 10**9}),
    ("return [self.base(IMAGE) for _ in reversed(self.n)]", SAME | {"n": 2}),
    ("return (self.base(IMAGE) for _ in range(self.n))", SAME | {"n": 2}),
    ("return [self.base(IMAGE) for _ in range(self.n) if _]", SAME | {"n": 2}),
    ("return [t(IMAGE) for t in self.transforms]", {"transforms": iter("AB")}),
    ("return [t(IMAGE) for t, n in self.views for _ in range(n)]", {"views": [("A", 1, 2)]}),
    ("return [self.one(IMAGE), self.two(IMAGE)]", SAME),
    (CROPS.replace("append", "extend"), CROPPED),
    (CROPS.replace("range", "reversed"), CROPPED),
    (CROPS.replace("other(IMAGE)", "other(crops)"), CROPPED),
    (CROPS, CROPPED | {"n": 2.0}),
    ("yield [self.base(IMAGE), self.base(IMAGE)]", SAME),
]


@pytest.mark.parametrize("image", ["image", "x"])
@pytest.mark.parametrize(("body", "held"), UNKNOWN)
def test_what_does_anything_else_is_not(body, held, image):
    assert views_of(made(body, image, **held)) is None


BODY = "return [self.base(IMAGE) for _ in range(self.n)]"


def test_names_that_mean_something_else_are_seen():
    wrapper = made(BODY, base="A", n=2)
    assert views_of(wrapper) == ["A", "A"]
    type(wrapper).__call__.__globals__["range"] = lambda n: [0] * 3
    assert views_of(wrapper) is None
    wrapper = made(BODY, base="A", n=2)
    wrapper.__call__ = lambda image: image
    assert views_of(wrapper) is None
    wrapper = made(BODY, base="A", n=2)
    type(wrapper).n = property(lambda self: 3)
    assert views_of(wrapper) is None
    wrapper = made(BODY, base="A", n=2)
    type(wrapper).__call__.__defaults__ = (None,)
    assert views_of(wrapper) is None


@pytest.mark.parametrize("future", [False, True])
def test_a_wrapper_of_a_user_s_module_is_read_through(future):
    """This module has an import that leaves a mark in its code."""
    assert parts_of(made("return self.inner(IMAGE)", "img", future, inner="A")) == ["A"]
    assert parts_of(made("return IMAGE.inner(self)", "img", future, inner="A")) is None


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("photos"), 11)


def first(module=v1, size=24, *behind):
    jitter = module.RandomApply([module.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
    steps = [module.RandomResizedCrop(size), jitter, module.RandomGrayscale(0.2), module.RandomHorizontalFlip()]
    return module.Compose([*steps, *behind, v1.ToTensor(), v1.Normalize(MEAN, STD)])


def second(module=v1, size=24):
    steps = [module.RandomCrop(size), module.RandomSolarize(128, 0.3), module.RandomVerticalFlip()]
    return module.Compose([*steps, v1.ToTensor(), v1.Normalize(MEAN, STD)])


def pair(one, two):
    return made("return [self.one(IMAGE), self.two(IMAGE)]", one=one, two=two)


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("run", [{}, {"breaks_at": 2}])
def test_batches_and_random_states_are_torchs(root, workers, run):
    def dataset():
        return ImageFolder(root, pair(first(), second()))

    arguments = {"batch_size": 4, "shuffle": True, "num_workers": workers, "run": run}
    assert_same(*both(dataset, FastLoader, {"device": "cpu", "engine": "native"}, **arguments))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_made_in_python_are_views_too(tmp_path, workers):
    """BMP and CMYK files, and crops that do not fit some images."""
    folder = mix_in(make_folder(tmp_path, 9))
    large = v1.Compose([v1.RandomCrop(75, pad_if_needed=False), v1.RandomInvert(), v1.ToTensor()])

    def dataset():
        return ImageFolder(folder, made(BODY, base=v1.Compose([v1.RandomResizedCrop(75), v1.ToTensor()]), n=3))

    def failing():
        return ImageFolder(folder, pair(v1.Compose([v1.RandomResizedCrop(75), v1.ToTensor()]), large))

    arguments = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    for make in (dataset, failing):
        ours, theirs = both(make, FastLoader, {"device": "cpu", "engine": "native"}, **arguments)
        assert [type(entry) for entry in ours] == [type(entry) for entry in theirs]
        kept = [i for i, entry in enumerate(theirs) if not isinstance(entry, Exception)]
        assert_same([ours[i] for i in kept], [theirs[i] for i in kept])
    assert any(isinstance(entry, Exception) for entry in theirs)


def test_each_view_has_memory_of_its_own(root):
    with FastLoader(ImageFolder(root, pair(first(), first())), 4, num_workers=1, device="cpu") as loader:
        (one, two), _ = next(iter(loader))
    assert one.untyped_storage().data_ptr() != two.untyped_storage().data_ptr()
    assert one.untyped_storage().nbytes() == one.nbytes


def test_simclr_with_approximate_blur(root):
    view = first(v1, 24, v1.RandomApply([v1.GaussianBlur(9)], 0.5))
    loader = FastLoader(ImageFolder(root, made(BODY, base=view, n=2)), 4, num_workers=2, device="cpu", exact=False)
    with loader:
        assert loader.plan.engine == "native"
        assert "2 views of each" in text_of(loader)
        result = verify(loader)
    assert result, result
    assert 0 < result.largest <= result.bound


REFUSED = {
    "how they become tensors": lambda: pair(first(), v1.Compose(first().transforms[:-1])),
    "views of views": lambda: pair(first(), pair(first(), first())),
    "leave out the erasing": lambda: pair(first(), v1.Compose([*first().transforms, v1.RandomErasing()])),
    "is your own": lambda: pair(first(), v1.Compose([lambda image: image, *first().transforms])),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_batched_alike_is_refused(root, why):
    recipe = read_recipe(ImageFolder(root, REFUSED[why]()))
    assert isinstance(recipe, Refusal)
    assert why in " ".join(recipe.reasons)


def test_randomness_by_sample_has_one_view(root):
    dataset = ImageFolder(root, pair(first(), first()))
    loader = FastLoader(dataset, 4, num_workers=1, device="cpu", randomness="sample")
    assert "randomness='sample'" in text_of(loader)
    assert loader.plan.engine != "native"


def multi_crop(module=v1, large=24, small=(9, 13), n=3):
    local = module.Compose([module.RandomResizedCrop(small), module.RandomGrayscale(0.4), *first().transforms[-2:]])
    return made(CROPS, large=first(module, large), other=second(module, large), small=local, n=n)


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("run", [{"count": 2}, {"breaks_at": 2}])
def test_views_of_two_sizes_are_torchs(root, workers, run):
    def dataset():
        return ImageFolder(root, multi_crop())

    own = {"device": "cpu", "engine": "native"}
    arguments = {"batch_size": 4, "shuffle": True, "num_workers": workers, "persistent_workers": workers == 3}
    ours, theirs = both(dataset, FastLoader, own, **arguments, run=run)
    assert_same(ours, theirs)


def test_views_of_two_sizes_have_a_plan_and_verify(root):
    with FastLoader(ImageFolder(root, multi_crop(n=2)), 4, num_workers=2, device="cpu") as loader:
        assert loader.plan.engine == "native"
        assert "24x24 (2 views), 9x13 (2 views) pixels" in text_of(loader)
        assert verify(loader)
        (one, *_, four), _ = next(iter(loader))
    assert (one.shape, four.shape) == ((4, 3, 24, 24), (4, 3, 9, 13))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_made_in_python_have_the_size_of_their_view(tmp_path, workers):
    """BMP and CMYK files; random numbers are drawn in the order of the views."""
    folder = mix_in(make_folder(tmp_path, 9))

    def dataset():
        local = v1.Compose([v1.RandomResizedCrop((9, 13)), v1.ToTensor()])
        return ImageFolder(folder, pair(v1.Compose([v1.RandomResizedCrop(30), v1.ToTensor()]), local))

    arguments = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    ours, theirs = both(dataset, FastLoader, {"device": "cpu", "engine": "native"}, **arguments)
    kept = [i for i, entry in enumerate(theirs) if not isinstance(entry, Exception)]
    assert kept
    assert [type(entry) for entry in ours] == [type(entry) for entry in theirs]
    assert_same([ours[i] for i in kept], [theirs[i] for i in kept])
    with FastLoader(dataset(), 4, num_workers=workers, device="cpu", engine="native") as loader:
        assert len(list(loader)) == len(loader)
        assert loader.stats().python_images > 0


SIDES = st.integers(1, 40)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([v1, v2]),
    st.lists(st.tuples(st.sampled_from([first, second]), st.tuples(SIDES, SIDES)), min_size=2, max_size=5),
    st.sampled_from([0, 1]),
)
def test_any_views_of_any_sizes(root, module, views, workers):
    transform = made("return [t(IMAGE) for t in self.ts]", ts=[view(module, size) for view, size in views])

    def dataset():
        return ImageFolder(root, transform)

    own = {"device": "cpu", "engine": "native"}
    arguments = {"batch_size": 3, "shuffle": True, "num_workers": workers}
    assert_same(*both(dataset, FastLoader, own, **arguments, run={"count": 1}))


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.sampled_from([v1, v2]), st.integers(1, 40), st.permutations([first, second, second]))
def test_any_views(root, module, size, views):
    transform = made("return [t(IMAGE) for t in self.ts]", ts=tuple(view(module, size) for view in views))

    def dataset():
        return ImageFolder(root, transform)

    own = {"device": "cpu", "engine": "native"}
    assert_same(*both(dataset, FastLoader, own, batch_size=3, shuffle=True, num_workers=1, run={"count": 1}))


def test_the_core_takes_an_input_for_each_view():
    plan = _core.DrawPlan()
    plan.add("center_crop", height=2, width=2)
    plan.begin_view()
    plan.add("center_crop", height=2, width=2)
    pool = _core.Pool(1)
    for count, draws, why in ((3, {}, "one input for each view"), (2, {"seeds": [1, 2]}, "not from seeds")):
        with pytest.raises(ValueError, match=why):
            pool.submit([b""] * count, torch.empty(count, 2, 2, 3, dtype=torch.uint8), plan=plan, **draws)
    for sizes, pixels, why in (
        ([(2, 2)], 8, "one size for each view"),
        ([(2, 2), (0, 2)], 4, "at least 1"),
        ([(2, 2), (1, 1)], 6, "exactly the pixels"),
        ([(2, 2), (1, 1)], 4, "exactly the pixels"),
    ):
        out = torch.empty(1, 1, pixels, 3, dtype=torch.uint8)
        with pytest.raises(ValueError, match=why):
            pool.submit([b""] * 2, out, plan=plan, sizes=sizes)
    with pytest.raises(IndexError, match="view"):
        plan.draw(_core.Generator(0), 9, 9, view=2)
