"""Checks a view against the log: recomputes and compares sampled rows, and finds where the first one went wrong.

    replay    runs the flow into a temporary view, up to exactly the offsets that the view has applied
    compare   the rows of a sample of keys: different, missing and superfluous ones
    search    the batch with which the first of them began to differ: the view right after each batch whose changes it
              still has, against a replay up to there; several batches with each replay
    offset    within that batch, the first record with which the row should have changed

Nothing in the home is changed, and the flow may run meanwhile: a snapshot of the view is compared.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa

from mainstem.batch import Offsets
from mainstem.errors import Conflict, FellOff, Invalid, TopicNotFound, Unavailable
from mainstem.flows.flow import Flow
from mainstem.flows.late_topic import late_topic_of
from mainstem.flows.program import Flows, PlannedFlow, Program
from mainstem.flows.rebuild import flow_into
from mainstem.flows.runner import RunningFlows
from mainstem.log.append_result import token_of
from mainstem.operators.windows.panes import BATCH_DEPENDENT, COUNTS
from mainstem.spark.checkpoint.checkpoint_offsets import applied_offsets
from mainstem.spark.checkpoint.flow_store import FlowStore, find_process
from mainstem.spark.checkpoint.rejected_rows import rejected_topic_of
from mainstem.views.spark_view import SparkView
from mainstem.views.view_store import VersionSnapshot

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = [
    "CheckedView",
    "FirstWrong",
    "Moment",
    "OffsetLine",
    "Replay",
    "Row",
    "RowSample",
    "Rows",
    "ViewCheck",
    "WrongRow",
    "draw_sample",
    "first_place",
    "names_of",
    "offsets_between",
    "same_rows",
    "view_moments",
]


# The result of checking a view against the log.


@dataclass(frozen=True)
class WrongRow:
    """A wrong row: the view's row and the expected one; None where there is no row."""

    name: str = field(repr=False)
    key: tuple[Any, ...]
    shown: dict[str, Any] | None
    expected: dict[str, Any] | None


@dataclass(frozen=True)
class FirstWrong:
    """Where the first of the wrong rows went wrong.

    With the batch from `start` to `end`: the row was right before it and wrong after it. `start` is None if the view's
    history does not reach back before `end`. `record` (topic, partition, offset) is the first one of the batch with which
    the row should have changed; None if it should not have. `cause` is "store" if no batch wrote the row that the view
    has: it was changed in the file or the database itself, after that batch.
    """

    row: WrongRow
    record: tuple[str, int, int] | None
    start: Offsets | None
    end: Offsets
    cause: Literal["batch", "store"]


@dataclass(frozen=True)
class CheckedView:
    """A view, compared with a replay of the log up to the offsets that it had applied (`upto`).

    `compared` counts the keys that were looked up on both sides. `running` is the process in which the flow ran meanwhile.
    `depends` names operators of Spark whose results may depend on the batch boundaries.
    """

    view: str
    version: int
    flow: str
    rows: int
    compared: int
    upto: Offsets
    seed: int
    wrong: Sequence[WrongRow]
    first: FirstWrong | None
    running: int | None
    replays: int
    depends: Sequence[str] = ()

    @property
    def right(self) -> bool:
        """Whether every row that was compared is what the log says."""
        return not self.wrong

    @property
    def token(self) -> str:
        """Up to where the log was replayed, as a token."""
        return token_of(self.upto)


# Replay: runs a flow up to given offsets, into a temporary view.
#
#     checks/<flow>/          a view with history, which can be read as of each cut; removed at the end
#     flows/<flow>.check/     the checkpoint; removed at the end
#
# The flow runs as usual, under another name: its late and rejected rows go to topics of that name, which are deleted with
# the rest. Its batches end at the cuts, and nothing behind the last cut is read. If the process is killed, the next replay
# of the flow removes its files.


# Long enough that no history of a replay is trimmed.
HISTORY = "36500 days"


