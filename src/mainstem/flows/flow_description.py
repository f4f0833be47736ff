"""What a flow does: its sources, its operators in order with their parameters, and its sink, in a file and in a sentence.

    flows/<name>/does-v<version>.json    {"format": 1, "flow": "revenue", "version": 1, "epoch": 7, "mode": "batches", "every": null,
        "sources": [{"source": "orders", "delay": "1 minute", "idle_after": null}],
        "operators": [{"operator": "windowed", "stage": "windowed-0", "parameters": {"window": "tumbling", "size": "1 minute", ...}}],
        "sink": {"kind": "view", "name": "revenue", "key": ["store", "window"]}, "crc32c": ...}

Each run writes it, replaced atomically. It is for people and for the console: no run reads it, and without it, or if it is
damaged, a flow is only not described. An operator without a `stage` is one of Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mainstem.batch import FlowRun
from mainstem.durable_files import REAL_FILES, decode_checked, encode_checked, replace_file
from mainstem.durations import show_span
from mainstem.errors import TopicNotFound
from mainstem.flows.staged_batches import query_rows
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.plan.flow_plan import describe_operators

if TYPE_CHECKING:
    from mainstem.flows.program import PlannedFlow

__all__ = ["describe_flow", "key_of", "read_description", "sentence_of", "write_description"]

FORMAT = 1
VIEW, TOPICS = "view ", "topics "
_ONE_UNIT = re.compile(r"(\d+) (\w+?)s?")


def describe_flow(planned: PlannedFlow, run: FlowRun) -> dict[str, Any]:
    """What the flow does, as JSON."""
    flow, sink = planned.flow, planned.flow.into
    leaves = [planned.leaves[number] for number in sorted(planned.leaves)]
    native: list[dict[str, Any]] = []
    if len(planned.operators) > len(planned.stages):
        native = describe_operators(query_rows(planned.stages) if planned.stages else flow.rows)
    return {
        "flow": planned.name,
        "version": run.version,
        "epoch": run.epoch,
        "mode": flow.mode,
        "every": show_span(flow.every_us),
        "sources": [
            {
                "source": leaf.source,
                "delay": show_span(leaf.delay),
                "idle_after": None if leaf.idle is None else show_span(leaf.idle["after"]),
            }
            for leaf in leaves
        ],
        "operators": [
            *native,
            *(
                {"operator": stage.spec.operator, "stage": stage.name, "parameters": dict(stage.spec.parameters)}
                for stage in planned.stages
            ),
        ],
        "sink": {"kind": sink.kind, "name": sink.name, "key": key_of(sink)},
    }


def key_of(sink: Any) -> list[str]:
    """The key of a sink; empty if it has none, or is a topic that does not exist yet."""
    with suppress(TopicNotFound):
        settings = sink.settings if sink.kind == "topic" else sink
        return list(getattr(settings, "key", None) or ())
    return []


def write_description(store: FlowStore, run: FlowRun, planned: PlannedFlow) -> None:
    """Write what a run of the flow does, if it can be written: no flow fails for want of it."""
    content = {**describe_flow(planned, run), "format": FORMAT}
    with suppress(OSError):
        replace_file(REAL_FILES, store.description(run.version), encode_checked(content, indent=1))


def read_description(store: FlowStore, version: int) -> dict[str, Any] | None:
    """What a version of a flow does; None if it is not known."""
    # Another version of Mainstem may have written it, or a disk may have lost it: the next run writes it again.
    with suppress(OSError, ValueError), open(store.description(version), "rb") as file:
        content = decode_checked(file.read(), since=1, known=FORMAT)
        return content if content.get("format") == FORMAT else None
    return None


# In a sentence


def sentence_of(content: Mapping[str, Any]) -> str:
    """What a flow does.

    >>> windowed = {"window": "tumbling", "size": "1 minute", "by": ["store"], "lateness": "5 minutes"}
    >>> sentence_of({
    ...     "sources": [{"source": "orders", "delay": "1 minute"}],
    ...     "operators": [{"operator": "windowed", "stage": "windowed-0", "parameters": windowed}],
    ...     "sink": {"kind": "view", "name": "revenue", "key": ["store", "window"]},
    ... })
    'reads orders, keeps 1-minute windows by store that wait 1 minute for late rows and take corrections for 5 minutes more, into the view revenue'
    """
    sources = list(dict.fromkeys(_source(one["source"]) for one in content["sources"]))
    delays = list(dict.fromkeys(one["delay"] for one in content["sources"] if one["delay"]))
    steps = [_step(one["operator"], one["parameters"], delays) for one in content["operators"]]
    sink = content["sink"]
    into = f"into the {sink['kind']} {'in ' if sink['kind'] == 'files' else ''}{sink['name']}"
    return ", ".join([f"reads {_listed(sources)}", *steps, into])


def _source(source: str) -> str:
    if source.startswith(VIEW):
        return f"the view {source.removeprefix(VIEW)}"
    return f"the topics {source.removeprefix(TOPICS)}" if source.startswith(TOPICS) else source


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _step(operator: str, given: Mapping[str, Any], delays: Sequence[str]) -> str:
    """What one operator does, with its main parameters; the file has all of them."""
    by = f" by {_listed(given['by'])}" if given.get("by") else ""
    on = f" by {_listed([str(column) for column in given['on']])}" if isinstance(given.get("on"), Mapping) else ""
    how = f" ({given['how']})" if given.get("how") not in (None, "inner") else ""
    if "window" in given:
        return f"keeps {_windows(given)}{by}{_patience(given, delays)}"
    match operator:
        case "aggregate":
            return f"keeps {_listed(given['aggregates'])}{by}"
        case "join" if given.get("within"):
            return f"joins them{on}, from {_listed(given['within'])}{how}"
        case "join":
            return f"joins them{on}{how}{_where(given)}"
        case "enrich":
            return f"adds the row of a table{on}, {'the latest' if given['at'] == 'latest' else 'as of ' + str(given['at'])}{how}"
        case "dedupe":
            return f"drops rows that repeat{by} within {given['within']}"
        case "deduplicate" | "deduplicate within the watermark":
            return f"drops rows that repeat{by}"
        case "top":
            return f"keeps the first {given['count']}{by}, ordered by {_listed(given['order'])}"
        case "table" | "versions":
            what = "the newest row" if operator == "table" else "every version"
            return f"keeps {what} of each {_listed(given['key'])}"
        case "process":
            return f"runs {given['using']}{by}"
        case "compare_with":
            return f"compares rows{by} with those {given['earlier']} earlier"
        case "distinct":
            return f"keeps distinct rows{by}"
    return f"has {operator}{by}"


def _where(given: Mapping[str, Any]) -> str:
    return f" where {given['where']}" if given.get("where") else ""


def _windows(given: Mapping[str, Any]) -> str:
    match given["window"]:
        case "tumbling":
            return _sized(given["size"])
        case "hopping":
            return f"{_sized(given['size'])} every {given['slide']}"
        case "cumulating":
            return f"windows that grow by {given['step']} up to {given['size']}"
        case "calendar":
            return f"windows of a calendar {given['unit']} in {given['time_zone']}"
        case "sliding":
            return f"sliding windows of {given['span']}"
        case "sessions":
            return f"sessions with a gap of {given['gap']}"
        case "validity":
            return "the time for which each row is valid"
        case "everything":
            return "one window over everything"
    return f"{given['window']} windows"


def _sized(size: str) -> str:
    one = _ONE_UNIT.fullmatch(size)
    return f"{one[1]}-{one[2]} windows" if one else f"windows of {size}"


def _patience(given: Mapping[str, Any], delays: Sequence[str]) -> str:
    parts = [f"wait {delays[0]} for late rows"] if len(delays) == 1 else []
    lateness = given.get("lateness")
    if lateness not in (None, "0 seconds"):
        parts.append(f"take corrections for {lateness} more")
    return f" that {_listed(parts)}" if parts else ""
