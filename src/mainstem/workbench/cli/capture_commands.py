"""`mainstem capture`: captures, which copy the changes of databases into topics, in any process."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mainstem.durations import duration_us
from mainstem.errors import Conflict, Invalid, MainstemError, NotFound, Unavailable, did_you_mean
from mainstem.workbench.cli.command_arguments import HomeOption, YesOption, confirm, find_home, open_home
from mainstem.workbench.cli.command_tree import new_noun
from mainstem.workbench.cli.json_output import JsonOption, print_json, print_outcome
from mainstem.workbench.cli.list_entry import Unreadable, json_entry, table_row, try_look
from mainstem.workbench.cli.program_file import ProgramFile, load_captures
from mainstem.workbench.cli.terminal_table import (
    Column,
    about_duration,
    about_size,
    moment,
    show_count,
    show_facts,
    show_note,
    show_table,
)

if TYPE_CHECKING:
    from mainstem.capture.capture import Capture
    from mainstem.capture.capture_check import CaptureCheck
    from mainstem.capture.capture_status import CaptureStatus
    from mainstem.stem import Mainstem
    from mainstem.workbench.cli.capture_facts import CaptureFacts

__all__ = ["app", "captures_of_program", "run_captures"]

app = new_noun()

CaptureArgument = Annotated[str, typer.Argument(metavar="CAPTURE", help="The capture's name.")]
CapturesArgument = Annotated[list[str] | None, typer.Argument(metavar="[CAPTURE]...", help="Only these captures.")]
CapturesProgramArgument = Annotated[
    str, typer.Argument(metavar="PROGRAM.py", help="A Python file with a function `captures`.")
]
ProgramOption = Annotated[
    str | None,
    typer.Option(
        "--program",
        metavar="FILE",
        help="A program with captures: of those that do not run, the source is asked what it holds.",
    ),
]

# Often enough that a user sees it move.
LOOK_SECONDS = 0.1
STOP_SECONDS = 30
WARNING_SECONDS = 60


def captures_of_program(stem: Mainstem, file: ProgramFile, names: Sequence[str] = ()) -> list[Capture]:
    """The captures of a program, or those named."""
    from mainstem.capture.capture import captures_of

    assert file.captures is not None
    with file.locate_errors("captures"):
        found = captures_of(stem, file.captures)
    known = [one.name for one in found]
    for name in names:
        if name not in known:
            raise NotFound(
                f'the program has no capture "{name}"',
                detail=f"Its captures are: {', '.join(known) or 'none'}.",
                hint=did_you_mean(name, known) or "Choose from these.",
            )
    return [one for one in found if not names or one.name in names]


# Setup


@app.command()
def setup(
    program: CapturesProgramArgument,
    capture: CapturesArgument = None,
    *,
    printed: Annotated[
        bool, typer.Option("--print", help="Only print the SQL for an administrator; connect to nothing.")
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Check what captures need, and make it: publication, slot, topics.

    From then on the server keeps changes for the capture until it runs, so run it soon. With --print, print the SQL that an
    administrator can run instead: then the user of the capture needs REPLICATION and SELECT only.

    Example: mainstem capture setup shop.py --print
    """
    file = load_captures(program)
    with _home_for_sql(home) if printed else open_home(home, missing="make") as stem:
        captures = captures_of_program(stem, file, capture or ())
        if printed:
            _print_sql(captures, as_json=as_json)
            return
        made = [_set_up(stem, one) for one in captures]
        if as_json:
            print_json(made)
            return
        for one in made:
            show_facts([
                ("capture", one["capture"]), ("source", one["source"]),
                *([("slot", one["slot"])] if one["slot"] else []), ("position", one["position"]),
            ])  # fmt: skip
            typer.echo()
            show_table(
                [Column("table", style="bold"), Column("topic"), Column("key"), Column("columns", "right")],
                ([it.table, it.topic, ", ".join(it.key), str(len(it.columns))] for it in one["tables"]),
                empty="no tables",
            )
            typer.echo()
        show_note(f"run it: mainstem capture run {program}, or mainstem run {program} with its flows")


