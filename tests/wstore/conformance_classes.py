"""The suite as test classes: the whole of it, or its essentials and, in the long tier, the details."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wstore.testing.conformance import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.testing.conformance import StoreUnderTest

ESSENTIALS = (
    # exact bytes
    "ranges",
    "ranges_into_a_buffer",
    # one content at a time, for every reader
    "tag_pins_a_read",
    "readers_see_whole_objects",
    # one winner
    "create",
    "replace_only_that_content",
    # what is seen, and when
    "write_is_what_others_see",
    "recursive_order",
    "unfinished_writes_are_hidden",
    "upload",
    "upload_aborted",
    "delete",
    # errors
    "missing_key",
    "url_and_errors",
)
"""Checks, without "check_", of what a publisher and its readers rely on: a fifth of the suite."""


class Essentials:
    """The checks of `ESSENTIALS` as test methods; a subclass brings the fixture `place`."""


class Details:
    """All other checks."""


class LongDetails:
    """All other checks, in the long tier only."""


class Conformance(Essentials, Details):
    """The whole suite; a subclass brings the fixture `place` and nothing else."""


class EssentialsFirst(Essentials, LongDetails):
    """As `Conformance`, of which the quick tier runs the essentials."""


def _test_of(check: Callable[[StoreUnderTest], None]) -> Callable[..., None]:
    def test(self: object, place: StoreUnderTest) -> None:
        check(place)

    test.__doc__ = check.__doc__
    return test


for _check in CHECKS:
    _name = _check.__name__.removeprefix("check_")
    if _name in ESSENTIALS:
        setattr(Essentials, f"test_{_name}", _test_of(_check))
    else:
        setattr(Details, f"test_{_name}", _test_of(_check))
        setattr(LongDetails, f"test_{_name}", pytest.mark.long(_test_of(_check)))
