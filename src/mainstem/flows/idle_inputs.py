"""Which inputs of a flow stop holding the others back when they are silent for long, and which ones go on without them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta

from mainstem.errors import Invalid
from mainstem.log.log import Log
from mainstem.log_on_spark.build import NEVER_IDLE, Leaf
from mainstem.log_on_spark.topic_glob import fitting

__all__ = ["with_idle_inputs"]

MICROSECOND = timedelta(microseconds=1)
VIEW, TOPICS = "view ", "topics "


def with_idle_inputs(leaves: Mapping[int, Leaf], tables: Collection[int], log: Log, flow: str) -> dict[int, Leaf]:
    """The inputs of a flow, each with what its request says of `idle_after`; see `idle_input`.

    `tables`: the numbers of those that tables are made of in which rows are looked up by time. Unless the program says
    otherwise such an input is idle by the rule of its topic.
    """
    spans = {
        number: _span(leaf, log, table=number in tables) for number, leaf in leaves.items() if leaf.delay is not None
    }
    going = [number for number, span in spans.items() if span is None]
    if len(spans) > 2 and not going:
        raise Invalid(
            f'every input of flow "{flow}" has an idle_after',
            detail=f"They are: {', '.join(leaves[number].source for number in spans)}. While one is idle, the flow goes by the "
            "watermark of those that have none.",
            hint='Leave idle_after= out for one of them; for the table of an enrich: idle_after="never".',
        )
    found = {number: replace(leaf, table=number in tables) for number, leaf in leaves.items()}
    for number, span in spans.items():
        beside = [(leaves[other], leaves[other].delay) for other in going or spans if other != number]
        if span is not None and beside:
            pairs = [[topic, delay] for leaf, delay in beside for topic in _topics(leaf, log)]
            found[number] = replace(found[number], idle={"after": span, "beside": pairs})
    return found


def _span(leaf: Leaf, log: Log, *, table: bool) -> int | None:
    """After how many microseconds an input is idle; None if it never is."""
    if leaf.idle_after is not None:
        return None if leaf.idle_after == NEVER_IDLE else leaf.idle_after
    if not table or leaf.source.startswith((VIEW, TOPICS)):
        return None
    return log.open_topic(leaf.source).settings.idle_after // MICROSECOND


def _topics(leaf: Leaf, log: Log) -> list[str]:
    """The topics that an input reads."""
    glob = leaf.source.removeprefix(TOPICS)
    return [leaf.source] if glob == leaf.source else fitting(glob, log.topic_names())
