"""The suite that every Store runs: one function a property, without pytest.

A project with a store of its own lifts it into its test runner:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_store(check, tmp_path):
        check(StoreUnderTest(open=..., raw_get=..., raw_put=..., prefix="fresh/"))

Each check takes a `StoreUnderTest` with a prefix of its own and raises AssertionError, or whatever the
store raised. Nothing is skipped: where a capability is absent the checks demand `UnsupportedOperation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.testing.conformance import features, listing, naming, races, reads, writes
from wstore.testing.conformance.place import StoreUnderTest

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CHECKS", "StoreUnderTest"]

CHECKS: tuple[Callable[[StoreUnderTest], None], ...] = tuple(
    check
    for module in (reads, writes, listing, naming, races, features)
    for name, check in vars(module).items()
    if name.startswith("check_")
)
"""Every check, in the order of its module."""
