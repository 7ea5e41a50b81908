"""All that a loader's batches depend on in the main process: generators, samplers, dataset."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Sampler

from fastload.options import has_state
from fastload.randomness.packed import Texts, unpack
from fastload.state.in_worker import NO_STATE, DatasetState, is_at_end


def _samplers_of(loader: Any) -> list[Any]:
    """The samplers that a loader draws indices from, outermost first."""
    samplers: list[Any] = []
    for sampler in (loader.batch_sampler, loader.sampler):
        _add_samplers(samplers, sampler)
    return samplers


def _add_samplers(samplers: list[Any], sampler: Any) -> None:
    if sampler is None or any(sampler is known for known in samplers):
        return
    samplers.append(sampler)
    for name, value in getattr(sampler, "__dict__", {}).items():
        inner = value if isinstance(value, list | tuple) and isinstance(next(iter(value), None), Sampler) else [value]
        for one in inner:
            if name in ("sampler", "batch_sampler") or isinstance(one, Sampler):
                _add_samplers(samplers, one)


@dataclass
class Sources:
    """All that a loader's batches depend on in the main process, at one time.

    Attributes:
        main: States of the global generators.
        generators: Those of the loader's and its samplers' own generators, by name.
        epochs: The samplers' ``epoch``, if they have one.
        samplers: What the samplers' ``state_dict()`` returned, if they have one.
        dataset: The state of this process's dataset: as it is read here, or as worker processes begin with it.
    """

    main: bytes
    generators: dict[str, bytes]
    epochs: list[int | None] = field(default_factory=list)
    samplers: list[Any] = field(default_factory=list)
    dataset: DatasetState = NO_STATE

    @classmethod
    def read(cls, loader: Any, *, samplers: bool, dataset: DatasetState = NO_STATE) -> Sources:
        """Read the present states; those of samplers only if asked for."""
        from fastload.randomness.generators import own_generators, read_generator, state_now

        own = {name: read_generator(one) for name, one in own_generators(_owners(loader)).items()}
        sources = cls(state_now(others=True), own, dataset=dataset)
        if samplers:
            sources.epochs = epochs_of_samplers(loader)
            sources.samplers = [_asked(sampler) for sampler in _samplers_of(loader)]
        return sources

    def write(self, loader: Any, *, samplers: bool = True) -> None:
        """Set what :meth:`read` has read, but not the dataset's.

        The samplers' states only if asked for.
        """
        from fastload.randomness.generators import set_state, write_own

        set_state(self.main)
        write_own(_owners(loader), self.generators)
        self.write_epochs(loader)
        for sampler, asked in zip(_samplers_of(loader), self.samplers, strict=False):
            if asked is not None and samplers:
                sampler.load_state_dict(copy.deepcopy(asked))

    def write_epochs(self, loader: Any) -> None:
        """Set the samplers' ``epoch``."""
        for sampler, epoch in zip(_samplers_of(loader), self.epochs, strict=False):
            if epoch is not None and sampler.epoch != epoch:  # it may be a property without a setter
                sampler.epoch = epoch

    def begin(self, loader: Any) -> None:
        """Set what :meth:`read` has read, so that samplers and dataset begin an epoch.

        One whose state is its place, as torchdata's, is then at the end of the epoch before: it goes on there, without
        anything to give, and is at the beginning after that.
        """
        self.write(loader)
        samplers = any(asked is not None for asked in self.samplers) and not is_at_end(loader._index_sampler)
        if loader.num_workers:  # whose processes begin with it
            self.dataset.set(loader.dataset)
        else:
            self.dataset.begin(loader.dataset)
        self.write(loader, samplers=samplers)

    def packed(self, texts: Texts, name: str) -> dict[str, Any]:
        """Return plain data that ``torch.load`` takes with ``weights_only=True``.

        Args:
            texts: Of the last call.
            name: Whose texts these are.
        """
        own = {one: texts.pack((name, one), state) for one, state in self.generators.items()}
        samplers = [None if asked is None else copy.deepcopy(asked) for asked in self.samplers]
        asked = {"epochs": list(self.epochs), "samplers": samplers, "dataset": self.dataset.packed()}
        return {"main": texts.pack(name, self.main), "generators": own, **asked}

    @classmethod
    def unpacked(cls, loader: Any, data: dict[str, Any]) -> Sources:
        """Make it of :meth:`packed`.

        Raises:
            ValueError: The data is damaged, or of a loader with other generators.
        """
        from fastload.randomness.generators import check_own

        own = {name: unpack(packed, kind=name.rpartition(".")[2]) for name, packed in data["generators"].items()}
        check_own(_owners(loader), own)
        dataset = DatasetState.unpacked(data["dataset"])
        sources = cls(unpack(data["main"]), own, data["epochs"], data["samplers"], dataset)
        sources._check(loader)
        return sources

    def _check(self, loader: Any) -> None:
        """Raise a ValueError unless :meth:`write` can set all of it."""
        samplers = _samplers_of(loader)
        for name in ("epochs", "samplers"):
            listed = getattr(self, name)
            if not isinstance(listed, list) or len(listed) not in (0, len(samplers)):
                raise ValueError(f"the state is of other samplers: {name!r} must have {len(samplers)} entries")
        if not all(epoch is None or type(epoch) is int for epoch in self.epochs):
            raise ValueError("the state is damaged: a sampler's epoch must be an integer")
        dataset = self.dataset.dataset
        for source, asked in [*zip(samplers, self.samplers, strict=False), (loader.dataset, dataset)]:
            if asked is not None and not has_state(source):
                raise ValueError(f"the state has one of a {type(source).__name__}, which has no load_state_dict here")


def epochs_of_samplers(loader: Any) -> list[int | None]:
    """Return the ``epoch`` of each of a loader's samplers; ``None`` for one that has none."""
    epochs = (getattr(sampler, "epoch", None) for sampler in _samplers_of(loader))
    return [epoch if type(epoch) is int else None for epoch in epochs]


def _asked(source: Any) -> Any:
    return copy.deepcopy(source.state_dict()) if has_state(source) else None


def _owners(loader: Any) -> list[Any]:
    return [loader, *_samplers_of(loader)]
