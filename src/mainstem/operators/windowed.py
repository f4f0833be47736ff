"""windowed: aggregates over windows of time, with early, on-time and late results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mainstem.durations import Duration, duration_us
from mainstem.errors import Invalid, did_you_mean
from mainstem.operators.stage.stage import add_stage, remember
from mainstem.operators.windows.triggers import Trigger
from mainstem.operators.windows.window_kinds import WindowKind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["windowed"]

_RESULTS = ("discard", "accumulate", "retract")
_ON_TIME = ("always", "if changed")


def windowed(
    rows: DataFrame,
    window: WindowKind,
    *,
    by: str | Sequence[str] = (),
    aggregates: Column | str | Sequence[Column | str],
    on: str | None = None,
    early: Trigger | None = None,
    late: Trigger | None = None,
    lateness: Duration = "0 seconds",
    results: str = "accumulate",
    on_time: str = "always",
    name: str | None = None,
) -> DataFrame:
    """Aggregates of the rows of each window, for each key.

    `window`: the kind of window (`tumbling`, `hopping`, `cumulating`, `calendar`, `sliding`, `sessions`, `validity`,
    `everything`). `by`: the key. `aggregates`: as for Spark's `agg`, or as SQL ("sum(score) AS total"). `on`: the column with
    the time; by default the event time ("record.appended_at": the time of the append).

    A window is emitted on time when the watermark has passed its end; before that, when the trigger `early` fires; after
    it, when the trigger `late` fires (by default for each row), until `lateness` is over. Later rows go to the topic
    <flow>.late. `results`: "accumulate" emits the total so far, "discard" the total since the last pane, "retract" the total
    so far after a retraction of the previous one. `on_time="if changed"`: no on-time pane if it would equal the last one.

    The result has the columns of the key, `window` (start, end), the aggregates, `pane` (index, timing, final) and `record`.

    >>> from mainstem.testing import TestStream
    >>> from mainstem.operators import tumbling
    >>> scores = TestStream("team STRING, score INT, at TIMESTAMP", event_time="at")
    >>> scores = scores.rows([{"team": "red", "score": 5, "at": "2026-01-01 12:00:26"}]).watermark("2026-01-01 12:02")
    >>> shown = scores.run(lambda rows: windowed(rows, tumbling("2 minutes"), by="team", aggregates="sum(score) AS total"))
    >>> [(row["team"], row["total"], row["pane"]["timing"]) for row in shown.rows]
    [('red', 5, 'on_time')]
    """
    if not isinstance(window, WindowKind):
        raise Invalid(
            f"{window!r} is not a kind of window",
            detail="The second argument of windowed(rows, window, ...) must be a kind of window.",
            hint='For example: windowed(rows, tumbling("5 minutes"), ...), with tumbling from mainstem.operators.',
        )
    _check_choice("results", results, _RESULTS)
    _check_choice("on_time", on_time, _ON_TIME)
    for setting, trigger in (("early", early), ("late", late)):
        if trigger is not None and not isinstance(trigger, Trigger):
            raise Invalid(
                f"{setting}={trigger!r} is not a trigger",
                detail="A trigger is every(...), after_rows(...), each_row() or first_of(...).",
                hint=f'For example: {setting}=every("1 minute"), with every from mainstem.operators.',
            )
    written: list[Any] = list(aggregates) if isinstance(aggregates, (list, tuple)) else [aggregates]
    if not written:
        raise Invalid(
            "windowed has no aggregates",
            detail="It computes aggregates for each window.",
            hint='For example: aggregates=[F.count("*").alias("orders")].',
        )
    shown = {
        "early": early,
        "late": late,
        "lateness": duration_us(lateness, setting="lateness"),
        "results": results,
        "on_time": on_time,
    }
    if shown["late"] is not None and not shown["lateness"]:
        raise Invalid(
            "late= needs a lateness",
            detail="With a lateness of 0 seconds the on-time result of a window is final.",
            hint='Set how long a window may be corrected: lateness="1 hour".',
        )
    from mainstem.operators.windows.window_plan import WindowPlan, plan_windows

    plan: WindowPlan = remember("windowed", lambda: plan_windows(rows, window, by, written, on, shown))
    return plan.show(add_stage(plan.narrow(rows), plan.spec, name=name))


def _check_choice(setting: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise Invalid(
            f'{setting}="{value}" is not supported',
            detail=f"It must be one of: {', '.join(choices)}.",
            hint=did_you_mean(str(value), choices) or f'For example: {setting}="{choices[1]}".',
        )
