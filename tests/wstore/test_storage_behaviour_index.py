"""Which test shows which known misbehaviour: a table that fails when a test is renamed or lost.

T numbers are kinds of fault that storage libraries were seen with; the numbering has gaps.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS: dict[str, tuple[str, ...]] = {
    "T01 ranges at and past the end": (
        "test_storage_behaviour_reads:test_t01_ranges_up_to_at_and_past_the_end",
    ),
    "T02 empty objects": ("test_storage_behaviour_reads:test_t02_empty_object",),
    "T03 unsorted, repeated, no ranges": (
        "test_storage_behaviour_reads:test_t03_ranges_unsorted_repeated_and_none",
    ),
    "T04 capped, parallel merging": (
        "test_storage_behaviour_faults:test_t04_adjacent_ranges_are_capped_and_overlap",
    ),
    "T06 the caller's memory": ("test_storage_behaviour_reads:test_t06_into_the_callers_memory",),
    "T07 lying replies": ("test_storage_behaviour_faults:test_t07_replies_that_lie",),
    "T10 cut bodies": ("test_storage_behaviour_faults:test_t10_cut_bodies_resume",),
    "T11 replaced while read": (
        "test_storage_behaviour_reads:test_t11_replaced_between_two_requests",
        "test_storage_behaviour_reads:test_t11_a_tag_holds_over_several_calls",
        "test_storage_behaviour_faults:test_t11_another_content_at_the_resume",
    ),
    "T13 silence": (
        "test_storage_behaviour_faults:test_t13_silence",
        "test_storage_behaviour_faults:test_t13_slow_but_alive",
    ),
    "T14 throttling": (
        "test_storage_behaviour_faults:test_t14_server_errors",
        "test_storage_behaviour_faults:test_t14_retry_after",
        "test_storage_behaviour_faults:test_t14_a_deadline_bounds_it",
    ),
    "T15 errors inside 200": (
        "test_storage_behaviour_faults:test_t15_error_inside_200",
        "test_storage_behaviour_faults:test_t15_error_inside_200_for_ever",
    ),
    "T16 exception inside a writer": (
        "test_storage_behaviour_writes:test_t16_exception_inside_a_writer",
        "test_storage_behaviour_faults:test_t16_exception_after_pieces_were_sent",
    ),
    "T17 killed before the rename": (
        "test_posix:test_killed_writer_leaves_the_old_file_and_hidden_debris",
    ),
    "T19 source that raises": ("test_storage_behaviour_writes:test_t19_source_that_raises",),
    "T20 order of system calls": (
        "test_posix_durability:test_replace_syncs_file_then_renames_then_syncs_directory",
        "test_posix_durability:test_any_failing_call_is_raised_and_leaves_the_old_file",
    ),
    "T22 number signs": ("test_storage_behaviour_writes:test_t22_t35_odd_names",),
    "T23 create if absent": (
        "test_storage_behaviour_writes:test_t23_create_race",
        "test_storage_behaviour_writes:test_t23_large_create",
        "test_storage_behaviour_faults:test_t23_a_create_of_our_own_is_a_success",
        "test_storage_behaviour_faults:test_t23_somebody_elses_create_is_not_ours",
    ),
    "T24 replace by tag": ("test_storage_behaviour_writes:test_t24_replace_by_tag",),
    "T25 pieces of a known size": (
        "test_pieces:test_known_sizes",
        "test_pieces:test_above_the_limit_is_refused",
    ),
    "T26 pieces of an unknown size": (
        "test_pieces:test_an_unknown_size_reaches_five_tebibytes_within_the_count",
    ),
    "T28 pieces of nothing": ("test_storage_behaviour_writes:test_t28_pieces_of_nothing",),
    "T30 a piece that fails for ever": (
        "test_storage_behaviour_faults:test_t30_a_piece_that_fails_for_ever",
        "test_storage_behaviour_faults:test_t30_a_writer_is_not_revived_by_close",
    ),
    "T31 pieces reset while sent": (
        "test_storage_behaviour_faults:test_t31_every_piece_reset_once",
    ),
    "T32 one large item": ("test_storage_behaviour_faults:test_t32_one_large_item_is_cut",),
    "T33 memory of transfers": ("test_storage_behaviour_writes:test_t33_pieces_of_every_source",),
    "T34 checksums": (
        "test_storage_behaviour_faults:test_t34_flipped_on_the_way_up",
        "test_storage_behaviour_faults:test_t34_checksums_switched_off",
    ),
    "T35 odd names": ("test_storage_behaviour_writes:test_t22_t35_odd_names",),
    "T37 traversal": ("test_storage_behaviour_names:test_t37_no_way_out",),
    "T39 percent signs": ("test_storage_behaviour_names:test_t39_nothing_is_decoded",),
    "T40 names that begin alike": ("test_storage_behaviour_names:test_t40_names_that_begin_alike",),
    "T42 reading a prefix": ("test_storage_behaviour_reads:test_t42_reading_a_prefix",),
    "T44 roots": (
        "test_storage_behaviour_names:test_t44_root_of_a_bucket",
        "test_storage_behaviour_names:test_t44_missing_bucket",
    ),
    "T46 missing directories": (
        "test_storage_behaviour_names:test_t46_listing_a_missing_directory",
    ),
    "T47 trailing slashes": ("test_storage_behaviour_names:test_t47_trailing_slashes",),
    "T48 pages of listings": (
        "test_storage_behaviour_names:test_t48_pages",
        "test_conformance:TestS3AsAwsHasIt",
    ),
    "T49 no listing cache": ("test_storage_behaviour_names:test_t49_what_others_put_is_seen",),
    "T52 two patterns": ("test_storage_behaviour_names:test_t52_two_patterns_on_one_path",),
    "T53 waiting": (
        "test_storage_behaviour_names:test_t53_waiting",
        "test_storage_behaviour_faults:test_t53_waiting_through_trouble",
    ),
    "T55 fork": ("test_storage_behaviour_reads:test_t55_a_forked_child_reads",),
    "T56 secrets": ("test_storage_behaviour_names:test_t56_no_secret_in_pickles_and_texts",),
    "T57 loops and threads": ("test_storage_behaviour_reads:test_t57_loops_and_threads",),
    "T58 cancelled": ("test_storage_behaviour_faults:test_t58_cancelled_while_hanging",),
    "T59 sockets": ("test_storage_behaviour_faults:test_t59_many_reads_few_sockets",),
    "T62 errors": (
        "test_storage_behaviour_reads:test_t62_wrong_key",
        "test_storage_behaviour_names:test_t62_refused",
        "test_storage_behaviour_faults:test_t62_refusals",
        "test_storage_behaviour_faults:test_t62_wrong_region",
        "test_storage_behaviour_faults:test_t62_nobody_listens",
    ),
}


@pytest.mark.parametrize("kind", TESTS)
def test_every_kind_has_its_tests(kind: str) -> None:
    for place in TESTS[kind]:
        module, _, name = place.partition(":")
        text = Path(__file__).with_name(f"{module}.py").read_text()
        assert f"def {name}(" in text or f"class {name}(" in text, place


def test_no_numbered_test_is_missing_here() -> None:
    listed = {place for places in TESTS.values() for place in places}
    for file in Path(__file__).parent.glob("test_storage_behaviour_*.py"):
        for line in file.read_text().splitlines():
            if line.startswith(("def test_t", "async def test_t")):
                name = line.partition("def ")[2].partition("(")[0]
                assert f"{file.stem}:{name}" in listed
