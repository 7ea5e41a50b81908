"""``fastload verify module:factory``: compare FastLoader with torch, bit for bit, on your data."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

from fastload._arguments import FactoryError, add_factory_argument, at_least, call_factory

if TYPE_CHECKING:
    import argparse

    from torch.utils.data import DataLoader

_SEED_MAX: Final = 2**64 - 1  # torch's


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_factory_argument(parser)
    parser.add_argument(
        "--batches", type=_count, default=20, metavar="N", help="compare at most so many, or all (default: %(default)s)"
    )
    seed_help = "of torch's default generator, for both loaders (default: %(default)s)"
    parser.add_argument("--seed", type=at_least(0, _SEED_MAX), default=0, help=seed_help)


def _count(text: str) -> int | None:
    return None if text == "all" else int(at_least(1)(text))


def main(args: argparse.Namespace) -> int:
    """Run the command; return its exit status.

    0 if all is equal or the loader is torch's own here, 1 if not, 2 if nothing was compared (the factory does not exist
    or raises, say), 130 after Ctrl-C.
    """
    from fastload.verification import VerificationInterrupted, verify

    def make() -> DataLoader[Any]:
        try:
            return call_factory(args.factory, args.arg)[0]
        except FactoryError:
            raise
        except Exception as error:
            traceback.print_exc()  # of the module
            raise FactoryError(f"{args.factory} raised {type(error).__name__}: {error}") from error

    try:
        result = verify(make, args.batches, seed=args.seed)
    except FactoryError as error:
        sys.stderr.write(f"fastload verify: {error}\n")
        return 2
    except VerificationInterrupted as interrupted:
        sys.stderr.write(f"fastload verify: interrupted; {interrupted}\n")
        return 130
    sys.stdout.write(f"{result}\n")
    return 0 if result else 1 if result.difference is not None else 2
