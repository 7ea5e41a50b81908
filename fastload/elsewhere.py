"""Stand for FastLoader on macOS and Windows, where there is no native core."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from fastload.options import Options, T_co

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class LoaderElsewhere(DataLoader[T_co]):
    """Torch's DataLoader, which takes FastLoader's arguments too.

    Batches are torch's and stay in host memory. A warning names the arguments that ask for anything else.

    Args:
        *args: As of torch's DataLoader.
        **kwargs: As of torch's DataLoader, and FastLoader's own. ``num_workers="auto"`` is one for each core.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        own = Options(**{field.name: kwargs.pop(field.name) for field in fields(Options) if field.name in kwargs})
        asked = {name for name in ("dtype", "max_pinned_bytes") if getattr(own, name) is not None}
        asked |= {"device"} if str(own.device) not in ("auto", "cpu") else set()
        asked |= {"randomness"} if own.randomness == "sample" else set()
        asked |= {"on_error"} if own.on_error != "raise" else set()
        asked |= {"engine"} if own.engine == "native" else set()
        if asked:
            warnings.warn(
                f"on {sys.platform} FastLoader is torch's DataLoader, for which {', '.join(sorted(asked))} must be "
                "left out and does nothing; the native core is for Linux",
                RuntimeWarning,
                stacklevel=2,
            )
        if kwargs.get("num_workers") == "auto":
            kwargs["num_workers"] = os.cpu_count() or 1
        super().__init__(*args, **kwargs)

    def close(self) -> None:
        """Do nothing: workers end with their iterator."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
