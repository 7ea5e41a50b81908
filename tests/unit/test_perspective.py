"""Perspective transforms: the core's coefficients, draws and questions against torchvision's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from photos import pixels
from PIL import Image
from torchvision.transforms import functional, v2

from fastload import _core
from fastload.pipeline.installed import steps as step_calibration
from fastload.python_samples.dialogue import answer_to

FILL = (1, 2, 3)


def plan_of(distortion, p=1.0, size=None):
    plan = _core.DrawPlan()
    fields = {"value": distortion, "sampling": "bilinear", "fill": FILL}
    plan.add("chance", p=p, comparison="less", branches=[[("random_perspective", fields)]])
    if size is not None:
        plan.add("resize", height=size, width=size)
    return plan


@pytest.mark.parametrize(
    ("width", "height", "distortion", "most"),
    [(224, 224, 0.5, 0.1), (500, 375, 0.5, 0.1), (32, 48, 0.5, 0.3), (224, 224, 1.0, 0.1), (3, 5, 1.0, 1.0)],
)
def test_coefficients_are_torchvisions_or_asked_for(width, height, distortion, most):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        points = [v1.RandomPerspective.get_params(width, height, distortion) for _ in range(200)]
    asked = 0
    for starts, ends in points:
        corners = [width, height, *(at for end in ends for at in end)]
        got = _core.perspective_coefficients(corners)
        asked += got is None
        try:
            wanted = functional._get_perspective_coeffs(starts, ends)
        except torch.linalg.LinAlgError:  # three corners on a line; whether LAPACK notices depends on the processor
            assert got is None
            continue
        assert got in (None, wanted)
        assert answer_to("perspective", corners) == wanted
    assert asked <= most * len(points)


@pytest.mark.parametrize("ends", [(0, 0, 8, 0, 8, 8, 0, 8), (0, 0, 0, 0, 8, 8, 0, 8), (4, 4) * 4])
def test_coefficients_of_0_and_of_points_on_a_line_are_asked_for(ends):
    assert _core.perspective_coefficients([9, 9, *ends]) is None


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("distortion", [0.0, 0.3, 1.0])
def test_draws_and_pixels_are_torchvisions(module, distortion):
    image = Image.fromarray(pixels(3, 40, 51))
    transform = module.RandomPerspective(distortion, 0.6, fill=FILL)
    drawn = 0
    with torch.random.fork_rng():
        for seed in range(40):
            torch.manual_seed(seed)
            wanted = np.asarray(transform(image))
            generator, known = _core.Generator(seed), []
            while (answer := plan_of(distortion, 0.6).draw(generator, *image.size, known))[0] == "perspective":
                assert generator.get_state() == _core.Generator(seed).get_state()
                known.append((*answer[::2], answer_to(*answer[::2])))
            assert answer[0] == "ok"
            assert generator.get_state() == torch.get_rng_state().numpy().tobytes()
            out, fields = np.empty_like(wanted), {"value": distortion, "sampling": "bilinear", "fill": FILL}
            steps = [("pad", {"margins": (0, 0, 0, 0)})]
            steps += [("chance", {"p": 0.6, "comparison": "less", "branches": [[("random_perspective", fields)]]})]
            fits = _core.apply_steps(steps, np.array(image), out, generator=_core.Generator(seed))
            assert fits == (not known)
            drawn += fits
            assert not fits or np.array_equal(out, wanted)
    assert drawn > 8


@pytest.mark.parametrize("ordered", [True, False])
def test_a_batch_that_asks_for_several_of_its_samples_has_torchvisions_pixels(ordered):
    images = [pixels(i, 20, 20) for i in range(40)]
    room = np.empty((len(images), 20, 20, 3), np.uint8)
    state = torch.Generator().manual_seed(0).get_state().numpy().tobytes()
    random = {"stream": _core.RandomStream(state)} if ordered else {"seeds": list(range(len(images)))}
    pool = _core.Pool(2)
    job = pool.submit(images, room, plan=plan_of(0.5), arrays=True, **random)
    asked = set()
    while job.wait(30.0) == "requested":
        kind, sample, question = job.request()
        job.provide(kind, question, answer_to(kind, question))
        asked.add(sample)
    assert set(job.statuses()) == {0}
    assert len(asked) > 4
    transform = v1.RandomPerspective(0.5, 1.0, fill=FILL)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for seed, (image, got) in enumerate(zip(images, room, strict=True)):
            if not ordered:
                torch.manual_seed(seed)
            assert np.array_equal(got, np.asarray(transform(Image.fromarray(image))))
    pool.close()


def test_any_state_of_a_batch_is_known_after_more_questions_than_answers_are_kept():
    images = [pixels(1, 5, 3 + i) for i in range(300)]  # without distortion, each width is a question of its own
    pool = _core.Pool(2)
    room = np.empty((len(images), 4, 4, 3), np.uint8)
    state = torch.Generator().manual_seed(3).get_state().numpy().tobytes()
    job = pool.submit(images, room, plan=plan_of(0.0, size=4), stream=_core.RandomStream(state), arrays=True)
    asked = 0
    while job.wait(30.0) == "requested":
        kind, _, question = job.request()
        assert kind == "perspective"
        job.provide(kind, question, answer_to(kind, question))
        asked += 1
    assert (asked, set(job.statuses())) == (300, {0})
    generator = _core.Generator(3)
    for sample in range(len(images) + 1):
        assert job.generator_before(sample) == generator.get_state()
        generator.rand()
        for _ in range(8):
            generator.randint(0, 1)
    pool.close()


def test_samples_where_torchvision_raises_are_left_to_python(monkeypatch):
    def raising(*_):
        raise torch.linalg.LinAlgError

    monkeypatch.setattr(functional, "_get_perspective_coeffs", raising)
    pool = _core.Pool(1)
    stream = _core.RandomStream(torch.Generator().manual_seed(3).get_state().numpy().tobytes())
    job = pool.submit(
        [pixels(1, 5, 5)], np.empty((1, 5, 5, 3), np.uint8), plan=plan_of(0.0), stream=stream, arrays=True
    )
    assert job.wait(30.0) == "requested"
    kind, _, question = job.request()
    assert answer_to(kind, question) == []
    job.provide(kind, question, [])
    assert job.wait(30.0) == "requested"
    assert job.request()[:2] == ("sample", 0)
    pool.close()


@pytest.mark.parametrize(
    ("kind", "question", "answer"),
    [("exp", [], [1.0]), ("exp", [1.0], [1.0, 2.0]), ("perspective", [1.0] * 10, [1.0]), ("log", [1.0], [1.0])],
)
def test_wrong_answers_are_refused(kind, question, answer):
    with pytest.raises(ValueError, match=r"an exp has 1|no such question"):
        _core.DrawPlan().draw(_core.Generator(0), 9, 9, [(kind, question, answer)])


@pytest.mark.parametrize("distortion", [-0.1, 1.1, float("nan")])
def test_wrong_distortions_are_refused(distortion):
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        plan_of(distortion)


@pytest.mark.parametrize("other", ["coefficients", "pixels"])
def test_a_library_that_computes_otherwise_is_refused(monkeypatch, other):
    nodes = [("random_perspective", {"value": 0.5, "sampling": "bilinear", "fill": FILL})]
    step_calibration._same_perspective.cache_clear()
    step_calibration._same_as_reference.cache_clear()
    with monkeypatch.context() as patch:
        if other == "coefficients":
            real = functional._get_perspective_coeffs
            patch.setattr(functional, "_get_perspective_coeffs", lambda *points: [x + 1e-6 for x in real(*points)])
        else:
            patch.setitem(step_calibration.REFERENCES, "perspective", lambda image, **_: image)
        assert step_calibration.differing_step(nodes) == "random_perspective"
    step_calibration._same_perspective.cache_clear()
    step_calibration._same_as_reference.cache_clear()
    assert step_calibration.differing_step(nodes) is None
