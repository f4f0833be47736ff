"""`mainstem check`: checks a program without running it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from mainstem.workbench.cli.command_arguments import HomeOption, SparkOption, open_home
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.program_file import ProgramArgument, load_program
from mainstem.workbench.cli.terminal_table import show_count, show_facts, show_note, show_progress

if TYPE_CHECKING:
    from mainstem.capture.capture import Capture
    from mainstem.flows.checkpoint_fit import FlowProspect
    from mainstem.flows.program import PlannedFlow
    from mainstem.spark.checkpoint.checkpoint_offsets import HistoryStatus
    from mainstem.stem import Mainstem
    from mainstem.workbench.cli.program_file import ProgramFile

__all__ = ["check"]


def check(
    program: ProgramArgument, *, spark: SparkOption = "local[*]", as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Build every flow of a program without starting it, and show its sources, its state and its sink.

    It finds unknown topics and columns, a sink that cannot take the rows, and two flows into one sink, with the line of
    the program; the exit status is then 1. State that grows without bound is a warning, and so is a flow that lagged
    longer than a compacted topic keeps its tombstones. Topics of captured tables are made, since flows read them; nothing
    is changed in the database. For a flow that has run before it says whether it continues from its checkpoint, what
    changed, and how many rows a rebuild would read.

    Example: mainstem check shop.py
    """
    file = load_program(program, captures_suffice=True)
    with open_home(home, missing="make" if file.captures else "refuse", spark=spark) as stem:
        captures = _make_topics(stem, file)
        flows = [] if file.without_flows else _build_flows(stem, file)
        warnings = [warning for flow in flows for warning in [*flow.warnings(), *_missed_deletions(stem, flow)]]
        if as_json:
            shown = [_to_json(flow, _files(stem, flow), _prospect(stem, flow, file)) for flow in flows]
            captured = [{"capture": one.name, "source": one.source.shown, "topics": one.topics} for one in captures]
            print_json({"program": program, "captures": captured, "flows": shown, "warnings": warnings})
            return
        for capture in captures:
            typer.secho(capture.name, bold=True)
            tables = [("  into", f"topic {topic}, from table {table}") for table, topic in capture.topics.items()]
            show_facts([("  reads", capture.source.shown), *tables])
            typer.echo()
        for flow in flows:
            typer.secho(flow.name, bold=True)
            prospect = _prospect(stem, flow, file)
            show_facts(_facts(flow, _files(stem, flow), prospect))
            typer.echo()
            if prospect.hint:
                warnings.append(f'flow "{flow.name}" cannot continue with its checkpoint. {prospect.hint}')
        before = f"{show_count(len(captures), 'capture')}, " if captures else ""
        typer.echo(
            f"{before}{show_count(len(flows), 'flow')}, {show_count(len(warnings), 'warning')}; nothing was started"
        )
        for warning in warnings:
            show_note(f"Warning: {warning}")


def _build_flows(stem: Mainstem, file: ProgramFile) -> list[PlannedFlow]:
    from mainstem.flows.program import Program
    from mainstem.spark.java_patches import short_run_options
    from mainstem.spark.spark_session import add_java_options
    from mainstem.workbench.cli.before_spark import check_before_spark

    check_before_spark(stem, file)
    with show_progress("start Spark"), add_java_options(*short_run_options()):
        _ = stem.spark
    with file.locate_errors():
        return Program(stem, file.flows).only(None)


def _make_topics(stem: Mainstem, file: ProgramFile) -> list[Capture]:
    """Make the topics of the captures, which the flows may read. The sources are only read."""
    if file.captures is None:
        return []
    from mainstem.capture.captured_topics import make_topics
    from mainstem.workbench.cli.capture_commands import captures_of_program

    captures = captures_of_program(stem, file)
    for one in captures:
        make_topics(stem.log, stem.home, one)
    return captures


def _files(stem: Mainstem, flow: PlannedFlow) -> HistoryStatus | None:
    """The sealed files that a run started now would read first."""
    from mainstem.flows.native_catch_up import foreseen_history
    from mainstem.spark.checkpoint.flow_store import FlowStore

    checkpoint = FlowStore(stem.home, flow.name).checkpoint(flow.flow.into.version)
    return foreseen_history(flow, checkpoint, stem.log)


