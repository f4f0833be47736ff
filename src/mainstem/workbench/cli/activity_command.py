"""`mainstem activity`: what happened in a home."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mainstem.clock import as_us
from mainstem.durations import duration_us
from mainstem.errors import Invalid
from mainstem.workbench.cli.command_arguments import HomeOption, open_home, parse_moment
from mainstem.workbench.cli.json_output import AllColumnsOption, JsonOption, print_json
from mainstem.workbench.cli.terminal_table import Column, moment, show_table

__all__ = ["activity"]


def activity(
    *,
    since: Annotated[
        str, typer.Option(metavar="DURATION|TIME", help='How far back: "1 hour", or a time with a zone.')
    ] = "1 day",
    of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only of this flow, topic, view or store, or queue (TOPIC.QUEUE); may be repeated."
        ),
    ] = None,
    as_json: JsonOption = False,
    all_columns: AllColumnsOption = False,
    home: HomeOption = None,
) -> None:
    """Show what happened in a home (events, audit log), newest last: runs that began, ended, failed or were killed, waits,
    versions that were put to use, topics that were altered, queues that were rewound.

    It reads the topic mainstem.activity, which keeps 90 days. Runs that were killed since are added to it.

    Example: mainstem activity --since "1 hour" --of revenue
    """
    with open_home(home) as stem:
        # They pull in Arrow.
        from mainstem.flows.flow_activity import note_killed
        from mainstem.log.activity import read_activity

        start = _parse_since(since, stem.log.clock.now())
        note_killed(stem.log, stem.home)
        rows = list(read_activity(stem.log, start, set(of or ())))
        if as_json:
            print_json(rows)
            return
        show_table(
            [Column("at", firm=True), Column("of"), Column("what", style="bold"), Column("in words")],
            (_cells(row) for row in rows),
            empty="nothing happened in that time",
            all_columns=all_columns,
        )


def _cells(row: dict[str, Any]) -> list[str]:
    said = " ".join(part for part in (f"{row['text']}.", row["detail"], row["hint"]) if part)
    return [moment(row["at"]), f"{row['subject']} {row['name']}", row["what"], said]


def _parse_since(text: str, now: int) -> int:
    """The time, in microseconds; a duration goes back from now."""
    if any(letter in text for letter in ":T") and text[:4].isdigit():
        return as_us(parse_moment(text, "--since"))
    try:
        return now - duration_us(text, setting="--since")
    except Invalid as error:
        error.hint = f"{error.hint} Or give a time with a zone: --since 2026-01-01T09:00:00Z".strip()
        raise
