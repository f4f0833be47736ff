"""Rows on their way from a task to the driver: few of them as a value, many of them in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from mainstem.spark.columnar_rows import ColumnarRows, SendRows

ROW = pa.schema([("id", pa.int64()), ("text", pa.string())])
# Three of these are more than a value takes.
LONG = "x" * 400_000


def table(ids: range, text: str) -> pa.Table:
    return pa.table({"id": list(ids), "text": [f"{text}{number}" for number in ids]}, schema=ROW)


class Results:
    """The results of a batch, as Spark gives them."""

    def __init__(self, *results: Any) -> None:
        self._results = [bytes(memoryview(result)) for result in results]

    def toArrow(self) -> pa.Table:  # noqa: N802 - as Spark's frame
        return pa.table({"mainstem_read": [1] * len(self._results), "mainstem_result": self._results})


def read(*results: Any) -> pa.Table:
    frame: Any = Results(*results)
    return ColumnarRows(frame, ROW).to_table()


def test_few_rows_are_a_value(tmp_path: Path) -> None:
    folder = tmp_path / "sent"
    given = [table(range(3), "a"), table(range(3, 5), "b")]
    [result] = SendRows(str(folder)).run(iter(given))
    assert not folder.exists()
    assert read(result).equals(pa.concat_tables(given))
    assert list(SendRows(str(folder)).run(iter([]))) == []


def test_many_rows_are_in_a_file_which_is_removed_when_the_driver_has_it_mapped(tmp_path: Path) -> None:
    folder = tmp_path / "sent"
    given = [table(range(number, number + 1), LONG) for number in range(7)]
    [result] = SendRows(str(folder)).run(iter(given))
    [file] = folder.iterdir()
    assert (bytes(memoryview(result)), file.stat().st_mode & 0o777) == (str(file).encode(), 0o600)
    few = [table(range(7, 9), "c")]
    [value] = SendRows(str(folder)).run(iter(few))
    rows = read(result, value)
    assert list(folder.iterdir()) == []
    assert rows.equals(pa.concat_tables([*given, *few]))


def test_without_a_folder_all_rows_are_values() -> None:
    given = [table(range(number, number + 1), LONG) for number in range(7)]
    results = list(SendRows().run(iter(given)))
    assert len(results) == 7
    assert read(*results).equals(pa.concat_tables(given))
