"""gcsfs, imported so that it never probes buckets for their type.

That probe is gRPC over TLS and costs tens of seconds a call on an emulator. gcsfs looks at the variable
while it is imported. Where another module imported it before, only its plain class is used.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Some variables of this process, set for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


with _environment({"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", "NO_GCE_CHECK": "true"}):
    from gcsfs.core import GCSFileSystem

__all__ = ["GCSFileSystem", "open_gcsfs"]


def open_gcsfs() -> GCSFileSystem:
    """A gcsfs file system of its own, for its connections: without caches and without credentials."""
    return GCSFileSystem(
        token="anon",
        project="",
        use_listings_cache=False,
        skip_instance_cache=True,
        # For bodies: no decoding, and few pauses for want of buffer.
        session_kwargs={"auto_decompress": False, "read_bufsize": 1 << 20},
    )
