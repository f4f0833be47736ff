"""`mainstem compare`: how two tables differ, wherever they are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.durations import duration_us
from mainstem.errors import NotFound, did_you_mean
from mainstem.sinks.store_record import store_names
from mainstem.workbench.cli.command_arguments import HomeOption, open_home
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.program_file import ProgramFile, load_captures, load_program
from mainstem.workbench.cli.rebuild_command import value_text
from mainstem.workbench.cli.terminal_table import Column, about_duration, show_count, show_table

if TYPE_CHECKING:
    from mainstem.flows.compared_tables import ComparedTable, Comparison
    from mainstem.stem import Mainstem

__all__ = ["compare"]

KINDS = ("topic", "view", "store", "files", "table")
# Between two comparisons of `--watch`.
EVERY_SECONDS = 1.0

TableArgument = Annotated[
    str,
    typer.Argument(
        help="topic:orders, view:revenue, store:postgres.products, files:out/orders, or table:shop.orders, the table of a "
        "capture in its database. The kind may be left out for topics, views and stores."
    ),
]


def compare(
    first: TableArgument,
    second: TableArgument,
    *,
    program: Annotated[
        str | None,
        typer.Option("--program", metavar="PROGRAM.py", help="The program that has the stores or captures."),
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", help="A column of the key, if the tables do not say.")
    ] = None,
    wait: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to wait for a side that is behind.")
    ] = "10 seconds",
    watch: Annotated[
        bool, typer.Option("--watch", help="Compare again and again; tell when they differ, and for how long.")
    ] = False,
    during: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="With --watch: end after this time.")
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Compare two tables by key. Exit status: 0 if they are equal, 1 if not.

    Of a topic the latest row of each key counts. Tables that say up to where they have applied the same topics are compared
    at one position. In others a key differs if it stays so: one of them may only be behind.

    Example: mainstem compare topic:shop.products store:postgres.products --program shop.py
    """
    from mainstem.flows.compared_tables import compare_tables

    seconds = duration_us(wait, setting="--wait") / 1_000_000
    with open_home(home) as stem:
        named = _Tables(stem, program)
        sides = named.find(first), named.find(second)
        if watch:
            limit = None if during is None else duration_us(during, setting="--for") / 1_000_000
            differed = _watch(*sides, key=key or (), limit=limit, as_json=as_json)
            raise typer.Exit(1 if differed else 0)
        found = compare_tables(*sides, key=key or (), wait_seconds=seconds)
    if as_json:
        print_json(_json(found))
    else:
        _show(found)
    if not found.equal:
        raise typer.Exit(1)


class _Tables:
    """Finds tables by what a user calls them."""

    def __init__(self, stem: Mainstem, program: str | None) -> None:
        self._stem = stem
        self._program = program
        self._stores: dict[str, Any] | None = None

    def find(self, name: str) -> ComparedTable:
        from mainstem.flows.compared_tables import table_to_compare

        kind, _, rest = name.partition(":")
        if kind not in KINDS or not rest:
            kind, rest = self._guess(name), name
        if kind == "topic":
            return table_to_compare(self._stem.topic(rest))
        if kind == "view":
            return table_to_compare(self._stem.view(rest))
        if kind == "files":
            return table_to_compare(self._stem.files(rest))
        if kind == "store":
            return table_to_compare(_pick("store", rest, self._all_stores(), self._program))
        return self._captured(rest)

    def _guess(self, name: str) -> str:
        """The kind of a name without one."""
        found = [
            kind
            for kind, names in (
                ("topic", self._stem.topics()),
                ("view", self._stem.views()),
                ("store", self._all_stores()),
            )
            if name in names
        ]
        if len(found) == 1:
            return found[0]
        known = [*self._stem.topics(), *self._stem.views(), *self._all_stores()]
        raise NotFound(
            f'"{name}" is the name of a {" and of a ".join(found)}'
            if found
            else f'there is no topic, view or store "{name}"',
            detail=f"There are: {', '.join(sorted(set(known))) or 'none'}."
            + ("" if self._program else " Stores and captured tables need --program."),
            hint=f"Say which one: {found[0]}:{name}" if found else did_you_mean(name, known) or self._way(name),
        )

    def _way(self, name: str) -> str:
        """What to do about a name that is not known."""
        if self._program is not None:
            return "Give a kind and a name, such as topic:orders, view:revenue, files:out/orders."
        if name in store_names(self._stem.home):
            return f"It is a store: name the program that has it, --program FILE, and the store as store:{name}."
        return "A store or a captured table needs the program that has it: --program FILE. Or give a kind and a name, such as files:out/orders."

    def _all_stores(self) -> dict[str, Any]:
        if self._stores is None:
            from mainstem.workbench.cli.before_spark import sinks_of

            file = None if self._program is None else _program(self._program)
            sinks = [] if file is None else sinks_of(self._stem, file)
            self._stores = {sink.name: sink for sink in sinks if sink.kind == "store"}
        return self._stores

    def _captured(self, name: str) -> ComparedTable:
        from mainstem.capture.capture import captures_of
        from mainstem.flows.compared_tables import CapturedTableRows

        tables: dict[str, Any] = {}
        if self._program is not None:
            file = load_captures(self._program)
            assert file.captures is not None
            with file.locate_errors():
                for capture in captures_of(self._stem, file.captures):
                    tables |= {f"{capture.name}.{table}": (capture, table) for table in capture.topics}
        capture, table = _pick("captured table", name, tables, self._program)
        return CapturedTableRows(capture, table, self._stem.log, self._stem.home)


