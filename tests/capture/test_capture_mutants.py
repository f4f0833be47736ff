"""Every deliberately broken capture is noticed by a test that a sound one passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mainstem.errors import MainstemError
from tests.capture import test_capture_crashes as crashes
from tests.capture import test_capture_limits as limits
from tests.capture import test_capture_schema_changes as schemas
from tests.capture import test_postgres_capture as rows
from tests.capture.capture_mutants import CAPTURE_MUTANTS, capture_mutant
from tests.capture.captured_shop import CapturedShop, captured_shop
from tests.postgres_server import PostgresServer


def judge(fault: str, *, violations: Sequence[object], **figures: object) -> None:
    assert not violations


def altered(name: str, mode: str) -> Callable[[CapturedShop, pytest.MonkeyPatch], None]:
    return lambda shop, patches: schemas.test_an_altered_table_is_captured_on_or_stops(shop, patches, name, mode, judge)


NOTICED_BY: dict[str, Callable[[CapturedShop, pytest.MonkeyPatch], None]] = {
    "confirmed before the commit": lambda shop, patches: limits.test_while_the_home_is_full_nothing_is_confirmed(
        shop, patches, 2
    ),
    "position committed apart from the rows": limits.test_a_commit_that_fails_leaves_neither_rows_nor_a_position,
    "visibility by position": lambda shop, _: crashes.test_a_commit_that_is_streamed_before_it_is_visible_wins(shop),
    "unchanged value as null": lambda shop, _: rows.test_a_large_value_that_was_not_sent_is_filled(shop),
    "batch cut inside a transaction": limits.test_a_reader_sees_all_of_a_transaction_or_nothing,
    "snapshot before the stream is there": altered("table dropped and made again", "stopped"),
}


@pytest.mark.parametrize("name", CAPTURE_MUTANTS)
def test_a_broken_capture_is_noticed(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(schemas, "SECONDS", 5)
    with captured_shop(postgres, tmp_path / "sound") as shop:
        NOTICED_BY[name](shop, monkeypatch)
    with captured_shop(postgres, tmp_path / "broken") as shop, capture_mutant(name):
        # By an assertion, or by what the capture itself says: not by a slip in the patch.
        with pytest.raises((AssertionError, MainstemError)):
            NOTICED_BY[name](shop, monkeypatch)


def test_every_broken_capture_is_put_to_a_test() -> None:
    assert sorted(NOTICED_BY) == sorted(CAPTURE_MUTANTS)
