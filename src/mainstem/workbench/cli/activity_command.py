"""`mainstem activity`: what happened in a home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.clock import as_us
from mainstem.durations import duration_us
from mainstem.errors import Invalid, NotFound, did_you_mean
from mainstem.workbench.cli.command_arguments import HomeOption, open_home, parse_moment
from mainstem.workbench.cli.json_output import AllColumnsOption, JsonOption, print_json
from mainstem.workbench.cli.terminal_table import Column, moment, show_table

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

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
        if not rows:
            _require_known(stem, of or [])
        if as_json:
            print_json(rows)
            return
        show_table(
            [Column("at", firm=True), Column("of"), Column("what", style="bold"), Column("in words"), Column("who")],
            (_cells(row) for row in rows),
            empty="nothing happened in that time",
            all_columns=all_columns,
        )


def _cells(row: dict[str, Any]) -> list[str]:
    said = " ".join(part for part in (f"{row['text']}.", row["detail"], row["hint"]) if part)
    return [moment(row["at"]), f"{row['subject']} {row['name']}", row["what"], said, row.get("who") or ""]


def _require_known(stem: Mainstem, names: list[str]) -> None:
    """Raises `NotFound` for a name that nothing in the home has, and nothing ever happened to."""
    from mainstem.log.activity import read_activity
    from mainstem.sinks.store_record import store_names
    from mainstem.workbench.cli.capture_facts import known_captures
    from mainstem.workbench.cli.flow_facts import known_flows

    known = {*stem.topics(), *stem.views(), *known_flows(stem), *store_names(stem.home), *known_captures(stem)}
    known |= {f"{topic}.{queue}" for topic in stem.topics() for queue in stem.topic(topic).queues()}
    for name in names:
        if name not in known and not any(read_activity(stem.log, 0, {name})):
            raise NotFound(
                f'there is nothing with the name "{name}" in this home',
                detail="No flow, topic, view, store, capture or queue has it, and nothing happened to one that had.",
                hint=did_you_mean(name, sorted(known)) or "Leave --of out to see everything.",
            )


def _parse_since(text: str, now: int) -> int:
    """The time, in microseconds; a duration goes back from now."""
    if any(letter in text for letter in ":T") and text[:4].isdigit():
        return as_us(parse_moment(text, "--since"))
    try:
        return now - duration_us(text, setting="--since")
    except Invalid as error:
        error.hint = f"{error.hint} Or give a time with a zone: --since 2026-01-01T09:00:00Z".strip()
        raise
