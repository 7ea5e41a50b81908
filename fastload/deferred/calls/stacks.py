"""Say what a stack of deferred tensors holds, for those who make it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from fastload._compare import same_bits
from fastload.deferred.content import Rearranged, joined
from fastload.deferred.memory import content_to_send
from fastload.deferred.staging import Stager
from fastload.memory import unfilled
from fastload.memory.packing import is_packable
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed.settings import check_collating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.deferred.content import Content
    from fastload.memory.unfilled import Parts


def install() -> None:
    """Let batches of this process be made of deferred tensors' contents."""
    unfilled.serve(DeferredTensors())


class DeferredTensors:
    """Deferred tensors, for those who pack and send batches."""

    def content_of(self, tensor: torch.Tensor) -> Content | Rearranged | None:
        """See :class:`fastload.memory.unfilled.Unfilleds`."""
        return content_to_send(tensor)

    def stager(self) -> Stager:
        """See :class:`fastload.memory.unfilled.Unfilleds`."""
        return Stager()

    def parts_of(self, samples: Sequence[Any]) -> Parts | None:
        """See :class:`fastload.memory.unfilled.Unfilleds`."""
        contents = [content_to_send(sample) if isinstance(sample, torch.Tensor) else None for sample in samples]
        if not any(contents):
            return None
        kind = samples[0].size(), samples[0].dtype
        if not all(_is_image(sample) and (sample.size(), sample.dtype) == kind for sample in samples):
            return None
        parts: Parts = []
        group: list[Content] = []
        is_planar = False
        for sample, content in zip(samples, contents, strict=True):
            if isinstance(content, Rearranged):
                parts += [joined(group, planar=is_planar)] if group else []
                parts.append(content)
                group = []
                continue
            planar = content is not None and _planar_in_stack(sample, content)
            if group and (content is None or planar != is_planar or not _join(group[0], content)):
                parts.append(joined(group, planar=is_planar))
                group = []
            if content is None:
                parts.append(sample)
            else:
                group.append(content)
                is_planar = planar
        return [*parts, joined(group, planar=is_planar)] if group else parts


def _is_image(sample: Any) -> bool:
    """Whether torch makes a plain tensor of a stack of such samples."""
    if is_packable(sample):
        return True
    known = sys.modules.get("torchvision.tv_tensors")
    if known is None or type(sample) not in (known.Image, known.Mask):
        return False
    if not is_packable(sample.as_subclass(torch.Tensor)):
        return False
    try:
        check_collating(type(sample))
    except Refused:
        return False
    return True


def _planar_in_stack(sample: torch.Tensor, content: Content) -> bool:
    """Whether channels come before rows in a contiguous stack, as in the sample."""
    return content.channels == 1 or sample.stride(-1) == (1 if content.planar else 3)


def _join(one: Content, other: Content) -> bool:
    return one.image_size == other.image_size and (one.table is other.table or same_bits(one.table, other.table))