class Replay:
    """One replay. Used with `with`: everything it created is removed at the end."""

    def __init__(
        self, stem: Mainstem, view: SparkView, planned: PlannedFlow, flows: Flows, cuts: Sequence[Offsets]
    ) -> None:
        flow = planned.name
        self._stem = stem
        self._topics = planned.topics
        self._cuts = cuts
        self._program = flows
        self._into = view.name
        self._store = FlowStore(stem.home, f"{flow}.check")
        self._folder = f"{stem.home}/checks/{flow}"
        self._check_alone()
        self._remove()
        os.makedirs(self._folder, mode=0o700)
        self._sink = SparkView(
            self._folder, view.name, lambda: stem.spark, key=view.key, history=HISTORY, clock=stem.log.clock
        )
        self._running: RunningFlows | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.stop()
        self._sink.close()
        self._remove()

    def run(self) -> SparkView:
        """Replay everything; returns the view."""
        # Nothing was applied yet of a topic that a cut does not name.
        cuts = {
            topic: [{str(number): end for number, end in cut.get(topic, {}).items()} for cut in self._cuts]
            for topic in self._topics
        }
        program = Program(self._stem, self._flows, cuts=cuts)
        self._running = RunningFlows(self._stem, program, program.only([self._store.name]))
        [handle] = self._running
        handle.wait_until_idle()
        self._running.stop()
        self._running.check()
        self._check_complete()
        return self._sink

    def _flows(self, stem: Mainstem) -> Iterator[Flow]:
        made: Iterable[Any] = self._program(stem)
        for flow in made:
            if isinstance(flow, Flow) and (flow.into.kind, flow.into.name) == ("view", self._into):
                yield replace(flow, into=self._sink, name=self._store.name)
            else:
                yield flow

    def _check_complete(self) -> None:
        applied = self._sink.offsets() if self._sink.exists else {}
        for topic, ends in self._cuts[-1].items():
            for number, end in ends.items():
                if applied.get(topic, {}).get(number, 0) < end:
                    raise Unavailable(
                        f'the replay for view "{self._into}" ended before its target',
                        detail=f"It has applied {token_of(applied) or 'nothing'}; its target is "
                        f"{token_of(self._cuts[-1])}.",
                        hint="Start the check again. The replay may have been stopped with: mainstem flow stop.",
                    )

    def _check_alone(self) -> None:
        for run in self._store.read().get("runs", {}).values():
            if (process := find_process(run)) is not None:
                raise Conflict(
                    f'view "{self._into}" is being checked',
                    detail=f"Process {process['pid']} runs the check.",
                    hint="Wait until it has finished.",
                )

    def _remove(self) -> None:
        self._store.drop()
        shutil.rmtree(self._folder, ignore_errors=True)
        for topic in (late_topic_of(self._store.name), rejected_topic_of(self._store.name)):
            with suppress(TopicNotFound):
                self._stem.log.delete_topic(topic)


# The moments for which both the rows of a view and its applied offsets are known: the batches that it retains.


@dataclass(frozen=True)
class Moment:
    """The offsets applied right after a position; `first` if nothing was applied before it."""

    position: int
    applied: Offsets
    first: bool = False


def view_moments(snapshot: VersionSnapshot, checkpoint: str, topics: Sequence[str], last: Moment) -> list[Moment]:
    """All known moments of the live version, up to the last one.

    A view with history has them itself. For others they come from the flow's checkpoint, for the batches that Spark retains.
    """
    begun = snapshot.facts.history[-1].after
    since = snapshot.kept_since()
    if since is not None:
        found = _read_moments(snapshot, topics)
        oldest = max(begun, since.position)
        whole = since.position < 0
    else:
        batches = [
            (position, applied_offsets(checkpoint, batch)) for position, batch in snapshot.commits() if batch >= 0
        ]
        found = [Moment(position, _of(applied, topics)) for position, applied in batches if applied]
        oldest = max(begun, snapshot.positions()[0] - 1)
        whole = oldest == 0
    known = [moment for moment in found if oldest <= moment.position < last.position and any(moment.applied.values())]
    moments = [*known, last]
    if whole and begun == 0:
        moments[0] = replace(moments[0], first=True)
    return moments


def _read_moments(snapshot: VersionSnapshot, topics: Sequence[str]) -> list[Moment]:
    applied: dict[str, dict[int, int]] = {}
    found: dict[int, Moment] = {}
    for position, topic, partition, end in snapshot.reached_offsets():
        if topic in topics:
            applied = {**applied, topic: {**applied.get(topic, {}), partition: end}}
            found[position] = Moment(position, applied)
    return list(found.values())


def _of(applied: Offsets, topics: Sequence[str]) -> Offsets:
    return {topic: dict(ends) for topic, ends in applied.items() if topic in topics}


