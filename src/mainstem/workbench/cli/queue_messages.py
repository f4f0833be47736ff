"""The messages of a queue that are held, delayed, parked or rejected, each with what is known of it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from mainstem.workbench.cli.terminal_table import Column, moment, show_table

if TYPE_CHECKING:
    from mainstem.log.queues.queue import Queue

__all__ = ["open_messages", "show_messages"]

# Of each kind.
SHOWN_MAX = 100

Messages = dict[str, list[dict[str, Any]]]


def open_messages(queue: Queue) -> Messages:
    """Up to `SHOWN_MAX` messages of each kind: of the rejected ones the last, of the others the oldest."""
    idle = queue.parked().to_pylist()
    return {
        "held": [_with_position(row) for row in queue.held().slice(0, SHOWN_MAX).to_pylist()],
        "delayed": [_with_position(row) for row in idle if row["waits_for"] == "delay"][:SHOWN_MAX],
        "parked": [_with_position(row) for row in idle if row["waits_for"] == "key"][:SHOWN_MAX],
        "rejected": _rejected(queue),
    }


def _with_position(row: dict[str, Any]) -> dict[str, Any]:
    return {"position": f"{row['partition']}:{row['offset']}", **row}


def _rejected(queue: Queue) -> list[dict[str, Any]]:
    from mainstem.log.rows.plain_values import column_values, plain_writer

    rows = queue.rejected(SHOWN_MAX).drop_columns(["record"])
    *columns, struct = [column_values(rows[field.name], plain_writer(field.type)) for field in rows.schema]
    names = rows.schema.names[:-1]
    found = []
    for number, rejection in enumerate(struct):
        kept = {name: value for name, value in rejection.items() if name not in ("topic", "queue")}
        row = {name: column[number] for name, column in zip(names, columns, strict=True)}
        found.append({**_with_position(kept), "row": row})
    return found


def show_messages(messages: Messages) -> None:
    """A table of each kind that has any."""
    shown = {
        "held": (
            [Column("position", style="bold"), Column("key"), Column("delivery", "right"), Column("held by"),
             Column("since", firm=True), Column("until", firm=True), Column("last error", spared=1)],
            [[it["position"], it["key"] or "", str(it["deliveries"]), _holder(it), moment(it["taken_at"], none="unknown"), moment(it["held_until"]),
              _line(it["last_error"])] for it in messages["held"]],
        ),
        "delayed": (
            [Column("position", style="bold"), Column("key"), Column("deliveries", "right"), Column("due", firm=True), Column("last error")],
            [[it["position"], it["key"] or "", str(it["deliveries"]), moment(it["due_at"]), _line(it["last_error"])]
             for it in messages["delayed"]],
        ),
        "parked": (
            [Column("position", style="bold"), Column("key"), Column("appended", firm=True)],
            [[it["position"], it["key"] or "", moment(it["appended_at"])] for it in messages["parked"]],
        ),
        "rejected": (
            [Column("position", style="bold"), Column("cause"), Column("reason"), Column("deliveries", "right"),
             Column("rejected", firm=True), Column("last error", spared=1)],
            [[it["position"], it["cause"], _line(it["reason"]), str(it["deliveries"]), moment(datetime.fromisoformat(it["rejected_at"])), _line(it["last_error"])]
             for it in messages["rejected"]],
        ),
    }  # fmt: skip
    for kind, (columns, rows) in shown.items():
        if rows:
            typer.echo(f"\n{kind}")
            show_table(columns, rows)


def _holder(message: dict[str, Any]) -> str:
    if message["pid"] is None:
        return "lease"
    return f"process {message['pid']}" + (f" ({message['process']})" if message["process"] else "")


def _line(text: str | None) -> str:
    """The first line of an error: the others are its stack trace."""
    return (text or "").partition("\n")[0]
