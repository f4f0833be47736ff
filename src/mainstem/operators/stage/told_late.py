"""Rows that came too late, as people see them: under the names that they know, and with times as times."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mainstem.log.watermark import NO_TIME
from mainstem.operators.stage.arrow_columns import whole
from mainstem.operators.stage.engine import NEVER
from mainstem.operators.stage.stage import StageSpec

__all__ = ["told_late"]

TIME = pa.timestamp("us", "UTC")
# What engines have as microseconds. A user's columns are by_0, ... there, so none of them has such a name.
_TIMES = ("time", "watermark", "window_start", "window_end")


def told_late(rows: pa.Table, spec: StageSpec) -> pa.Table:
    """What an engine gave as late. The engine's own columns stay as they are: a user's "offset" becomes "offset_"."""
    for place, column in enumerate(rows.schema):
        if column.name in _TIMES and column.type == pa.int64():
            rows = rows.set_column(place, column.name, _times(whole(rows.column(place))))
    taken = {name for name in rows.schema.names if name not in spec.late_names}
    names = []
    for name in rows.schema.names:
        shown = spec.late_names.get(name, name)
        while name in spec.late_names and shown in taken:
            shown += "_"
        names.append(shown)
    return rows.rename_columns(names)


def _times(microseconds: pa.Array) -> pa.Array:
    """A window of all time has no end, and a row without a watermark has none."""
    values = np.asarray(microseconds.fill_null(NO_TIME))
    return pa.array(values, mask=(values == NO_TIME) | (values >= NEVER // 2)).view(TIME)
