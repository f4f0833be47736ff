"""RowExplanation: why a row of a view is as it is, as `view.why` returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from mainstem.views.view_history import AsOf

__all__ = ["Explain", "RowExplanation", "ShownRow"]


@dataclass(frozen=True)
class ShownRow:
    """The row as it was shown from a time on: `change` is insert, update or delete; `row` is None after a delete.

    `at` and `batch` are None if they are not known any more, `batch` also for a switch to another version.
    """

    change: str
    row: Mapping[str, Any] | None
    at: datetime | None
    batch: int | None


@dataclass(frozen=True)
class RowExplanation:
    """Why a row of a view is as it is.

    `row` is the row, None if there is none; `shown` the values it had, the first one first. `exact`: whether `records` are the
    records that the row was made of: the flow over just these gives that row. If not, `because` says why, and `ranges` are the
    offsets of the batch that changed the row, by topic and partition (the last one not included); records of other rows are
    among them.

    `records` has a table for each topic, with `record` as its last column. It is a page: `total` is the number of all records, and
    `after` the position to read the next page with, None if no record follows.
    """

    view: str
    flow: str | None
    key: Mapping[str, Any]
    row: Mapping[str, Any] | None
    exact: bool
    because: str
    shown: Sequence[ShownRow] = ()
    records: Mapping[str, pa.Table] = field(default_factory=dict)
    ranges: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    total: int = 0
    after: str | None = None


class Explain(Protocol):
    """Explains a row of a view; given by what knows the flows and the log."""

    def __call__(self, view: Any, key: Any, *, as_of: AsOf | None, limit: int, after: str | None) -> RowExplanation: ...
