"""The suite itself: it finds every broken store, every check finds one, and no backend waters it down."""

from __future__ import annotations

import pytest

from tests.wstore import broken_stores as broken
from tests.wstore import test_conformance
from tests.wstore.conformance_classes import (
    ESSENTIALS,
    Conformance,
    Details,
    Essentials,
    EssentialsFirst,
    LongDetails,
)
from wstore.errors import NotFound
from wstore.stores.memory import MemoryStore
from wstore.testing.conformance import CHECKS, StoreUnderTest

BY_NAME = {check.__name__: check for check in CHECKS}

FOUND_BY: tuple[tuple[type[MemoryStore], str], ...] = (
    (broken.IgnoresTags, "check_tag_pins_a_read"),
    (broken.IgnoresTags, "check_tag_of_another_object"),
    (broken.IgnoresTags, "check_pinned_reads_never_mix"),
    (broken.IgnoresTags, "check_replaced_between_two_ranges"),
    (broken.ReadsOneByteTooMuch, "check_ranges"),
    (broken.ReadsOneByteTooMuch, "check_tiny_ranges_from_many_threads"),
    (broken.ReturnsACopyOfTheBuffer, "check_ranges_into_a_buffer"),
    (broken.ReadsAbsenceAsNothing, "check_missing_key"),
    (broken.ReadsAbsenceAsNothing, "check_below_a_file"),
    (broken.ReadsAbsenceAsNothing, "check_prefix_is_no_object"),
    (broken.ReadsAbsenceAsNothing, "check_methods_from_many_threads"),
    (broken.PadsWithZeros, "check_no_more_than_the_object"),
    (broken.ReturnsTheStoresOwnMemory, "check_result_is_not_the_store"),
    (broken.RefusesTheEnd, "check_empty_object"),
    (broken.ReadsHalfOfLargeRanges, "check_random_ranges"),
    (broken.ReadsHalfOfLargeRanges, "check_large_write"),
    (broken.LooksBeforeItCreates, "check_create_race"),
    (broken.ComparesBeforeItReplaces, "check_replace_race"),
    (broken.ComparesBeforeItReplaces, "check_count_by_replacing"),
    (broken.CreatesOver, "check_create"),
    (broken.CreatesOver, "check_create_meets_others"),
    (broken.CreatesOver, "check_replace_only_that_content"),
    (broken.KeepsTheCallersMemory, "check_write_keeps_no_reference"),
    (broken.LosesTheLastByte, "check_write_is_what_others_see"),
    (broken.WritesWholeBuffers, "check_write_of_a_slice"),
    (broken.WritesInTwoSteps, "check_readers_see_whole_objects"),
    (broken.LeavesATemporaryObject, "check_refused_write_leaves_no_debris"),
    (broken.LeavesATemporaryObject, "check_two_writers_of_one_key"),
    (broken.ReplacesWhatIsBelow, "check_write_where_a_directory_is"),
    (broken.ReplacesWhatIsBelow, "check_write_below_a_file"),
    (broken.NeedsAParent, "check_parents_are_made"),
    (broken.ListsUnsorted, "check_recursive_order"),
    (broken.ListsUnsorted, "check_folded_order"),
    (broken.ListsUnsorted, "check_listing_left_early"),
    (broken.ListsOnePage, "check_many_keys"),
    (broken.ListsFromTheStart, "check_start_after"),
    (broken.ListsByNameOnly, "check_prefix_ends_at_its_slash"),
    (broken.ListsAbsenceAsAnError, "check_absent_prefix"),
    (broken.ListsOtherSizes, "check_entries_describe_objects"),
    (broken.ListsUnfinishedWrites, "check_unfinished_writes_are_hidden"),
    (broken.RemembersListings, "check_others_writes_are_seen"),
    (broken.RemembersListings, "check_listing_while_deleting"),
    (broken.DecodesNames, "check_odd_names"),
    (broken.DecodesNames, "check_odd_names_of_others"),
    (broken.DecodesNames, "check_twins_are_two"),
    (broken.CleansNames, "check_slashes_and_dots"),
    (broken.CutsNames, "check_long_key"),
    (broken.GluesNames, "check_key_that_is_also_a_prefix"),
    (broken.DecodesPrefixes, "check_odd_prefixes"),
    (broken.DeletesNothing, "check_delete"),
    (broken.DeletesAllThatBeginsAlike, "check_delete_of_a_directory"),
    (broken.DeletesInventions, "check_delete_of_nothing"),
    (broken.TagsBySize, "check_tag_names_the_content"),
    (broken.LivesInThePast, "check_time_of_change"),
    (broken.DiesWhenClosed, "check_close_and_go_on"),
    (broken.ClaimsDirectories, "check_directories"),
    (broken.ClaimsDirectories, "check_empty_directories"),
    (broken.ClaimsAnyFeature, "check_features_are_what_they_say"),
    (broken.HidesTheUrl, "check_url_and_errors"),
    (broken.PublishesPieces, "check_upload"),
    (broken.PublishesPieces, "check_upload_replaces"),
    (broken.NeverForgetsUploads, "check_upload_aborted"),
    (broken.AbortsWhatIsPublished, "check_upload_ends_once"),
    (broken.RefusesEmptyUploads, "check_upload_without_pieces"),
    (broken.KeepsTheMemoryOfPieces, "check_upload_keeps_no_reference"),
    (broken.KeepsTheFirstOfEachPiece, "check_upload_repeated_pieces"),
    (broken.JoinsInOrderOfArrival, "check_upload_out_of_order_at_once"),
    (broken.OneUploadPerKey, "check_uploads_of_one_key"),
    (broken.UploadsDecodedNames, "check_upload_odd_name"),
    (broken.CopiesNothing, "check_copy"),
    (broken.BlamesTheTarget, "check_copy_of_nothing"),
    (broken.SweepsTheYoung, "check_sweep"),
    (broken.ClaimsEveryWrite, "check_settle"),
)