@contextmanager
def _home_for_sql(home: str | None) -> Iterator[Mainstem]:
    """The home; if there is none, an empty one, since nothing is written."""
    with ExitStack() as stack:
        try:
            path = find_home(home, "refuse")
        except MainstemError:
            path = stack.enter_context(tempfile.TemporaryDirectory(prefix="mainstem-"))
        yield stack.enter_context(open_home(path, missing="make"))


def _print_sql(captures: Sequence[Capture], *, as_json: bool) -> None:
    found = [
        {"capture": one.name, "source": one.source.shown, "sql": one.source.setup_sql(one.name)} for one in captures
    ]
    if as_json:
        print_json(found)
        return
    for one in found:
        typer.echo(f"-- capture {one['capture']}, {one['source']}\n{one['sql']}")


def _set_up(stem: Mainstem, capture: Capture) -> dict[str, Any]:
    from mainstem.capture.capture_log import noted_source
    from mainstem.capture.capture_status import CaptureStatus, StatusFile
    from mainstem.capture.captured_topics import make_topics
    from mainstem.capture.source import of_another_home
    from mainstem.workbench.cli.capture_facts import capture_facts

    # First, so that an error about a topic leaves no slot behind, which would hold WAL.
    make_topics(stem.log, stem.home, capture)
    connection = capture.source.open(capture.name, stem.home)
    try:
        if not connection.is_own(noted_source(stem.log, capture)):
            raise of_another_home(capture.name, capture.source.shown, connection.identity["slot"], stem.home)
        position = connection.prepare()
        health = connection.health()
        slot = connection.identity.get("slot")
    finally:
        connection.close()
    files = StatusFile(stem.home, capture.name)
    if files.read() is None:
        files.write(
            CaptureStatus.of(capture, "set up", None, 0, health, {}, "", paused=False, now=stem.log.clock.now())
        )
    tables = capture_facts(stem, capture.name).tables
    return {
        "capture": capture.name, "source": capture.source.shown, "slot": slot, "position": position, "tables": tables,
        "outcome": "set up",
    }  # fmt: skip


# Running


