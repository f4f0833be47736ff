"""The index of the active segment, which grows while a log in use is verified."""

from __future__ import annotations

from pathlib import Path

import mainstem


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