NEEDS_PROCESSES = "check_create_race_of_processes"  # memory is not shared between processes


@pytest.mark.parametrize(
    ("mutant", "name"), FOUND_BY, ids=[f"{name}-{kind.__name__}" for kind, name in FOUND_BY]
)
def test_a_broken_store_is_found(mutant: type[MemoryStore], name: str) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - a broken store may fail in any way
        BY_NAME[name](_place(mutant()))


def test_every_check_finds_a_broken_store() -> None:
    assert {name for _, name in FOUND_BY} == set(BY_NAME) - {NEEDS_PROCESSES}


def test_no_backend_redefines_or_lacks_a_check() -> None:
    essentials, details, long_details = (
        {name for name in vars(kind) if name.startswith("test_")}
        for kind in (Essentials, Details, LongDetails)
    )
    assert len(essentials) == len(ESSENTIALS)
    assert len(essentials | details) == len(essentials) + len(details) == len(CHECKS)
    assert details == long_details
    kinds = [kind for kind in vars(test_conformance).values() if isinstance(kind, type)]
    backends = [kind for kind in kinds if kind.__name__.startswith("Test")]
    assert len(backends) >= 15
    for kind in backends:
        assert kind.__bases__ in ((Conformance,), (EssentialsFirst,)), kind
        assert not (essentials | details) & set(vars(kind)), kind


def _place(mutant: MemoryStore) -> StoreUnderTest:
    """The mutant, with an honest store on the same objects as the back door."""
    honest = MemoryStore()
    honest.__dict__ = dict(mutant.__dict__)

    def get(key: str) -> bytes | None:
        try:
            return bytes(honest.read(key, 0, 1 << 40).data)
        except NotFound:
            return None

    def put(key: str, data: bytes) -> None:
        honest.write(key, memoryview(data))

    return StoreUnderTest(lambda: mutant, get, put, "a/prefix/")
