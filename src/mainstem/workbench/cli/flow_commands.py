"""`mainstem flow`: the flows that ever ran in a home, in any process."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.durations import duration_us, show_duration
from mainstem.errors import Unavailable
from mainstem.workbench.cli.command_arguments import HomeOption, open_home, parse_moment
from mainstem.workbench.cli.command_tree import new_noun
from mainstem.workbench.cli.json_output import AllColumnsOption, JsonOption, print_json, print_outcome
from mainstem.workbench.cli.list_entry import Unreadable, json_entry, table_row, try_look
from mainstem.workbench.cli.terminal_table import (
    LAG_COLUMNS,
    Column,
    about_size,
    lag_cells,
    moment,
    show_count,
    show_facts,
    show_note,
    show_table,
)

if TYPE_CHECKING:
    from mainstem.spark.checkpoint.checkpoint_offsets import HistoryStatus
    from mainstem.stem import Mainstem
    from mainstem.workbench.cli.flow_facts import FlowFacts

__all__ = ["app", "flow_json", "plot", "stop_flow"]


app = new_noun()

FlowArgument = Annotated[str, typer.Argument(metavar="FLOW", help="The flow's name.")]

# A run looks for a wish to stop four times a second.
LOOK_SECONDS = 0.1
BATCHES_SHOWN = 5
SELDOM = (Column("late", "right"), Column("too late", "right"), Column("waits for"))


@app.command()
def plot(
    flow: FlowArgument,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The SVG file to write.", dir_okay=False)],
    start: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin with appends at this time, or earliest; default: the last records."),
    ] = None,
    stop: Annotated[str | None, typer.Option(metavar="TIME", help="End before appends at this time.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Plot a flow: event times and append times of its records, the watermark, the ideal line, and each emitted pane.

    Only what is plotted is read: by default the last 4,000 records of the flow's topics, and the panes emitted since the first
    of them.

    Example: mainstem flow plot totals -o totals.svg
    """
    from mainstem.workbench.cli.flow_plot import plot_of, svg_of

    with open_home(home) as stem:
        first: Any = start if start in (None, "earliest") else parse_moment(start, "--start")
        found = plot_of(stem, flow, start=first, stop=None if stop is None else parse_moment(stop, "--stop"))
        output.write_text(svg_of(found), encoding="utf-8")
    records, panes = len(found.points), len(found.panes)
    said = f"{output}: {show_count(records, 'record')}, {show_count(panes, 'pane')}"
    print_outcome("plotted", said, as_json=as_json, flow=flow, path=str(output), records=records, panes=panes)


@app.command("list")
def list_flows(*, as_json: JsonOption = False, all_columns: AllColumnsOption = False, home: HomeOption = None) -> None:
    """List the flows that ever ran here: their status, their process, and their lag.

    Example: mainstem flow list
    """
    from mainstem.workbench.cli.flow_facts import flow_facts, known_flows, last_progress

    with open_home(home) as stem:
        progress = try_look({}, last_progress, stem)
        if isinstance(progress, Unreadable):
            show_note(f"the last batches are not shown: {progress.error}")
            progress = {}
        found = [try_look({"flow": name}, flow_facts, stem, name, progress) for name in known_flows(stem)]
        if as_json:
            print_json([json_entry(it, flow_json) for it in found])
            return
        columns = [
            Column("flow", style="bold"), Column("state"), Column("pid", "right", spared=2), Column("into"),
            Column("batch", "right"), Column("last batch", firm=True, spared=1), Column("took", "right", spared=2), *LAG_COLUMNS,
        ]  # fmt: skip
        facts = [it for it in found if not isinstance(it, Unreadable)]
        # Shown only if a flow has a value in them.
        shown = [place for place in range(len(SELDOM)) if any(_seldom(it)[place] for it in facts)]
        columns += [SELDOM[place] for place in shown]
        rows = (table_row(it, lambda it: [*_list_row(it), *(_seldom(it)[place] for place in shown)]) for it in found)
        show_table(columns, rows, empty="no flows yet", all_columns=all_columns)


def _list_row(it: FlowFacts) -> list[str]:
    return [
        it.flow, it.state, "" if it.pid is None else str(it.pid), it.sink, _batch(it), *_last(it), *lag_cells(it.lag)
    ]  # fmt: skip