@dataclass(frozen=True)
class OffsetLine:
    """The records between two offsets as one sequence, partition by partition."""

    parts: tuple[tuple[str, int, int, int], ...]

    def __len__(self) -> int:
        return sum(end - start for *_, start, end in self.parts)

    def offsets_after(self, count: int) -> Offsets:
        """The offsets that are applied after the first `count` records.

        >>> offsets_between({"orders": {0: 2, 1: 5}}, {"orders": {0: 4, 1: 7}}).offsets_after(3)
        {'orders': {0: 4, 1: 6}}
        """
        found: dict[str, dict[int, int]] = {}
        for topic, partition, start, end in self.parts:
            taken = min(count, end - start)
            found.setdefault(topic, {})[partition] = start + taken
            count -= taken
        return found

    def record(self, count: int) -> tuple[str, int, int]:
        """The record number `count`: topic, partition, offset."""
        for topic, partition, start, end in self.parts:
            if count <= end - start:
                return topic, partition, start + count - 1
            count -= end - start
        raise IndexError(count)


def offsets_between(start: Offsets, end: Offsets) -> OffsetLine:
    """The records from `start` to `end`."""
    parts = [
        (topic, partition, start.get(topic, {}).get(partition, 0), upto)
        for topic, ends in sorted(end.items())
        for partition, upto in sorted(ends.items())
    ]
    return OffsetLine(tuple((topic, partition, first, max(first, upto)) for topic, partition, first, upto in parts))


# The sampled rows of a view: the same keys in every view.


# A row, or None if there is none; and rows by the text of their key.
Row = dict[str, Any] | None
Rows = dict[str, Row]

# The last digits of a sum of doubles depend on the order of the additions.
TOLERANCE = 1e-9
# The column of `windowed` that identifies a result of a window. Two of its fields may differ between a view and a replay.
PANE = "pane"


class RowSample:
    """A share of all keys, chosen by a hash of the key: two views with the same keys give the same ones.

    >>> rows = pa.table({"id": list(range(1000)), "n": [0] * 1000})
    >>> some = RowSample(["id"], share=0.1, seed=1).of(rows.to_batches())
    >>> 60 < len(some) < 140, some == RowSample(["id"], share=0.1, seed=1).of(rows.to_batches())
    (True, True)
    """

    def __init__(self, key: Sequence[str], *, share: float, seed: int) -> None:
        self._key = key
        self._whole = share >= 1
        self._below = int(share * (1 << 64))
        self._salt = seed.to_bytes(16, "big", signed=True)

    def of(self, batches: Iterable[pa.RecordBatch]) -> Rows:
        """The rows that are in the sample, by their key as text."""
        found: Rows = {}
        for batch in batches:
            names = names_of(batch, self._key)
            places = [place for place, name in enumerate(names) if self._whole or self._chosen(name)]
            rows = batch.take(pa.array(places, pa.int64())).to_pylist()
            found.update(zip((names[place] for place in places), rows, strict=True))
        return found

    def _chosen(self, name: str) -> bool:
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, salt=self._salt).digest()
        return int.from_bytes(digest, "big") < self._below


def draw_sample(
    batches: Callable[[], Iterable[pa.RecordBatch]], key: Sequence[str], *, rows: int, wanted: int, seed: int
) -> tuple[RowSample, Rows]:
    """A sample of about `wanted` of `rows` rows, and the rows in it: at least one, if there are any.

    >>> table = pa.table({"id": list(range(1000))})
    >>> {len(draw_sample(table.to_batches, ["id"], rows=1000, wanted=1, seed=seed)[1]) > 0 for seed in range(20)}
    {True}
    """
    share = wanted / rows if rows > wanted else 1.0
    while True:
        sample = RowSample(key, share=share, seed=seed)
        found = sample.of(batches())
        if found or share >= 1:
            return sample, found
        # The sample happened to be empty, so that nothing would be compared.
        share = min(1.0, 4 * share)


def names_of(rows: pa.RecordBatch | pa.Table, key: Sequence[str]) -> list[str]:
    """The key of each row as text, since keys that are structs are not hashable in Python."""
    columns = [
        [
            _drop_fields(name, value, BATCH_DEPENDENT)
            for value in rows.column(rows.schema.get_field_index(name)).to_pylist()
        ]
        for name in key
    ]
    return [repr(values) for values in zip(*columns, strict=True)]


