"""Each broken view is noticed by a test that passes with the sound one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from _pytest.outcomes import Failed

from mainstem.errors import MainstemError
from mainstem.views.view import View
from tests.contracts.shifted_clock import ShiftedClock
from tests.contracts.view_contract import ViewContract
from tests.views import test_view_crashes, test_view_fencing, test_view_snapshot
from tests.views.view_mutants import VIEW_MUTANTS, view_mutant

CONTRACT = ViewContract()


def of_contract(test: Callable[..., None], folder: Path) -> None:
    test(partial(View, folder, clock=ShiftedClock()))


def of_history(test: Callable[..., None], folder: Path) -> None:
    clock = ShiftedClock()
    test(partial(View, folder, clock=clock), clock)


def killed(point: str) -> Callable[[Path], None]:
    test = test_view_crashes.test_a_writer_killed_at_any_point_leaves_whole_batches_and_is_gone_on_from
    return partial(test, point=point, times=2)


NOTICED_BY: dict[str, Callable[[Path], None]] = {
    "epoch checked outside the transaction": partial(
        test_view_fencing.test_a_run_stopped_in_its_transaction_is_fenced_when_it_goes_on, point="view_rows_written"
    ),
    "epoch not checked before the commit": partial(
        test_view_fencing.test_a_run_stopped_in_its_transaction_is_fenced_when_it_goes_on, point="view_batch_written"
    ),
    "epoch not written": partial(of_contract, CONTRACT.test_an_older_run_is_fenced_as_soon_as_a_newer_one_has_begun),
    "batch committed apart from the rows": killed("view_batch_written"),
    "batch committed before the rows": killed("view_rows_written"),
    "offsets committed apart from the rows": killed("view_batch_written"),
    "held batch written again": partial(of_contract, CONTRACT.test_a_batch_that_it_holds_changes_nothing),
    "deletes not recorded": partial(
        of_contract, CONTRACT.test_changes_lead_from_nothing_to_what_is_there_and_an_update_is_delete_and_insert
    ),
    "rows that are the same recorded": partial(
        of_contract, CONTRACT.test_changes_lead_from_nothing_to_what_is_there_and_an_update_is_delete_and_insert
    ),
    "changes trimmed at once": partial(
        of_contract, CONTRACT.test_any_range_of_positions_gives_the_same_changes_again_and_never_half_an_update
    ),
    "flip without the difference": partial(
        of_contract, CONTRACT.test_who_follows_gets_the_difference_when_another_version_is_used
    ),
    "flip while the old one is written": partial(
        of_contract, CONTRACT.test_who_follows_gets_the_difference_when_another_version_is_used
    ),
    "snapshot of two moments": test_view_snapshot.test_what_is_committed_while_it_is_looked_at_is_not_seen,
    "token and row of two moments": partial(
        of_contract, CONTRACT.test_a_read_after_a_token_sees_that_append_or_names_what_is_missing
    ),
    "live version looked up once": (
        test_view_snapshot.test_a_version_dropped_between_the_look_and_the_opening_is_not_missed
    ),
    "live version not looked up again": (
        test_view_snapshot.test_a_version_flipped_away_between_the_look_and_the_opening_is_not_shown
    ),
    "null keys dropped silently": partial(
        of_contract, CONTRACT.test_rows_that_do_not_fit_are_given_back_with_their_reason_and_the_others_are_kept
    ),
    "first row of a key counts": partial(of_contract, CONTRACT.test_rows_are_kept_by_key_and_the_last_one_counts),
    "history claimed that was trimmed": partial(
        of_history, CONTRACT.test_what_it_cannot_tell_is_refused_with_what_is_kept
    ),
    "history trimmed as changes are": partial(
        of_history, CONTRACT.test_what_it_cannot_tell_is_refused_with_what_is_kept
    ),
    "history not carried to another version": partial(of_history, CONTRACT.test_it_goes_on_through_other_versions),
    "last change undone instead of the first": partial(
        of_history, CONTRACT.test_it_tells_what_it_was_right_after_each_batch
    ),
    "reached committed before the batch": killed("view_batch_written"),
}


@pytest.mark.parametrize("name", NOTICED_BY)
def test_a_broken_view_is_noticed(tmp_path: Path, name: str) -> None:
    NOTICED_BY[name](tmp_path / "sound")
    # By an assertion, pytest's own included, or by what the view itself says: not by a slip in the patch.
    with view_mutant(name), pytest.raises((AssertionError, MainstemError, Failed, KeyError)):
        NOTICED_BY[name](tmp_path / "broken")


def test_every_broken_view_is_put_to_a_test() -> None:
    assert sorted(NOTICED_BY) == sorted(VIEW_MUTANTS)
