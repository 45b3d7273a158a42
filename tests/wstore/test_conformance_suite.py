"""The suite itself: every check fails on some broken store, and no backend waters it down."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.wstore import test_conformance
from wstore.errors import NotFound
from wstore.stores.base import Capabilities, Copy, Entry, Expect, Multipart, Settle, Sweep
from wstore.stores.memory import MemoryStore
from wstore.testing.conformance import CHECKS, StoreUnderTest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wstore.stores.base import ObjectInfo, Read, Upload