def _program(path: str) -> ProgramFile:
    return load_program(path)


def _pick(kind: str, name: str, known: Mapping[str, Any], program: str | None) -> Any:
    if name in known:
        return known[name]
    raise NotFound(
        f'there is no {kind} "{name}"' + ("" if program else " without a program"),
        detail=f"The program has: {', '.join(known) or 'none'}." if program else "A program says how it is reached.",
        hint=did_you_mean(name, known)
        or ("Name one of these." if program else "Name the program that has it: --program FILE"),
    )


# What is shown


def _show(found: Comparison) -> None:
    state = "are equal" if found.equal else "differ"
    how = ", at one position" if found.at_one_position else ""
    typer.echo(f"{found.first} and {found.second} {state}{how}: {_counts(found)}")
    if found.left_out:
        typer.echo(f"not compared, since only one has them: {', '.join(found.left_out)}")
    rows = []
    for one in found.differences:
        names = [name for name in dict.fromkeys([*(one.first or {}), *(one.second or {})]) if name not in one.key]
        shown = ", ".join(value_text(value) for value in one.key.values())
        if one.first is None or one.second is None:
            rows.append([shown, "(row)", _row(one.first), _row(one.second)])
            continue
        rows += [
            [shown, name, value_text(one.first.get(name)), value_text(one.second.get(name))]
            for name in names
            if name not in found.left_out and one.first.get(name) != one.second.get(name)
        ]
    if rows:
        show_table([Column("key", style="bold"), Column("column"), Column(found.first), Column(found.second)], rows)
    shown_keys, all_keys = len(found.differences), found.changed + found.only_first + found.only_second
    if shown_keys < all_keys:
        typer.echo(f"... and {show_count(all_keys - shown_keys)} more")


def _row(row: Mapping[str, Any] | None) -> str:
    return "none" if row is None else value_text(row)


def _counts(found: Comparison) -> str:
    parts = [
        f"{show_count(found.same)} same",
        f"{show_count(found.changed)} different",
        f"{show_count(found.only_first)} only in the first",
        f"{show_count(found.only_second)} only in the second",
    ]
    if found.undecided:
        parts.append(f"{show_count(found.undecided)} undecided, which changed all the time")
    return ", ".join(parts)


def _json(found: Comparison) -> dict[str, Any]:
    from mainstem.log.rows.plain_values import python_value

    return {
        "first": found.first,
        "second": found.second,
        "equal": found.equal,
        "at_one_position": found.at_one_position,
        "same": found.same,
        "changed": found.changed,
        "only_first": found.only_first,
        "only_second": found.only_second,
        "undecided": found.undecided,
        "left_out": list(found.left_out),
        "differences": [
            {"key": python_value(dict(one.key)), "first": python_value(one.first), "second": python_value(one.second)}
            for one in found.differences
        ],
    }


def _watch(first: ComparedTable, second: ComparedTable, *, key: Any, limit: float | None, as_json: bool) -> bool:
    """Tell of each change between equal and different; whether they ever differed."""
    from mainstem.flows.compared_tables import compare_tables

    begun, since, differed = time.monotonic(), None, False
    while True:
        found = compare_tables(first, second, key=key, wait_seconds=0)
        now = time.monotonic()
        if not found.equal and since is None:
            since, differed = now, True
            _tell(found, "differ", _counts(found), as_json=as_json)
        elif found.equal and since is not None:
            _tell(
                found, "equal again", f"they differed for {about_duration(now - since)}", now - since, as_json=as_json
            )
            since = None
        if limit is not None and now - begun >= limit:
            if since is not None:
                _tell(found, "still differ", f"for {about_duration(now - since)}", now - since, as_json=as_json)
            elif not differed:
                _tell(found, "equal", "all the time", as_json=as_json)
            return differed
        time.sleep(EVERY_SECONDS)


def _tell(found: Comparison, state: str, said: str, seconds: float | None = None, *, as_json: bool) -> None:
    if as_json:
        print_json({"state": state, "seconds": seconds, **_json(found)})
        return
    first = f"; first: {value_text(dict(found.differences[0].key))}" if found.differences else ""
    typer.echo(f"{time.strftime('%H:%M:%S')}  {state}: {said}{first}")