@app.command()
def run(
    program: CapturesProgramArgument,
    capture: CapturesArgument = None,
    *,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when all changes made before the start are captured.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus at this address, such as 127.0.0.1:9464."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each report, about one a second.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Run captures without flows, and so without Spark. Ctrl-C stops them; the next run continues there.

    A source that does not answer is waited for. Any other error ends the run, with exit status 1. A capture that runs in
    another process is taken over from it. A warning says when the server holds more than half of what it may.

    Example: mainstem capture run shop.py --metrics 127.0.0.1:9464
    """
    file = load_captures(program)
    run_captures(file, capture or (), until_idle=until_idle, metrics=metrics, as_json=as_json, home=home)


def run_captures(
    file: ProgramFile, names: Sequence[str] = (), *, until_idle: bool, metrics: str | None, as_json: bool,
    home: str | None, take_over: bool = False,
) -> NoReturn:  # fmt: skip
    """Run the captures of a program, or those named, until they are stopped or idle; ends with the exit status."""
    from mainstem.workbench.cli.metrics_server import MetricsServer, capture_metrics, parse_address
    from mainstem.workbench.cli.run_command import handle_signals

    address = None if metrics is None else parse_address(metrics)
    with open_home(home, missing="make", upkeep="background") as stem, ExitStack() as stack:
        from mainstem.capture.capture_threads import CaptureThreads

        if take_over:
            show_note(str(stem.take_over()))
        captures = captures_of_program(stem, file, names)
        threads = CaptureThreads(
            stem.log, stem.home, captures, until="idle" if until_idle else "stopped", tell=_teller(as_json=as_json)
        )
        if address is not None:
            server = stack.enter_context(MetricsServer(address, lambda: capture_metrics(threads.statuses.values())))
            show_note(f"metrics at {server.url}")
        stack.enter_context(capture_warnings(show_note))
        signals = stack.enter_context(handle_signals())
        threads.start()
        try:
            while not threads.join(0) and not signals.wait(LOOK_SECONDS):
                pass
        finally:
            threads.stop()
            threads.join(STOP_SECONDS)
        if not as_json:
            _show_end(list(threads.statuses.values()))
        if threads.error is not None:
            raise threads.error
        status = signals.status
    raise typer.Exit(status)


def _teller(*, as_json: bool) -> Callable[[CaptureStatus], None]:
    from mainstem.capture.capture_notes import CaptureNotes

    if as_json:
        guard = threading.Lock()

        def tell(status: CaptureStatus) -> None:
            line = json.dumps(_report_json(status), ensure_ascii=False)
            with guard, suppress(BrokenPipeError):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()

        return tell
    return CaptureNotes(show_note).take if sys.stderr.isatty() else lambda status: None


def _report_json(status: CaptureStatus) -> dict[str, Any]:
    return {
        "capture": status.name, "state": status.state, "position": status.position, "changes": status.changes,
        "held_bytes": status.held_bytes, "left_bytes": status.left_bytes, "alarm": status.alarm,
        "snapshot": [{"table": table, **one} for table, one in status.snapshot.items()], "paused": status.paused,
        "error": status.error or None, "reported_at": status.at.replace("+00:00", "Z"),
    }  # fmt: skip


def _show_end(statuses: Sequence[CaptureStatus]) -> None:
    show_table(
        [Column("capture", style="bold"), Column("state"), Column("changes", "right"), Column("position")],
        ([it.name, it.state, show_count(it.changes), it.position or "none"] for it in statuses),
        empty="the program has no captures",
    )


@contextmanager
def capture_warnings(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, warnings of captures are said: a source does not answer, or holds too much. The same one at most once a
    minute: a source is tried again and again."""
    import logging

    said_at: dict[str, float] = {}

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text, now = record.getMessage(), time.monotonic()
            if now - said_at.get(text, -WARNING_SECONDS) >= WARNING_SECONDS:
                said_at[text] = now
                say(f"Warning: {text}")

    logger, handler = logging.getLogger("mainstem.capture"), Said(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


# Looking


@app.command("list")
def list_captures(*, program: ProgramOption = None, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List captures: their status, and the WAL that servers hold for them.

    "Left" is how much more the server may hold before changes are lost; an alarm is shown when less than half is left. Of a
    capture that does not run the server is asked only with --program, since addresses are not stored.

    Example: mainstem capture list --program shop.py
    """
    from mainstem.workbench.cli.capture_facts import known_captures

    file = None if program is None else load_captures(program)
    with open_home(home) as stem:
        captures = [] if file is None else captures_of_program(stem, file)
        found = [try_look({"capture": name}, _look, stem, name, captures) for name in known_captures(stem)]
        if as_json:
            print_json([json_entry(it, lambda it: it.to_json()) for it in found])
            return
        show_table(
            [
                Column("capture", style="bold"), Column("state"), Column("pid", "right", spared=2), Column("tables", "right"),
                Column("source", spared=1), Column("changes", "right"), Column("held", "right"), Column("left", "right"),
                Column("alarm"), Column("reported", firm=True, spared=3),
            ],
            (table_row(it, _list_row) for it in found),
            empty="no captures yet",
        )  # fmt: skip
        _show_alarms([it for it in found if not isinstance(it, Unreadable)])


def _look(stem: Mainstem, name: str, captures: Sequence[Capture]) -> CaptureFacts:
    from mainstem.workbench.cli.capture_facts import ask_source, capture_facts

    facts = capture_facts(stem, name)
    try:
        return ask_source(facts, captures, stem.home)
    except Unavailable as error:
        show_note(f"capture {name}: {error.summary}")
        return facts


def _list_row(it: CaptureFacts) -> list[str]:
    status = it.status
    return [
        status.name, _state(it), "" if it.pid is None else str(it.pid), str(len(it.tables)), status.source,
        show_count(status.changes), _size(status.held_bytes), _left(status), "ALARM" if status.alarm else "",
        moment_of(status.at),
    ]  # fmt: skip


def _state(it: CaptureFacts) -> str:
    if it.state != "running" or not it.status.snapshot:
        return it.state
    return "snapshot paused" if it.status.paused else "snapshot"


def _size(size: int | None) -> str:
    return "" if size is None else about_size(size)


def _left(status: CaptureStatus) -> str:
    if status.held_bytes is None:
        return ""
    return "no limit" if status.left_bytes is None else about_size(max(status.left_bytes, 0))


def moment_of(text: str) -> str:
    """A time of a report."""
    from datetime import datetime

    return moment(datetime.fromisoformat(text))


def _show_alarms(facts: Sequence[CaptureFacts]) -> None:
    for it in facts:
        if it.status.alarm:
            show_note(f"Warning: capture {it.status.name}: {it.status.alarm_text}")


@app.command()
def describe(
    capture: CaptureArgument, *, program: ProgramOption = None, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Describe a capture: status, tables, position, snapshots, WAL held.

    Example: mainstem capture describe shop
    """
    file = None if program is None else load_captures(program)
    with open_home(home) as stem:
        facts = _look(stem, capture, [] if file is None else captures_of_program(stem, file))
        if as_json:
            print_json(facts.to_json())
            return
        _show(facts)
        _show_alarms([facts])


def _show(it: CaptureFacts) -> None:
    status = it.status
    held = "unknown while it does not run; --program FILE asks the server"
    if status.held_bytes is not None:
        left = "without a limit" if status.left_bytes is None else f"{_left(status)} left before the limit"
        held = f"{_size(status.held_bytes)}, {left}"
    show_facts([
        ("capture", status.name),
        ("state", it.state if it.pid is None else f"{it.state}, process {it.pid}"),
        *([("error", status.error)] if status.error else []),
        ("source", status.source),
        ("position", status.position or "none"),
        ("changes", f"{show_count(status.changes)} in this run"),
        ("held", held),
        ("alarm", "yes" if status.alarm else "no"),
        ("reported", moment_of(status.at)),
    ])  # fmt: skip
    typer.echo()
    show_table(
        [Column("table", style="bold"), Column("topic"), Column("key"), Column("columns")],
        (
            [
                one.table,
                one.topic,
                ", ".join(one.key),
                ", ".join(f"{name} {kind}" for name, kind in one.columns.items()),
            ]
            for one in it.tables
        ),
        empty="no tables",
    )
    if status.snapshot:
        typer.echo()
        show_table(
            [Column("snapshot of", style="bold"), Column("rows", "right"), Column("of about", "right"), Column("left"),
             Column("reason")],
            ([table, *_snapshot_row(one)] for table, one in status.snapshot.items()),
            empty="",
        )  # fmt: skip
        if status.paused:
            show_note(f"paused; to resume: mainstem capture snapshot {status.name} --resume")


def _snapshot_row(one: dict[str, Any]) -> list[str]:
    left = one.get("seconds_left")
    total = show_count(one["of"]) if one["of"] >= one["rows"] and one["of"] else "unknown"
    return [show_count(one["rows"]), total, "unknown" if left is None else about_duration(left), one["reason"]]


# Requests


@app.command()
def stop(
    captures: Annotated[list[str], typer.Argument(metavar="CAPTURE...", help="The captures' names.")],
    *,
    wait: Annotated[str, typer.Option(help="How long to wait until it has stopped.")] = "1 minute",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Stop captures that run in another process; the next run continues.

    The server keeps changes for a stopped capture. That process continues with its other captures and its flows.

    Example: mainstem capture stop shop
    """
    limit = duration_us(wait, setting="--wait") / 1e6
    with open_home(home) as stem:
        from mainstem.workbench.cli.capture_facts import capture_facts

        # All names are checked before the first capture is stopped.
        outcomes = []
        for facts in [capture_facts(stem, name) for name in captures]:
            status, name = facts.status, facts.status.name
            if facts.pid is None:
                said, outcome = f"capture {name} does not run", "not running"
            else:
                status, outcome = _stop(stem, facts, limit, wait), "stopped"
                said = f"stopped capture {name} at {status.position}"
            outcomes.append({"capture": name, "position": status.position, "outcome": outcome})
            if not as_json:
                typer.echo(said)
        if as_json:
            print_json(outcomes)


def _stop(stem: Mainstem, facts: CaptureFacts, limit: float, wait: str) -> CaptureStatus:
    from mainstem.capture.capture_status import StatusFile
    from mainstem.processes import stopped
    from mainstem.workbench.cli.capture_facts import status_of

    name = facts.status.name
    StatusFile(stem.home, name).request("stop")
    began, pause = time.monotonic(), threading.Event()
    while (status := status_of(stem, name)).running and status.process == facts.status.process:
        if time.monotonic() - began > limit:
            stands = " That process is stopped (SIGSTOP) and cannot react." if stopped(facts.pid or 0) else ""
            raise Unavailable(
                f'capture "{name}" has not stopped within {wait}',
                detail=f"Process {facts.pid} runs it and has a stop request; it stops once it reads the request.{stands}",
                hint=f"Wait longer (--wait), or end the process: kill {facts.pid}. Nothing is lost: the next run continues.",
            )
        pause.wait(LOOK_SECONDS)
    return status


@app.command()
def snapshot(
    capture: CaptureArgument,
    *,
    table: Annotated[list[str] | None, typer.Option(metavar="TABLE", help="Only this table; may be repeated.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows of the table that meet this condition.")
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Pause snapshots; changes are still captured.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume paused snapshots where they stopped.")] = False,
    program: Annotated[
        str | None,
        typer.Option("--program", metavar="FILE", help="The program of the capture: its source checks the condition."),
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Read the rows of tables again, or pause and resume snapshots.

    It is a request: the running capture follows it at once, else its next run does. Rows that the source no longer has are
    deleted in the topic at the end, unless --where is given. `capture describe` shows the progress and the time left. With
    --program the condition is checked by the source at once; otherwise by the capture, which warns if it cannot be used.

    Example: mainstem capture snapshot shop --table orders --where "placed_at > now() - interval '1 day'"
    """
    if pause and resume:
        raise typer.BadParameter("pause, or resume", param_hint="--pause")
    if (pause or resume) and (table or where):
        raise typer.BadParameter("all snapshots of a capture are paused and resumed together", param_hint="--table")
    if where is not None and len(table or ()) != 1:
        raise typer.BadParameter("a condition is for one table: give --table too", param_hint="--where")
    file = None if program is None else load_captures(program)
    with open_home(home) as stem:
        from mainstem.capture.capture_status import StatusFile
        from mainstem.workbench.cli.capture_facts import status_of

        status = status_of(stem, capture)
        for name in table or ():
            if name not in status.topics:
                raise Invalid(
                    f'capture "{capture}" has no table "{name}"',
                    detail=f"Its tables are: {', '.join(status.topics)}.",
                    hint=did_you_mean(name, status.topics) or "Choose from these.",
                )
        if file is not None and where is not None and table:
            _check_condition(stem, captures_of_program(stem, file, [capture])[0], table[0], where)
        kind = "pause" if pause else "resume" if resume else "snapshot"
        tables = list(table or status.topics)
        facts: dict[str, Any] = {"tables": tables, "where": where} if kind == "snapshot" else {}
        StatusFile(stem.home, capture).request(kind, **facts)
        what = {
            "snapshot": f"a snapshot of {', '.join(tables)}",
            "pause": "to pause snapshots",
            "resume": "to resume snapshots",
        }[kind]
        who = f"process {status.process['pid']} follows it" if status.running else "the next run follows it"
        who += ", and checks the condition" if where is not None and file is None else ""
        said = f"requested {what} of capture {capture}; {who}" if kind != "snapshot" else f"requested {what}; {who}"
        print_outcome(
            "requested", said, as_json=as_json, capture=capture, request=kind, running=status.running, **facts
        )


def _check_condition(stem: Mainstem, capture: Capture, table: str, where: str) -> None:
    """Raise `Invalid` if the source does not accept a condition."""
    from mainstem.capture.snapshots import condition_refusal

    try:
        connection = capture.source.open(capture.name, stem.home)
    except Unavailable as error:
        show_note(f"Warning: the condition is not checked: {error.summary}")
        return
    try:
        connection.tables()
        said = condition_refusal(connection, table, where)
    finally:
        connection.close()
    if said:
        raise Invalid(
            f'table "{table}" cannot be read where {where}',
            detail=f"The source says: {said.rstrip('.')}. Nothing was requested.",
            hint="Correct the condition: it is SQL of the source.",
        )


# Comparing


@app.command()
def check(
    program: CapturesProgramArgument,
    capture: CapturesArgument = None,
    *,
    table: Annotated[list[str] | None, typer.Option(metavar="TABLE", help="Only this table; may be repeated.")] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Let the capture read rows that differ again; delete those not in the source."),
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Compare the rows of captured tables with their topics, while both are written. The exit status is 1 if any differ.

    Chunks of both are compared by checksum at one position of the source; where they differ, row by row. A capture that
    does not run is first run until it is idle. With --repair the exit status is 1 only if a row still differs afterwards.

    Example: mainstem capture check shop.py --table orders --repair
    """
    from mainstem.capture.capture_check import check_capture

    file = load_captures(program)
    with open_home(home) as stem, capture_warnings(show_note):
        found = [
            check_capture(stem.log, stem.home, one, tables=_tables_of(one, table), repair=repair)
            for one in _captures_with(captures_of_program(stem, file, capture or ()), table or ())
        ]
    if as_json:
        print_json([_check_json(one) for one in found])
    else:
        for one in found:
            _show_check(one, repair=repair)
    if not all(one.equal for one in found):
        raise typer.Exit(1)


def _captures_with(captures: Sequence[Capture], tables: Sequence[str]) -> list[Capture]:
    """The captures that have some of these tables; each table must be in one."""
    known = [name for one in captures for name in one.topics]
    for table in tables:
        if table not in known:
            raise Invalid(
                f'no capture has a table "{table}"',
                detail=f"The tables are: {', '.join(known) or 'none'}.",
                hint=did_you_mean(table, known) or "Choose from these.",
            )
    return [one for one in captures if not tables or set(tables) & set(one.topics)]


def _tables_of(capture: Capture, tables: Sequence[str] | None) -> list[str] | None:
    return [one for one in tables if one in capture.topics] if tables else None


def _check_json(it: CaptureCheck) -> dict[str, Any]:
    return {
        "capture": it.capture,
        "equal": it.equal,
        "tables": [
            {
                "table": one.table, "topic": one.topic, "rows": one.rows, "chunks": one.chunks, "position": one.position,
                "repaired": one.repaired, "undecided": [_key_json(key) for key in one.undecided],
                "differences": [
                    {"key": _key_json(its.key), "kind": its.kind, "columns": list(its.columns)} for its in one.differences
                ],
            }
            for one in it.tables
        ],
    }  # fmt: skip


def _key_json(key: Mapping[str, Any]) -> Any:
    from mainstem.log.rows.plain_values import python_value

    return python_value(dict(key))


def _show_check(it: CaptureCheck, *, repair: bool) -> None:
    from mainstem.log.rows.plain_values import json_line

    for one in it.tables:
        compared = f"{it.capture} {one.table}: {show_count(one.rows, 'row')} in {show_count(one.chunks, 'chunk')}"
        count = len(one.differences)
        said = f"{show_count(count, 'row')} {'differs' if count == 1 else 'differ'}" if count else "equal"
        typer.echo(f"{compared}, {said}" + (f", {show_count(one.repaired)} repaired" if repair and count else ""))
        for its in one.differences:
            columns = f": {', '.join(its.columns)}" if its.columns else ""
            typer.echo(f"  {json_line(_key_json(its.key))} {its.kind}{columns}")
        for key in one.undecided:
            typer.echo(f"  {json_line(_key_json(key))} undecided")
        if one.undecided:
            show_note(
                "undecided: its last transaction is not visible yet, and its older records are compacted; check again"
            )


# The end


@app.command()
def drop(
    program: CapturesProgramArgument,
    capture: CaptureArgument,
    *,
    topics: Annotated[bool, typer.Option("--topics", help="Delete the topics of its tables too.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Remove a capture: slot, publication, position and status.

    Nothing else removes the slot, and a slot that nobody reads holds WAL until the server's disk is full. The topics of its
    tables stay unless --topics is given. If the capture is run again, it begins with a snapshot. A slot that this home did not
    make is removed too, with a warning.

    Example: mainstem capture drop shop.py shop
    """
    file = load_captures(program)
    with open_home(home) as stem:
        [found] = captures_of_program(stem, file, [capture])
        _refuse_if_running(stem, capture)
        foreign = _foreign_slot(stem, found)
        if not yes:
            also = f" and the topics {', '.join(found.topics.values())}" if topics else ""
            confirm(f'{foreign}Remove capture "{capture}" from {found.source.shown}, its position{also}?')
        elif foreign:
            show_note(f"Warning: {foreign.strip()}")
        with capture_warnings(show_note):
            deleted = _drop(stem, found, topics=topics)
        said = f"dropped capture {capture}" + (f"; deleted {show_count(len(deleted), 'topic')}" if topics else "")
        print_outcome("dropped", said, as_json=as_json, capture=capture, topics=deleted)


def _refuse_if_running(stem: Mainstem, name: str) -> None:
    from mainstem.capture.capture_status import StatusFile

    status = StatusFile(stem.home, name).read()
    if status is not None and status.running:
        raise Conflict(
            f'capture "{name}" is running',
            detail=f"Process {status.process['pid']} runs it. Nothing was removed.",
            hint=f"Stop it first: mainstem capture stop {name}",
        )


def _foreign_slot(stem: Mainstem, capture: Capture) -> str:
    """What is to be known before a slot is removed that this home did not make; empty if it made it, or there is none."""
    from mainstem.capture.capture_log import noted_source

    connection = capture.source.open(capture.name, stem.home)
    try:
        if connection.is_own(noted_source(stem.log, capture)):
            return ""
        slot = connection.identity["slot"]
    finally:
        connection.close()
    return f'The replication slot "{slot}" was not made by this home; a capture of another home that uses it loses its position. '


def _drop(stem: Mainstem, capture: Capture, *, topics: bool) -> list[str]:
    """Remove it from the source first: without its address that could not be repeated."""
    from mainstem.capture.capture_status import StatusFile

    connection = capture.source.open(capture.name, stem.home)
    try:
        connection.drop(in_use=True)
    finally:
        connection.close()
    there = set(stem.topics())
    own = [capture.own_topic(kind) for kind in ("state", "transactions")]
    tables = [*capture.topics.values(), capture.own_topic("rejected")] if topics else []
    for topic in [*own, *tables]:
        if topic in there:
            stem.delete_topic(topic)
    files = StatusFile(stem.home, capture.name)
    if topics:
        files.remove_secret()
    else:
        files.remove()
    return [topic for topic in tables if topic in there]
