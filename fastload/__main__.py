"""``python -m fastload``."""

from __future__ import annotations

import sys

from fastload.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
