"""Tests where batches are decoded."""

import torch

from fastload.device.decode_choice import STAY_MIN, DecodeChoice


class FilesOf:
    out_of_memory = False

    def files(self, pixels: torch.Tensor) -> str:
        return "files"


def test_auto_turns_to_the_gpu_when_threads_are_late_three_times():
    choice, pixels = DecodeChoice(FilesOf(), always=False), torch.zeros(1)  # type: ignore[arg-type]
    for late in (True, True, False, True, True):
        choice.note(on_gpu=False, late=late)
        assert choice.files(pixels) is None
    stays = []
    for _ in range(2):
        for _ in range(3):
            choice.note(on_gpu=False, late=True)
        stays.append(next(number for number in range(4 * STAY_MIN) if choice.files(pixels) is None))
    assert stays == [STAY_MIN, 2 * STAY_MIN]
    choice.note(on_gpu=True, late=True)  # says nothing about the threads
    assert choice.files(pixels) is None


def test_gpu_decodes_every_batch_if_told_so():
    choice = DecodeChoice(FilesOf(), always=True)  # type: ignore[arg-type]
    choice.note(on_gpu=False, late=False)
    assert [choice.files(torch.zeros(1)) for _ in range(3)] == ["files"] * 3


def test_nothing_goes_to_the_gpu_once_it_has_no_memory():
    for always in (True, False):
        decoder = FilesOf()
        decoder.out_of_memory = True
        choice = DecodeChoice(decoder, always=always)  # type: ignore[arg-type]
        for _ in range(4):
            choice.note(on_gpu=False, late=True)
        assert choice.files(torch.zeros(1)) is None
