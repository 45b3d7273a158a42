"""The console script `wstore`: where the process enters, and leaves on Ctrl-C.

Importing this loads nothing: Ctrl-C is quiet also while the program is still being loaded.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # see `wstore`
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's) and return its exit code; never raises."""
    try:
        from wstore import cli_program

        return cli_program.main(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