def _seldom(it: FlowFacts) -> list[str]:
    return [show_count(it.late) if it.late else "", show_count(it.too_late) if it.too_late else "", it.waits]


def _batch(it: FlowFacts) -> str:
    return "none" if it.batch is None else str(it.batch)


def _every(it: FlowFacts) -> str:
    return show_duration(timedelta(microseconds=it.every_us or 0))


def _last(it: FlowFacts) -> list[str]:
    if not it.progress:
        return ["", ""]
    return [moment(it.progress[-1]["at"]), f"{it.progress[-1]['batch_ms']:,} ms"]


@app.command()
def describe(flow: FlowArgument, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Describe a flow: its process, its position in each partition of its topics, and its last batches.

    Example: mainstem flow describe revenue
    """
    from mainstem.workbench.cli.flow_facts import flow_facts

    with open_home(home) as stem:
        facts = flow_facts(stem, flow)
        if as_json:
            print_json(flow_json(facts))
            return
        _show(facts)


def _show(it: FlowFacts) -> None:
    from mainstem.flows.flow_description import sentence_of

    last = it.progress[-1] if it.progress else {}
    shown = [
        ("flow", it.flow),
        ("state", it.state if it.pid is None else f"{it.state}, process {it.pid}"),
        *([] if it.does is None else [("does", sentence_of(it.does))]),
        ("into", it.sink),
        ("version", str(it.version)),
        ("epoch", str(it.epoch)),
        ("last batch", _batch(it)),
        *([] if it.every_us is None else [("every", f"{_every(it)} at the soonest")]),
        ("watermark", moment(last.get("watermark"), none="none")),
        *([("held back by", str(it.holders[0]))] if it.holders else []),
        *([("waits for", it.waits)] if it.waits else []),
        *([] if it.fills is None else [("fills", str(it.fills))]),
        *([("transactions cut", _split_text(it))] if it.transactions.torn else []),
        ("keeps", _state(last)),
        *([("columnar", it.columns)] if it.columns else []),
        *([("built", f"for every batch: {it.built}")] if it.built else []),
        *([("sealed files", _files(it.history))] if it.history is not None else []),
        ("checkpoint", it.checkpoint),
    ]
    show_facts(shown + [("failed with" if not number else "", line) for number, line in enumerate(it.error)])
    typer.echo()
    show_table(
        [Column("source"), Column("partition", "right"), Column("next offset", "right"), *LAG_COLUMNS],
        ([part.source, str(part.partition), show_count(part.offset), *lag_cells(part.lag)] for part in it.sources),
        empty="its sources no longer exist",
    )
    if it.stages:
        typer.echo()
        _show_stages(it)
    typer.echo()
    show_table(
        [
            Column("batch", "right"), Column("at", firm=True), Column("rows in", "right"), Column("rows out", "right"),
            Column("rejected", "right"), Column("late", "right"), Column("too late", "right"), Column("took", "right", spared=2),
            Column("behind then", "right"),
        ],
        (
            [
                str(row["batch"]), moment(row["at"]), show_count(row["rows_in"]), show_count(row["rows_out"]),
                show_count(row["rejected"]), show_count(row["late"]), show_count(row.get("too_late") or 0), f"{row['batch_ms']:,} ms",
                show_count(row["lag_records"]),
            ]
            for row in it.progress[-BATCHES_SHOWN:]
        ),
        empty="no batches in the last reports",
    )  # fmt: skip


def _files(history: HistoryStatus) -> str:
    if history.over:
        return f"{show_count(history.rows, 'row')} were read from them, natively; since then it reads the topic"
    return f"{show_count(history.rows_in)} of {show_count(history.rows, 'row')} read from them, natively; then it reads the topic"


def _split_text(it: FlowFacts) -> str:
    last = ", ".join(map(str, it.transactions.last_torn))
    return f"{show_count(it.transactions.torn)} since it was started, the last: {last}; they overlap beyond the limit of a batch"


def _show_stages(it: FlowFacts) -> None:
    show_table(
        [Column("stage"), Column("keeps", "right"), Column("size", "right", spared=2), Column("too late"), Column("counted")],
        (
            [
                stage.stage, show_count(stage.rows, "row"), about_size(stage.bytes), _amounts(stage.late, "rows"),
                _amounts(stage.counts, ""),
            ]
            for stage in it.stages
        ),
        empty="",
    )  # fmt: skip


def _amounts(amounts: dict[str, Any], first: str) -> str:
    """Amounts with their units: 3 rows, total 41.5."""
    rows = [show_count(amounts[first], "row")] if first in amounts else []
    return (
        ", ".join(rows + [f"{unit.replace('_', ' ')} {amount:,}" for unit, amount in amounts.items() if unit != first])
        or "none"
    )


def _state(last: dict[str, Any]) -> str:
    if not last.get("state_rows"):
        return "nothing"
    return f"{show_count(last['state_rows'], 'row')}, {about_size(last['state_bytes'])}"


def flow_json(it: FlowFacts) -> dict[str, Any]:
    from mainstem.flows.flow_description import sentence_of

    return {
        "flow": it.flow,
        "state": it.state,
        "pid": it.pid,
        "version": it.version,
        "epoch": it.epoch,
        "sink": it.sink,
        "batch": it.batch,
        "every": None if it.every_us is None else _every(it),
        "error": it.error,
        "lag": it.lag,
        "sources": it.sources,
        "last_batches": [{**row, "phases": dict(row["phases"] or [])} for row in it.progress[-BATCHES_SHOWN:]],
        "checkpoint": it.checkpoint,
        "stages": it.stages,
        "watermark_holders": it.holders,
        "waits_for": it.waits_for,
        "waits_for_transactions": [wait._asdict() for wait in it.transactions.waits] if it.state == "running" else [],
        "retries": it.retries,
        "fills": it.fills,
        "transactions_cut": it.transactions.torn,
        "columnar": it.columns or None,
        "built_for_every_batch": it.built or None,
        "sealed_files_first": it.history,
        "does": None if it.does is None else {"text": sentence_of(it.does), **it.does},
    }


@app.command()
def stop(
    flows: Annotated[list[str], typer.Argument(metavar="FLOW...", help="The flows' names.")],
    *,
    wait: Annotated[str, typer.Option(help="How long to wait until it has stopped.")] = "1 minute",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Stop flows that run in another process, gracefully: the next run continues from there.

    That process continues with its other flows, and ends with its last one. Later runs are not affected.

    Example: mainstem flow stop revenue
    """
    limit = duration_us(wait, setting="--wait")
    with open_home(home) as stem:
        from mainstem.workbench.cli.flow_facts import flow_facts

        # All names are checked before the first flow is stopped.
        outcomes = []
        for facts in [flow_facts(stem, name) for name in flows]:
            if facts.pid is None:
                said, outcome, batch = f"flow {facts.flow} does not run", "not running", facts.batch
            else:
                batch, outcome = stop_flow(stem, facts, limit, wait), "stopped"
                after = "before its first batch" if batch is None else f"after batch {batch}"
                said = f"stopped flow {facts.flow} {after}"
            outcomes.append({"flow": facts.flow, "batch": batch, "outcome": outcome})
            if not as_json:
                typer.echo(said)
        if as_json:
            print_json(outcomes)


def stop_flow(stem: Mainstem, facts: FlowFacts, limit: int, wait: str) -> int | None:
    """Stop a flow; returns its last batch."""
    from mainstem.spark.checkpoint.checkpoint_offsets import last_batch
    from mainstem.spark.checkpoint.flow_store import FlowStore, find_process

    store = FlowStore(stem.home, facts.flow)
    clock, pause = stem.log.clock, threading.Event()
    began, asked = clock.monotonic(), 0
    while (process := find_process(run := store.of_version(facts.version))) is not None and process["pid"] == facts.pid:
        if run["epoch"] != asked:
            # Repeated if the flow was just restarted: that run has not seen the request.
            asked = run["epoch"]
            store.ask_to_stop(facts.version)
        if clock.monotonic() - began > limit:
            raise _still_running(facts, wait)
        pause.wait(LOOK_SECONDS)
    return last_batch(facts.checkpoint)


def _still_running(facts: FlowFacts, wait: str) -> Unavailable:
    from mainstem.processes import stopped

    stands = " That process is stopped (SIGSTOP) and cannot react." if stopped(facts.pid or 0) else ""
    return Unavailable(
        f'flow "{facts.flow}" has not stopped within {wait}',
        detail=f"Process {facts.pid} runs it and has a stop request; it stops once it reads the request.{stands}",
        hint=f"Wait longer (--wait), or end the process: kill {facts.pid}. Nothing is lost: the next run continues.",
    )
