"""Which rows of a table a topic can take, and what is wrong with the others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mainstem.errors import InvalidRows
from mainstem.log.rows import check_rows
from mainstem.log.topic_settings import TopicSettings
from mainstem.log_on_spark.rejected_rows import Rejection

__all__ = ["fitting_rows"]


def fitting_rows(table: pa.Table, settings: TopicSettings) -> tuple[pa.Table, list[Rejection]]:
    """The rows that fit, and the others by their number, with the reason for each.

    A check tells of one row that does not fit. So the table is halved until every part fits or is one row: that costs
    nothing where all fit, as it nearly always is, and little where few do not.

    >>> settings = TopicSettings.of("t", schema="n TINYINT")
    >>> rows, rejections = fitting_rows(pa.table({"n": pa.array([1, 300, 2], pa.int64())}), settings)
    >>> rows.column("n").to_pylist(), rejections
    ([1, 2], [Rejection(row=1, reason='300 does not fit column "n", which is TINYINT')])
    """
    rejections = []
    parts = [(0, len(table))]
    while parts:
        first, count = parts.pop()
        try:
            check_rows(table.slice(first, count), settings)
        except InvalidRows as error:
            if count > 1:
                half = count // 2
                parts += [(first + half, count - half), (first, half)]
                continue
            # "row 0: 300 does not fit ...": which row it is of those that were looked at helps nobody.
            reason = error.summary.removeprefix("row 0: ").removeprefix("row 0 ")
            rejections.append(Rejection(first, reason))
    if not rejections:
        return table, rejections
    fit = np.ones(len(table), dtype=np.bool_)
    fit[[rejection.row for rejection in rejections]] = False
    return table.filter(pa.array(fit)), rejections
