"""What happens to a capture is a row of `mainstem.activity`: begun, ended, failed, killed, waiting, works again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mainstem import MainstemError
from mainstem.capture.capture_activity import CaptureActivity
from mainstem.capture.capture_status import CaptureStatus, StatusFile
from mainstem.errors import Fenced, Unavailable
from mainstem.log.activity import WAIT_US_MIN, read_activity
from mainstem.log.embedded.embedded_log import EmbeddedLog
from tests.capture.captured_file import ACCOUNTS, CapturedFile, captured_file

NOBODY = {"pid": 2**30, "started": 1, "boot": "another"}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CapturedFile]:
    with captured_file(tmp_path) as made:
        made.sql(ACCOUNTS)
        yield made


def noted(log: Any) -> list[tuple[str, str]]:
    return [(row["what"], row["text"]) for row in read_activity(log, 0) if row["subject"] == "capture"]


def test_a_run_begins_and_ends(file: CapturedFile) -> None:
    file.run("accounts")
    (begun, begins), (ended, ends) = noted(file.stem.log)
    assert (begun, ended) == ("begun", "ended")
    assert begins.startswith('capture "shop" of ')
    assert begins.endswith("began from the beginning")
    assert ends.startswith('capture "shop" stopped at ')
    file.run("accounts")
    assert " began after " in noted(file.stem.log)[2][1]


def test_a_failure_is_told_in_three_parts(file: CapturedFile) -> None:
    with pytest.raises(MainstemError) as raised:
        file.run("nowhere")
    (row,) = [row for row in read_activity(file.stem.log, 0) if row["what"] == "failed"]
    assert row["text"] == f'capture "shop" failed: {raised.value.summary}'
    assert (row["detail"], row["hint"]) == (raised.value.detail, raised.value.hint)


def test_a_killed_run_is_found_by_the_next_one(file: CapturedFile) -> None:
    status = CaptureStatus("shop", "a file", {}, "running", "2026-01-01T00:00:00+00:00", NOBODY)
    StatusFile(file.home, "shop").write(status)
    file.run("accounts")
    assert [what for what, _ in noted(file.stem.log)] == ["killed", "begun", "ended"]


def test_waits_that_follow_each_other_are_one_row(tmp_path: Path, clock: Any) -> None:
    with closing(EmbeddedLog(tmp_path / "home", upkeep="manual", clock=clock)) as log:
        activity, away = CaptureActivity(log, "shop", "a database"), Unavailable("no answer", detail="It is away.")
        activity.works(None)
        for _ in range(3):
            activity.waits(away)
        activity.works("7")
        activity.waits(away)
        activity.works("8")
        clock.advance(f"{WAIT_US_MIN} microseconds")
        activity.waits(away)
        activity.failed(Fenced("a newer run has started"))
        assert noted(log) == [
            ("begun", 'capture "shop" of a database began from the beginning'),
            ("waiting", 'capture "shop" waits and retries: no answer'),
            ("restarted", 'capture "shop" works again'),
            ("waiting", 'capture "shop" waits and retries, and waited 1 times since the last such row: no answer'),
            ("fenced", 'capture "shop" failed: a newer run has started'),
        ]


def test_only_a_dead_process_was_killed(tmp_path: Path, clock: Any) -> None:
    with closing(EmbeddedLog(tmp_path / "home", upkeep="manual", clock=clock)) as log:
        activity = CaptureActivity(log, "shop", "a database")
        for state, process in (("stopped", NOBODY), ("failed", NOBODY)):
            activity.found(CaptureStatus("shop", "a database", {}, state, "", process))
        activity.found(None)
        assert noted(log) == []
        activity.found(CaptureStatus("shop", "a database", {}, "waiting", "", NOBODY))
        assert [what for what, _ in noted(log)] == ["killed"]
