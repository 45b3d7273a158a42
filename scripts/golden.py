"""Writes the golden frames that are missing in tests/wstore_codecs/golden; never one that is there.

    python scripts/golden.py

A format that was published is never changed: a new body takes a new codec id, and that gets a file of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.wstore_codecs.golden_frames import FOLDER, cases, part


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, data in [
        *((case.name, case.encode().tobytes()) for case in cases()),
        ("part", part()),
    ]:
        path = FOLDER / f"{name}.bin"
        if not path.exists():
            path.write_bytes(data)
            print(f"wrote {path.relative_to(ROOT)}, {len(data)} bytes")


if __name__ == "__main__":
    main()
