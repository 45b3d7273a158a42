"""The suite as test classes: the whole of it, or in two halves where a server is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstore.testing.conformance import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstore.testing.conformance import StoreUnderTest

ESSENTIALS = (
    # exact bytes
    "ranges",
    "ranges_into_a_buffer",
    "random_ranges",
    "empty_object",
    "large_write",
    # one content at a time, for every reader
    "tag_names_the_content",
    "tag_pins_a_read",
    "replaced_between_two_ranges",
    "readers_see_whole_objects",
    "pinned_reads_never_mix",
    "two_writers_of_one_key",
    # one winner
    "create",
    "create_meets_others",
    "create_race",
    "replace_only_that_content",
    "replace_race",
    # what is seen, and when
    "write_is_what_others_see",
    "others_writes_are_seen",
    "recursive_order",
    "unfinished_writes_are_hidden",
    "upload",
    "upload_replaces",
    "upload_aborted",
    "delete",
    # errors
    "missing_key",
    "prefix_is_no_object",
    "write_where_a_directory_is",
    "refused_write_leaves_no_debris",
    "url_and_errors",
)
"""Checks, without "check_", of what a publisher and its readers rely on: half of the suite."""


class Essentials:
    """The checks of `ESSENTIALS` as test methods; a subclass brings the fixture `place`."""


class Details:
    """All other checks. Where they are slow they are a class marked `long`, beside the essentials."""


class Conformance(Essentials, Details):
    """The whole suite; a subclass brings the fixture `place` and nothing else."""


def _test_of(check: Callable[[StoreUnderTest], None]) -> Callable[..., None]:
    def test(self: object, place: StoreUnderTest) -> None:
        check(place)

    test.__doc__ = check.__doc__
    return test


for _check in CHECKS:
    _name = _check.__name__.removeprefix("check_")
    setattr(Essentials if _name in ESSENTIALS else Details, f"test_{_name}", _test_of(_check))
