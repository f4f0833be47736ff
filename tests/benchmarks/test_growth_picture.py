"""The picture of growth is a picture, and the table has a row for each run."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import growth_picture
from benchmarks.measured_run import Measured

GROWTH = {
    (workers, partitions): Measured(
        rows=100_000, seconds=10 / workers, cpu_seconds=2.5, start_cpu_seconds=0, bytes_peak=0, bytes_read=0
    )
    for workers in (1, 2)
    for partitions in (2, 4, 8)
}


def test_the_table_says_how_fast_and_at_what_cost() -> None:
    lines = growth_picture.table(GROWTH).splitlines()
    assert lines[2:4] == ["| 2 | 1 | 10 | 25.0 |", "| 2 | 2 | 20 | 25.0 |"]
    assert len(lines) == 2 + len(GROWTH)


def test_the_picture_has_a_bar_for_each_run_and_the_fastest_is_the_highest() -> None:
    root = ElementTree.fromstring(growth_picture.picture(GROWTH))
    space = "{http://www.w3.org/2000/svg}"
    bars = [it for it in root.iter(f"{space}rect") if it.get("width") == str(growth_picture.BAR - 6)]
    heights = [int(bar.get("height", "0")) for bar in bars]
    assert len(bars) == len(GROWTH)
    assert heights[1] == 2 * heights[0] == max(heights)


def test_table_and_picture_take_the_place_of_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = growth_picture.PAGE.read_text()
    page = tmp_path / growth_picture.PAGE.name
    page.write_text(text)
    monkeypatch.setattr(growth_picture, "PAGE", page)
    monkeypatch.setattr(growth_picture, "PICTURE", tmp_path / growth_picture.PICTURE.name)
    for _ in range(2):
        growth_picture.write(GROWTH)
    written = page.read_text()

    assert written.count(growth_picture.table(GROWTH)) == written.count(growth_picture.SHOWN) == 1
    assert written.partition(growth_picture.BEGIN)[0] == text.partition(growth_picture.BEGIN)[0]
    assert growth_picture.PICTURE.read_text() == growth_picture.picture(GROWTH)