def same_rows(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Whether two rows are equal, except for rounding of doubles summed in another order, and for the fields of `pane` that
    depend on batch boundaries.

    >>> same_rows({"n": 0.1 + 0.2}, {"n": 0.3}), same_rows({"n": 1}, None)
    (True, False)
    """
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(
        _same(*(_drop_fields(name, row[name], BATCH_DEPENDENT, COUNTS) for row in (one, other))) for name in one
    )


def _drop_fields(name: str, value: Any, *fields: str) -> Any:
    """A value of a column; without the given fields if it is `pane`."""
    if name != PANE or not isinstance(value, dict) or value.keys() != {BATCH_DEPENDENT, COUNTS, "timing"}:
        return value
    return {field: part for field, part in value.items() if field not in fields}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return same_rows(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


# Search for the first place at which something holds; each step tests several places at once.


# For places in order: whether it holds at each.
Look = Callable[[Sequence[int]], Sequence[bool]]


def first_place(before: int, known: int, ways: int, look: Look) -> int:
    """The first place behind `before` at which it holds, given that it holds at `known` and from the first one on.

    A look is expensive (a replay of the log), a further place in it is not: so each look tests up to `ways` places.

    >>> looks = []
    >>> def look(places):
    ...     looks.append(list(places))
    ...     return [place >= 700 for place in places]
    >>> first_place(-1, 1000, 9, look), len(looks)
    (700, 3)
    """
    while known - before > 1:
        count = min(ways, known - before - 1)
        places = [before + (known - before) * number // (count + 1) for number in range(1, count + 1)]
        for place, holds in zip(places, look(places), strict=True):
            if holds:
                known = place
                break
            before = place
    return known


# Positions tested by one replay: each is a batch, which costs less than starting a replay.
WAYS = 8
CHANGES_MAX = 65_536
# The number of wrong rows among which the first one is searched.
SEARCHED_MAX = 100


class ViewCheck:
    """One check of one view. For one thread."""

    def __init__(self, stem: Mainstem, name: str, flows: Flows) -> None:
        self._stem = stem
        self._flows = flows
        self._view = stem.view(name)
        self._planned = flow_into(Program(stem, flows), name)
        self._check_sources(self._planned)
        # The sources of a flow are cut independently: with several, only their common end is one moment.
        self._ways = WAYS if len(self._planned.leaves) == 1 else 1
        self._replays = 0

    def run(self, sample: int, seed: int) -> CheckedView:
        """Compare about `sample` rows."""
        if sample < 1:
            raise Invalid(
                f"sample is {sample}",
                detail="It is the approximate number of rows of the view that are recomputed and compared.",
                hint="Give 1 or more; for all rows, a number larger than the view.",
            )
        with self._view.snapshot() as snapshot:
            version, rows, applied = snapshot.version, snapshot.count(), snapshot.offsets()
            position = snapshot.positions()[1]
            chosen, there = draw_sample(snapshot.batches, self._view.key, rows=rows, wanted=sample, seed=seed)
        upto = {topic: applied[topic] for topic in self._planned.topics if topic in applied}
        self._check_log(upto)
        with self._replay([upto]) as made:
            expected = chosen.of(made.batches()) if made.exists else {}
        wrong = _compare(there, expected, self._view.key)
        first = self._first(wrong, version, position, upto) if wrong else None
        return CheckedView(
            view=self._view.name, version=version, flow=self._planned.name, rows=rows,
            compared=len({*there, *expected}), upto=upto, seed=seed, wrong=wrong, first=first,
            running=self._find_pid(version), replays=self._replays, depends=self._depends(),
        )  # fmt: skip

    # Whether it can be done

    def _check_sources(self, planned: PlannedFlow) -> None:
        others = [source for source in planned.sources if source not in planned.topics]
        if others:
            raise Invalid(
                f'view "{self._view.name}" cannot be checked against the log',
                detail=f"Its flow does not read topics only, but also {', '.join(others)}.",
                hint="Check the views that it is computed from; and rebuild it beside the live version, which shows how they "
                f"differ: mainstem view rebuild {self._view.name} --program FILE --keep-both.",
            )

    def _check_log(self, upto: Offsets) -> None:
        """Raise an error if the log is no longer complete: a replay of a part of it would be wrong."""
        for topic, ends in upto.items():
            backend = self._stem.log.open_topic(topic)
            for number, end in ends.items():
                if (first := backend.earliest(number)) > 0 and end > 0:
                    raise FellOff(
                        f'view "{self._view.name}" can no longer be checked: topic "{topic}" has dropped records that it was computed from',
                        detail=f"{topic}[{number}] starts at offset {first}.",
                        hint=f"For future views, raise the topic's retention: mainstem topic alter {topic} --keep forever",
                        topic=topic,
                        partition=number,
                        first_lost=0,
                        last_lost=first - 1,
                    )

    def _find_pid(self, version: int) -> int | None:
        process = find_process(FlowStore(self._stem.home, self._planned.name).of_version(version))
        return None if process is None else int(process["pid"])

    def _depends(self) -> list[str]:
        """The operators of the flow whose rows may depend on batch boundaries."""
        own = {stage.name for stage in self._planned.stages}
        return [
            operator.name
            for operator in self._planned.operators
            if operator.name not in own and "watermark" in operator.bounded_by
        ]

    # Where it went wrong

    def _first(self, wrong: Sequence[WrongRow], version: int, position: int, upto: Offsets) -> FirstWrong:
        wrong = wrong[:SEARCHED_MAX]
        checkpoint = FlowStore(self._stem.home, self._planned.name).checkpoint(version)
        with self._live(version) as live:
            moments = view_moments(live, checkpoint, self._planned.topics, Moment(position, upto))
        last_told = self._last_told(wrong, position)
        keys = {row.name: row.key for row in wrong}
        last = len(moments) - 1
        # The expected rows at each moment that was tested.
        should: dict[int, Rows] = {last: {row.name: row.expected for row in wrong}}

        def were(place: int) -> Rows:
            with self._live(version) as live:
                return {name: live.get(key, moments[place].position) for name, key in keys.items()}

        def find_differing(place: int) -> list[str]:
            shown = were(place)
            return [name for name in keys if not same_rows(shown[name], should[place][name])]

        def look(places: Sequence[int]) -> list[bool]:
            should.update(
                zip(places, self._replay_rows([moments[place].applied for place in places], keys), strict=True)
            )
            return [bool(find_differing(place)) for place in places]

        place = first_place(-1, last, self._ways, look)
        row = next(row for row in wrong if row.name in find_differing(place))
        cause: Literal["batch", "store"] = "batch"
        if row.name in last_told and not same_rows(last_told[row.name], row.shown):
            cause = "store"
        if place == 0 and not moments[0].first:
            # Nothing is known about the time before the first retained batch.
            return FirstWrong(row, None, None, moments[0].applied, cause)
        start: Offsets = moments[place - 1].applied if place else {}
        # It was right there.
        before = were(place - 1)[row.name] if place else None
        record = self._record(offsets_between(start, moments[place].applied), row, before, should[place][row.name])
        return FirstWrong(row, record, start, moments[place].applied, cause)

    @contextmanager
    def _live(self, version: int) -> Iterator[VersionSnapshot]:
        with self._view.snapshot() as live:
            if live.version != version:
                raise Conflict(
                    f'view "{self._view.name}" switched to another version during the check',
                    detail=f"Version {version} was compared; version {live.version} is live now.",
                    hint="Check it again.",
                )
            yield live

    def _record(self, line: OffsetLine, row: WrongRow, before: Row, after: Row) -> tuple[str, int, int] | None:
        """The first record of `line` with which the row should have changed; None if it should not have."""
        if same_rows(before, after):
            return None

        def look(places: Sequence[int]) -> list[bool]:
            found = self._replay_rows([line.offsets_after(place) for place in places], {row.name: row.key})
            return [not same_rows(before, rows[row.name]) for rows in found]

        return line.record(first_place(0, len(line), self._ways, look))

    def _replay_rows(self, cuts: Sequence[Offsets], keys: Mapping[str, Any]) -> list[Rows]:
        """The expected rows with these keys at each cut."""
        if len(cuts) > 1 and self._ways == 1:
            return [rows for cut in cuts for rows in self._replay_rows([cut], keys)]
        with self._replay(cuts) as made:
            return [{name: made.get(key, as_of=token_of(cut)) for name, key in keys.items()} for cut in cuts]

    @contextmanager
    def _replay(self, cuts: Sequence[Offsets]) -> Iterator[SparkView]:
        self._replays += 1
        with Replay(self._stem, self._view, self._planned, self._flows, cuts) as replay:
            yield replay.run()

    def _last_told(self, wrong: Sequence[WrongRow], until: int) -> Rows:
        """Each row after its last retained change: its current state, unless the store itself was changed."""
        names = {row.name for row in wrong}
        told: Rows = {}
        position = self._view.describe().first_position
        while position < until:
            changes = self._view.changes_between(position, until, CHANGES_MAX)
            position = changes.end
            rows = changes.rows
            for place, name in enumerate(names_of(rows, self._view.key)):
                if name in names:
                    [row] = rows.slice(place, 1).to_pylist()
                    told[name] = None if row.pop("record")["change"] == "delete" else row
        return told


def _compare(there: Rows, expected: Rows, key: Sequence[str]) -> tuple[WrongRow, ...]:
    wrong = []
    for name in sorted({*there, *expected}):
        shown, should = there.get(name), expected.get(name)
        if not same_rows(shown, should):
            row = shown or should or {}
            wrong.append(WrongRow(name, tuple(row[column] for column in key), shown, should))
    return tuple(wrong)
