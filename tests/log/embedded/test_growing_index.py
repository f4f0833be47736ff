"""The index of the active segment, which grows while a log in use is verified."""

from __future__ import annotations

from pathlib import Path

import pytest

import mainstem
from mainstem.log.embedded.write.publisher import Publisher
from tests.log.embedded.upkeep_home import partition_of


def test_entries_for_blocks_behind_the_verified_end_are_no_damage(tmp_path: Path) -> None:
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        topic = stem.create_topic("notes", schema="text STRING")
        for number in range(4):
            topic.append([{"text": f"{number}" * 5000}])
        [index] = (tmp_path / "home" / "topics" / "notes" / "0").glob("*.index")
        entries = index.read_bytes()
        assert topic.verify().problems == []
        with index.open("ab") as file:
            file.write(entries[-8:])
        assert topic.verify().problems == []
        index.write_bytes(bytes([entries[0] ^ 1]) + entries[1:])
        assert [problem.what for problem in topic.verify().problems] == ["the index is damaged"]


@pytest.mark.parametrize("entries", [None, b"", b"12345678"])
def test_the_index_of_a_segment_that_is_not_published_yet_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: bytes | None
) -> None:
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        topic = stem.create_topic("notes", schema="text STRING")
        topic.append([{"text": "a"}])
        with monkeypatch.context() as held:
            held.setattr(Publisher, "publish", lambda *_: None)
            partition_of(topic).roll()
        _, index = sorted((tmp_path / "home" / "topics" / "notes" / "0").glob("*.index"))
        index.unlink()
        if entries is not None:
            index.write_bytes(entries)
        assert topic.verify().problems == []
