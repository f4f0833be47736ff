"""`mainstem view`: the keyed tables that flows maintain."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.errors import Invalid, NotFound, did_you_mean
from mainstem.workbench.cli.command_arguments import (
    AsOfOption,
    HomeOption,
    ViewArgument,
    YesOption,
    confirm,
    open_home,
    open_view,
    parse_as_of,
    split_words,
)
from mainstem.workbench.cli.command_tree import new_noun
from mainstem.workbench.cli.json_output import AllColumnsOption, JsonOption, RowsJsonOption, print_json, print_outcome
from mainstem.workbench.cli.list_entry import json_entry, table_row, try_look
from mainstem.workbench.cli.rebuild_command import rebuild
from mainstem.workbench.cli.row_format import RowFormat, chosen_format
from mainstem.workbench.cli.terminal_table import (
    LAG_COLUMNS,
    Column,
    about_duration,
    about_size,
    is_terminal,
    lag_cells,
    moment,
    show_count,
    show_facts,
    show_note,
    show_table,
)
from mainstem.workbench.cli.view_changes_commands import difference, history
from mainstem.workbench.cli.view_check_command import check
from mainstem.workbench.cli.why_command import why

if TYPE_CHECKING:
    import pyarrow as pa

    from mainstem.log.lag import Lag
    from mainstem.stem import Mainstem
    from mainstem.views.view import View, ViewDescription, ViewVersion
    from mainstem.views.view_history import AsOf

__all__ = ["app", "version_json", "version_lag", "view_facts", "view_json"]

app = new_noun()


@app.command("list")
def list_views(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the views: their rows, the flow that writes them, and their lag.

    Example: mainstem view list
    """
    with open_home(home) as stem:
        found = [try_look({"view": name}, view_facts, stem, name) for name in stem.views()]
        if as_json:
            print_json([json_entry(it, lambda it: view_json(*it)) for it in found])
            return
        show_table(
            [
                Column("view", style="bold"), Column("key"), Column("rows", "right"), Column("on disk", "right", spared=3),
                Column("live", "right", spared=2), Column("versions", spared=2), Column("flow"), Column("last change", firm=True, spared=1), *LAG_COLUMNS,
            ],
            (table_row(it, lambda it: _list_row(*it)) for it in found),
            empty="no views yet",
        )  # fmt: skip


def view_facts(stem: Mainstem, name: str) -> tuple[ViewDescription, Lag]:
    with open_view(stem, name) as view:
        facts = view.describe()
        return facts, version_lag(stem, facts.live)


def _list_row(facts: ViewDescription, lag: Lag) -> list[str]:
    return [
        facts.name, ", ".join(facts.key), show_count(facts.live.rows), about_size(facts.live.bytes),
        str(facts.live.number), ", ".join(map(str, facts.versions)), facts.live.flow or "",
        moment(facts.live.applied_at), *lag_cells(lag),
    ]  # fmt: skip


def version_lag(stem: Mainstem, version: ViewVersion) -> Lag:
    """The lag of a version behind its topics."""
    from mainstem.errors import TopicNotFound
    from mainstem.log.lag import Lag

    parts = []
    for topic, ends in version.offsets.items():
        try:
            backend = stem.log.open_topic(topic)
        except TopicNotFound:
            continue
        parts += [backend.behind(partition, end) for partition, end in ends.items()]
    return Lag.total(parts)


def view_json(facts: ViewDescription, lag: Lag) -> dict[str, Any]:
    return {
        "view": facts.name,
        "key": list(facts.key),
        "live": facts.live.number,
        "versions": list(facts.versions),
        **version_json(facts.live),
        "first_position": facts.first_position,
        "last_position": facts.last_position,
        "history_seconds": None if facts.history is None else facts.history.total_seconds(),
        "history_since": facts.history_since,
        "lag": lag,
        "path": facts.path,
    }


def version_json(version: ViewVersion) -> dict[str, Any]:
    return {
        "rows": version.rows,
        "bytes": version.bytes,
        "schema": version.ddl,
        "created_at": version.created_at,
        "flow": version.flow,
        "epoch": version.epoch,
        "batch": None if version.batch < 0 else version.batch,
        "applied_at": version.applied_at,
        "offsets": {topic: dict(ends) for topic, ends in version.offsets.items()},
    }