def _missed_deletions(stem: Mainstem, flow: PlannedFlow) -> list[str]:
    """Deletions in compacted topics that the flow has missed, or may have missed."""
    from mainstem.spark.checkpoint.checkpoint_location import is_elsewhere
    from mainstem.spark.checkpoint.checkpoint_offsets import last_batch, source_offsets
    from mainstem.spark.checkpoint.flow_store import FlowStore
    from mainstem.spark.checkpoint.read_since import deletions_at_risk

    checkpoint = FlowStore(stem.home, flow.name).checkpoint(flow.flow.into.version)
    last = None if is_elsewhere(checkpoint) else last_batch(checkpoint, "offsets")
    if last is None:
        return []
    offsets = source_offsets(checkpoint, last)
    return [warning for offset in offsets for warning in deletions_at_risk(stem.log, offset, flow.name)]


def _prospect(stem: Mainstem, flow: PlannedFlow, file: ProgramFile) -> FlowProspect:
    """Whether a run started now would continue."""
    from mainstem.flows.checkpoint_fit import FlowProspect

    found = FlowProspect.of(flow, stem.home, stem.log)
    return replace(found, hint=file.fill_hint(found.hint))


def _facts(flow: PlannedFlow, files: HistoryStatus | None, prospect: FlowProspect) -> list[tuple[str, str]]:
    facts = [("  reads", _format_source(source)) for source in _sources(flow)]
    if files is not None:
        done = f", {show_count(files.rows_in)} of them done" if files.rows_in else ""
        facts.append(("  first", f"{show_count(files.rows, 'row')} from sealed files, natively{done}; then the topic"))
    for operator in flow.operators:
        bound = f"bounded state ({operator.bounded_by})" if operator.bounded_by else "STATE GROWS WITHOUT BOUND"
        facts.append(("  keeps", f"{operator.name}: {bound}"))
    if not flow.operators:
        facts.append(("  keeps", "nothing from one batch to the next"))
    if flow.flow.mode == "real-time":
        facts.append(("  mode", "real-time: each row as it comes, at least once"))
    mode = "rows as they change" if flow.output_mode == "update" and flow.operators else "each row once"
    facts.append(("  into", f"{flow.flow.into.kind} {flow.flow.into.name}, {mode} (output mode {flow.output_mode})"))
    rows = f", {show_count(prospect.rows, 'row')} to read" if prospect.outcome in ("new", "must be rebuilt") else ""
    changes = f": {'; '.join(prospect.changes)}" if prospect.changes else ""
    facts.append(("  run", f"{prospect.outcome}{rows}{changes}"))
    return facts


def _format_source(source: dict[str, Any]) -> str:
    columns, known = source["columns"], source["columns_known"]
    part = f"all {len(known)} columns" if len(columns) == len(known) else f"{len(columns)} of {len(known)} columns"
    return f"{source['source']}: {', '.join(columns)} ({part})"


def _sources(flow: PlannedFlow) -> list[dict[str, Any]]:
    """What each stream of the flow reads, in the order of the program."""
    return [
        {"source": leaf.source, "columns": leaf.columns or leaf.schema.names, "columns_known": leaf.schema.names}
        for leaf in flow.leaves.values()
    ]


def _to_json(flow: PlannedFlow, files: HistoryStatus | None, prospect: FlowProspect) -> dict[str, Any]:
    from mainstem.log.rows.schema_ddl import schema_to_ddl

    sink = flow.flow.into
    return {
        "flow": flow.name,
        "sources": _sources(flow),
        "sealed_files_first": files,
        "operators": [{"operator": it.name, "bounded_by": it.bounded_by or None} for it in flow.operators],
        "sink": {"kind": sink.kind, "name": sink.name},
        "mode": flow.flow.mode,
        "output_mode": flow.output_mode,
        "schema": schema_to_ddl(flow.schema),
        "run": {
            "outcome": prospect.outcome,
            "changes": prospect.changes,
            "rows_to_read": prospect.rows,
            "hint": prospect.hint or None,
        },
        "warnings": flow.warnings(),
    }
