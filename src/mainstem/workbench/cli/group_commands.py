"""`mainstem group`: the reader groups of a topic, and their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.workbench.cli.command_arguments import (
    POSITION_HELP,
    HomeOption,
    OnlyTopicArgument,
    TopicArgument,
    open_home,
    parse_position,
)
from mainstem.workbench.cli.command_tree import new_noun
from mainstem.workbench.cli.json_output import JsonOption, print_json, print_outcome
from mainstem.workbench.cli.list_entry import entries_by_topic, json_entry, table_row
from mainstem.workbench.cli.terminal_table import (
    LAG_COLUMNS,
    Column,
    about_duration,
    lag_cells,
    show_count,
    show_facts,
    show_table,
)

if TYPE_CHECKING:
    from mainstem.log.groups.reader_group import GroupDescription

__all__ = ["app"]

app = new_noun()

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]


@app.command("list")
def list_groups(
    topic: OnlyTopicArgument = None,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the groups of a topic, or of all topics.

    Example: mainstem group list orders
    """
    with open_home(home) as stem:
        found = entries_by_topic(
            stem, topic, "group", lambda topic: topic.groups(), lambda topic, name: topic.group(name).describe()
        )
        if as_json:
            print_json([json_entry(it, _to_json) for it in found])
            return
        show_table(
            [Column("topic"), Column("group", style="bold"), Column("members", "right"), *LAG_COLUMNS],
            (table_row(it, lambda it: [it.topic, it.name, str(len(it.members)), *lag_cells(it.lag)]) for it in found),
            empty="no groups yet",
        )


def _to_json(it: GroupDescription) -> dict[str, Any]:
    return {
        "topic": it.topic,
        "group": it.name,
        "generation": it.generation,
        "members": it.members,
        "partitions": it.partitions,
        "lag": it.lag,
    }


@app.command()
def describe(
    topic: TopicArgument, group: GroupArgument, *, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Describe a group: its members, their partitions, and its lag.

    Example: mainstem group describe orders billing
    """
    with open_home(home) as stem:
        facts = stem.topic(topic).group(group).describe()
        if as_json:
            print_json(_to_json(facts))
            return
        show_facts([("group", facts.name), ("topic", facts.topic), ("generation", str(facts.generation))])
        typer.echo()
        show_table(
            [Column("member", style="bold"), Column("pid", "right", spared=2), Column("partitions"), Column("session"),
             Column("last heartbeat")],
            (
                [
                    it.id, "" if it.pid is None else str(it.pid), ", ".join(map(str, it.partitions)) or "none",
                    about_duration(it.session),
                    "" if it.silent_for is None else f"{about_duration(it.silent_for)} ago",
                ]
                for it in facts.members
            ),
            empty="no members now",
        )  # fmt: skip
        typer.echo()
        show_table(
            [Column("partition", "right"), Column("member"), Column("committed", "right"), *LAG_COLUMNS],
            (
                [str(it.partition), _owner(it.member, it.next_member), show_count(it.committed), *lag_cells(it.lag)]
                for it in facts.partitions
            ),
            empty="no partitions yet",
        )


def _owner(member: str | None, following: str | None) -> str:
    return f"{member or 'none'}, then {following}" if following and following != member else member or "none"


@app.command()
def reset(
    topic: TopicArgument,
    group: GroupArgument,
    *,
    to: Annotated[str, typer.Option(help=f"The new position: {POSITION_HELP}.")],
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Set the offsets of a group, which must have no active members.

    Example: mainstem group reset orders billing --to 2026-01-01T09:00:00Z
    """
    with open_home(home) as stem:
        found = stem.topic(topic).group(group)
        offsets = found.reset(parse_position(to, "--to"))
        shown = ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))
        said = f"group {group} of {topic} continues from {shown}"
        print_outcome("reset", said, as_json=as_json, **(_to_json(found.describe()) if as_json else {}))
