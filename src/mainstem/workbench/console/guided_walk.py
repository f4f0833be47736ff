"""GuidedWalk: steps through which the page leads a visitor, ticked off by what happened in the home.

Whoever starts the console gives them as a file in JSON (`--walk`):

    {"title": "Streaming in two minutes", "steps": [
      {"title": "Rows come in", "text": "Each order is a record.", "link": "#/topics/orders",
       "sql": "SELECT count(*) > 0 AS done, count(*) || ' orders' AS said FROM orders"},
      {"title": "Killed", "text": "The run is killed.", "link": "#/flows/revenue", "sql": "SELECT ...",
       "action": {"name": "kill", "label": "Kill it", "body": {"flow": "revenue"}}},
      {"title": "Back in time", "text": "Drag the slider.", "link": "#/", "address": "at"}]}

    sql         one row: whether it is done, and what is said about it. Without a row, or with an error because a topic or a view
                does not exist yet, it is not done. Asked while somebody looks, until it is done
    address     done as soon as the address of a page has this word after "?": the page itself knows
    action      a button, if the visitor may take that action
"""

from __future__ import annotations

import secrets
import threading
from typing import Any

import msgspec

from mainstem.errors import Invalid, MainstemError
from mainstem.workbench.console.console_actions import ACTIONS
from mainstem.workbench.console.sql_answer import SqlAnswers

__all__ = ["GuidedWalk", "Walk", "read_walk"]

# So old an answer may be, however many pages ask.
AGE_US_MAX = 900_000


class WalkAction(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A button of a step: the action of the console, and what it is asked with."""

    name: str
    label: str
    body: dict[str, Any]


class WalkStep(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One step; it has `sql` or `address`."""

    title: str
    text: str
    link: str
    sql: str = ""
    address: str = ""
    action: WalkAction | None = None


class Walk(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The steps in their order."""

    title: str = ""
    steps: tuple[WalkStep, ...] = ()


def read_walk(path: str) -> Walk:
    """The walk in a file."""
    try:
        with open(path, "rb") as file:
            walk = msgspec.json.decode(file.read(), type=Walk)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(path, f"{error}") from error
    for step in walk.steps:
        if not step.link.startswith("#/"):
            raise _refused(path, f"The link of the step {step.title!r} is not a page of the console.")
        if bool(step.sql) == bool(step.address):
            raise _refused(path, f"The step {step.title!r} has not one of `sql` and `address`.")
        if step.action is not None and step.action.name not in ACTIONS:
            raise _refused(path, f"{step.action.name!r} of the step {step.title!r} is no action.")
    return walk


def _refused(path: str, detail: str) -> Invalid:
    return Invalid(
        f'"{path}" is not a walk',
        detail=detail,
        hint="A step has title, text, a link that begins with #/, and sql or address; see docs/internals/console.md.",
    )


class GuidedWalk:
    """The steps as they are now. Thread-safe."""

    def __init__(self, walk: Walk, queries: SqlAnswers, clock: Any) -> None:
        self._walk = walk
        self._queries = queries
        self._clock = clock
        self._guard = threading.Lock()
        self._looked_at: int | None = None
        self._states: list[dict[str, Any]] = [{"done": False, "said": "", "waits": ""} for _ in walk.steps]
        # Another start of the console is another walk: what a browser remembers of the last one does not count.
        self._id = secrets.token_hex(4)

    def answer(self) -> dict[str, Any]:
        """The object of `/api/walk`."""
        with self._guard:
            now = self._clock.monotonic()
            if self._looked_at is None or now - self._looked_at > AGE_US_MAX:
                self._look()
                self._looked_at = self._clock.monotonic()
            steps = [self._shown(step, state) for step, state in zip(self._walk.steps, self._states, strict=True)]
        return {"id": self._id, "title": self._walk.title, "steps": steps}

    def _shown(self, step: WalkStep, state: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in msgspec.to_builtins(step).items() if name != "sql"}
        return {**given, **state}

    def _look(self) -> None:
        for step, state in zip(self._walk.steps, self._states, strict=True):
            if step.sql and not state["done"]:
                try:
                    rows = self._queries.answer(step.sql)["rows"]
                except MainstemError as error:
                    # What it asks for does not exist yet, cannot be read now, or is no SQL.
                    state["waits"] = error.summary
                    continue
                row = rows[0] if rows else {}
                state.update(done=row.get("done") is True, said=str(row.get("said") or ""), waits="")
