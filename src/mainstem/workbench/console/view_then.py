"""A view as it was at a time, if it keeps history: its rows, its live version, and how far behind it was."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainstem.clock import as_datetime, as_us
from mainstem.log.lag import Lag
from mainstem.views.view_history import position_as_of
from mainstem.workbench.cli.list_entry import Unreadable, try_look
from mainstem.workbench.cli.view_commands import version_json, view_json
from mainstem.workbench.console.flow_then import PastRows, flow_then

if TYPE_CHECKING:
    from mainstem.stem import Mainstem
    from mainstem.views.view import View

__all__ = ["ViewThen", "view_then", "view_then_json"]


@dataclass(frozen=True)
class ViewThen:
    """A view at a time. `applied_at` is the commit of its last change."""

    rows: int
    version: int
    batch: int | None
    applied_at: datetime | None
    lag: Lag
    flow: str | None


def view_then(stem: Mainstem, view: View, past: PastRows) -> ViewThen:
    """Raises `Invalid` if the view keeps no history, `FellOff` if it no longer has that time."""
    now, at = stem.log.clock.now(), as_us(past.at)
    with view.snapshot() as snapshot:
        position = position_as_of(snapshot, past.at, view=view.name, now=now)
        rows, commit, flow = snapshot.count(position), snapshot.last_commit(at), snapshot.progress()[0]
        # A version that became live after that position serves the changes from the next one on.
        version = [it.version for it in snapshot.facts.history if it.after < max(position, 1)][-1]
    facts = None if flow is None else try_look({}, flow_then, stem, flow, past)
    lag = Lag() if facts is None or isinstance(facts, Unreadable) else facts.lag
    applied_at = None if commit is None else as_datetime(commit.at)
    return ViewThen(rows, version, None if commit is None or commit.batch < 0 else commit.batch, applied_at, lag, flow)


def view_then_json(stem: Mainstem, view: View, past: PastRows) -> dict[str, Any]:
    """The object of `mainstem view describe --json` as it was. What has no history is null: bytes, and rows of other versions."""
    then, facts = view_then(stem, view, past), view.describe()
    return {
        **view_json(facts, then.lag),
        "then": True,
        "live": then.version,
        "rows": then.rows,
        "bytes": None,
        "batch": then.batch,
        "applied_at": then.applied_at,
        "offsets": None,
        "all_versions": [
            {
                "version": it.number, **version_json(it), "live": it.number == then.version,
                "rows": then.rows if it.number == then.version else None, "bytes": None, "lag": None,
            }
            for it in view.versions()
            if it.created_at <= past.at
        ],
    }  # fmt: skip