@app.command()
def describe(view: ViewArgument, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Describe a view: its key and columns, the flow that writes it, and the offsets applied from each topic.

    Example: mainstem view describe revenue
    """
    with open_home(home) as stem, open_view(stem, view) as opened:
        facts = opened.describe()
        lag = version_lag(stem, facts.live)
        if as_json:
            print_json(view_json(facts, lag))
            return
        live = facts.live
        show_facts(
            [
                ("view", facts.name),
                ("key", ", ".join(facts.key)),
                ("columns", live.ddl),
                ("rows", f"{show_count(live.rows)}, {about_size(live.bytes)}"),
                ("live version", f"{live.number} of {', '.join(map(str, facts.versions))}"),
                ("flow", live.flow or "none"),
                ("last batch", "none" if live.batch < 0 else f"{live.batch}, {moment(live.applied_at)}"),
                ("changes kept", f"{show_count(facts.last_position - facts.first_position)}"),
                ("history", _history(facts)),
                ("kept in", live.location),
            ]
        )
        typer.echo()
        show_table(
            [Column("topic"), Column("partition", "right"), Column("applied up to", "right"), *LAG_COLUMNS],
            _applied_rows(stem, live),
            empty="nothing is applied yet",
        )


def _history(facts: ViewDescription) -> str:
    """The retention of its history, and how far back it goes."""
    if facts.history is None or facts.history_since is None:
        return "not kept"
    return f"{about_duration(facts.history)}, since {moment(facts.history_since)}"


def _applied_rows(stem: Mainstem, version: ViewVersion) -> list[list[str]]:
    rows = []
    for topic, ends in sorted(version.offsets.items()):
        known = topic in stem.topics()
        for partition, end in sorted(ends.items()):
            lag = stem.log.open_topic(topic).behind(partition, end) if known else None
            rows.append(
                [topic, str(partition), show_count(end), *(["deleted", "", "", ""] if lag is None else lag_cells(lag))]
            )
    return rows


@app.command()
def read(
    view: ViewArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Follow its changes, until Ctrl-C or --limit.")] = False,
    version: Annotated[int | None, typer.Option(metavar="N", help="A version other than the live one.")] = None,
    as_of: AsOfOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The maximum number of rows.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="COLUMN,...", help="Only these columns.")] = None,
    form: Annotated[RowFormat, typer.Option("--format", help="The output format.")] = RowFormat.TABLE,
    as_json: RowsJsonOption = False,
    all_columns: AllColumnsOption = False,
    home: HomeOption = None,
) -> None:
    """Read the rows of a view, sorted by key, as of one moment; with --follow also later changes.

    With --follow the first column of each row, `change`, says whether it is an insert or a delete; an update is the old
    row deleted and the new one inserted.

    With --as-of, for a view with history, the rows as they were: at a time, or right after the batch that contains an
    append.

    Example: mainstem view read revenue --limit 10 --format json
    """
    from mainstem.workbench.cli.row_output import write_rows

    form = chosen_format(form, as_json=as_json)
    if as_of is not None and (follow or version is not None):
        raise typer.BadParameter("reads the live version, once", param_hint="--as-of")
    if follow and version is not None:
        raise typer.BadParameter("follows the live version, so it has no --version", param_hint="--follow")
    with open_home(home) as stem, open_view(stem, view) as opened:
        batches = _changes(opened) if follow else _rows(opened, version, parse_as_of(as_of))
        # Closed also when the limit is reached: it holds a transaction of the file open.
        with closing(batches):
            schema = next(batches).schema
            wanted = _select_columns(schema, split_words(columns), view)
            selected = (batch for rows in batches for batch in rows.select(wanted).to_batches())
            write_rows(
                form,
                selected,
                schema.empty_table().select(wanted).schema,
                limit=limit,
                all_columns=all_columns,
            )


def _rows(view: View, version: int | None, as_of: AsOf | None) -> Generator[pa.Table, None, None]:
    """First an empty table, for its columns, then the rows; memory does not grow with the view."""
    import pyarrow as pa

    if as_of is not None:
        with closing(view.batches(as_of=as_of)) as past:
            first = next(past, None)
            yield view.schema.empty_table() if first is None else first.schema.empty_table()
            for batch in past if first is None else chain([first], past):
                yield pa.Table.from_batches([batch])
        return
    with view.snapshot(version) as snapshot:
        yield snapshot.schema.empty_table()
        for batch in snapshot.batches():
            yield pa.Table.from_batches([batch])


def _changes(view: View) -> Generator[pa.Table, None, None]:
    """First an empty table, then all rows as inserts, then the changes."""
    import pyarrow as pa

    yield _with_change(view.schema.empty_table(), pa.array([], pa.string()))
    for update in view.subscribe():
        rows = update.rows
        if update.kind == "snapshot":
            yield _with_change(rows, pa.repeat(pa.scalar("insert"), len(rows)))
        else:
            record = rows.column("record").combine_chunks()
            yield _with_change(rows.drop_columns(["record"]), record.field("change"))


def _with_change(rows: pa.Table, change: pa.Array) -> pa.Table:
    return rows.add_column(0, "change", [change])


def _select_columns(schema: pa.Schema, columns: list[str] | None, view: str) -> list[str]:
    if columns is None:
        return list(schema.names)
    for name in columns:
        if name not in schema.names:
            raise Invalid(
                f'view "{view}" has no column "{name}"',
                detail=f"Its columns are: {', '.join(schema.names)}.",
                hint=did_you_mean(name, schema.names) or "Choose from these.",
                column=name,
            )
    return [name for name in schema.names if name in columns or name == "change"]


@app.command()
def get(
    view: ViewArgument,
    key: Annotated[list[str], typer.Argument(metavar="KEY...", help="A value for each column of the key.")],
    *,
    after: Annotated[str | None, typer.Option(metavar="TOKEN", help="Wait until this append is applied.")] = None,
    wait: Annotated[str, typer.Option(help="How long to wait for it.")] = "5 seconds",
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Get the row with a key; the exit status is 1 if there is none.

    Values are written as in a CSV file; a window by its start in UTC (12:20, "2026-11-17 12:20"), with its end if windows
    overlap (12:20-12:21), or as JSON. With --as-of, for a view with history, the row as it was at a time, or right after
    the batch that contains an append.

    Example: mainstem view get revenue Berlin 12:20
    """
    import pyarrow as pa

    from mainstem.log.rows.plain_values import plain_writer
    from mainstem.workbench.cli.key_arguments import find_key
    from mainstem.workbench.cli.row_output import shown_cells, today_of

    with open_home(home) as stem, open_view(stem, view) as opened:
        schema, moment_of = opened.schema, parse_as_of(as_of)
        if after is not None:
            # A window may be among the rows that are waited for.
            opened.wait_for(after, wait)
        row = opened.get(find_key(opened, key, moment_of), as_of=moment_of)
        if row is None:
            raise NotFound(
                f'view "{view}" has no row with the key {", ".join(key)}',
                detail=f"Its key is {', '.join(opened.key)}.",
                hint=f"List its rows: mainstem view read {view} --limit 10",
            )
        if as_json:
            print_json({field.name: plain_writer(field.type)(row[field.name]) for field in schema})
            return
        today = today_of(stem.log.clock) if is_terminal() else None
        cells = [(field.name, shown_cells(pa.array([row[field.name]], field.type), today)[0]) for field in schema]
        show_facts(cells)


@app.command()
def page(
    view: ViewArgument,
    *,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Begin after this key: once for each column of the key."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number of rows.")] = 50,
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
    all_columns: AllColumnsOption = False,
    home: HomeOption = None,
) -> None:
    """Read one page of a view: some rows, sorted by key, after a key. A large view takes no longer than a small one.

    Values are written as for `view get`; a window as JSON is not looked up. If rows follow, the command for the next page
    is printed to the standard error, and with --json the key of the last row is `after`.

    Example: mainstem view page revenue --after Berlin --limit 20
    """
    from mainstem.log.rows.plain_values import cell_text, column_values, plain_writer
    from mainstem.workbench.cli.key_arguments import find_key
    from mainstem.workbench.cli.row_output import write_rows

    with open_home(home) as stem, open_view(stem, view) as opened:
        moment_of = parse_as_of(as_of)
        begin = find_key(opened, after, moment_of) if after else None
        found = opened.page(after=begin, limit=limit, as_of=moment_of)
        schema = found.rows.schema
        write = [plain_writer(schema.field(name).type) for name in opened.key]
        following = found.after and [one(value) for one, value in zip(write, found.after, strict=True)]
        if as_json:
            columns = [column_values(found.rows[field.name], plain_writer(field.type)) for field in schema]
            rows = [dict(zip(schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
            print_json({"view": view, "rows": rows, "after": following})
            return
        write_rows(RowFormat.TABLE, found.rows.to_batches(), schema, all_columns=all_columns)
        if following is not None:
            words = ["mainstem", "view", "page", view, *(f"--after={cell_text(value)}" for value in following)]
            words += [f"--limit={limit}"] + ([] if as_of is None else [f"--as-of={as_of}"])
            show_note(f"next page: {shlex.join(words)}")


@app.command()
def versions(
    view: ViewArgument,
    *,
    use: Annotated[int | None, typer.Option(metavar="N", help="Make this version the live one.")] = None,
    drop: Annotated[int | None, typer.Option(metavar="N", help="Drop this version; not the live one.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the versions of a view, or choose the live one; the flow continues with that one.

    Example: mainstem view versions revenue --use 1
    """
    with open_home(home) as stem, open_view(stem, view) as opened:
        if use is not None:
            opened.use(use)
        if drop is not None:
            opened.drop_version(drop)
        found = opened.versions()
        if as_json:
            print_json(
                [
                    {
                        "view": view,
                        "version": it.number,
                        "live": it.live,
                        **version_json(it),
                        "lag": version_lag(stem, it),
                    }
                    for it in found
                ]
            )
            return
        show_table(
            [
                Column("version", "right", style="bold"), Column("live"), Column("rows", "right"), Column("on disk", "right", spared=3),
                Column("made", firm=True, spared=1), Column("flow"), Column("batch", "right"), Column("last change", firm=True, spared=1), *LAG_COLUMNS,
            ],
            (
                [
                    str(it.number), "live" if it.live else "", show_count(it.rows), about_size(it.bytes),
                    moment(it.created_at), it.flow or "", "none" if it.batch < 0 else str(it.batch),
                    moment(it.applied_at), *lag_cells(version_lag(stem, it)),
                ]
                for it in found
            ),
        )  # fmt: skip


app.command("history")(history)
app.command("difference")(difference)
app.command("rebuild")(rebuild)
app.command("why")(why)
app.command("check")(check)


@app.command()
def drop(view: ViewArgument, *, yes: YesOption = False, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Drop a view with all its versions, and its flow's checkpoint: the next run rebuilds both from the log.

    Example: mainstem view drop revenue --yes
    """
    from mainstem.spark.checkpoint.flow_store import FlowStore

    with open_home(home) as stem, open_view(stem, view) as opened:
        facts = opened.describe()
        flow = facts.live.flow
        _refuse_if_running(stem, view, flow)
        if not yes:
            confirm(
                f'Drop view "{view}" with {show_count(facts.live.rows, "row")} '
                f"in {show_count(len(facts.versions), 'version')}?"
            )
        opened.drop()
        if flow is not None:
            # A checkpoint without its view would continue after missing rows.
            FlowStore(stem.home, flow).drop()
        print_outcome("dropped", f"dropped view {view}", as_json=as_json, view=view)


def _refuse_if_running(stem: Mainstem, view: str, flow: str | None) -> None:
    from mainstem.spark.checkpoint.flow_store import FlowStore, find_process

    if flow is None:
        return
    runs = FlowStore(stem.home, flow).read().get("runs", {})
    for process in filter(None, map(find_process, runs.values())):
        raise Invalid(
            f'view "{view}" is being written',
            detail=f'Process {process["pid"]} runs flow "{flow}".',
            hint=f"Stop it first: mainstem flow stop {flow}",
        )
