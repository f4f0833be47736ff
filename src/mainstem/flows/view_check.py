"""Whether a view is what its program makes of the log: sampled rows, made again, compared; and where one went wrong.

    replay    the flow once more, in a place of its own, up to exactly what the view has applied (`replay`)
    compare   the rows of a sample of keys: those that differ, that are missing, and that should not be there
    search    at which batch of the view the first of them began to differ: of each batch whose changes the view still
              keeps, what it was right after it, against a replay up to there; several batches with each replay
    offset    within that batch, the first record with which the row should have changed

Nothing of the home is changed, and the flow may run meanwhile: compared is what the view was at one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from mainstem.errors import Conflict, FellOff, Invalid
from mainstem.flows.checked_view import CheckedView, FirstWrong, WrongRow
from mainstem.flows.first_place import first_place
from mainstem.flows.program import Flows, PlannedFlow, Program
from mainstem.flows.rebuild import flow_into
from mainstem.flows.replay import Replay
from mainstem.flows.row_sample import Row, Rows, names_of, same_rows, sampled
from mainstem.flows.view_moments import Moment, OffsetLine, offsets_between, view_moments
from mainstem.log.placed import token_of
from mainstem.log_on_spark.flow_run import Offsets
from mainstem.log_on_spark.flow_store import FlowStore, running_in
from mainstem.views.view_store import VersionSnapshot

if TYPE_CHECKING:
    from mainstem.stem import Mainstem

__all__ = ["ViewCheck"]

# With one replay so many positions are looked at: each is a batch, and a batch costs less than beginning a replay.
WAYS = 8
CHANGES_MAX = 65_536
# Of so many wrong rows the first one is looked for.
SEARCHED_MAX = 100


class ViewCheck:
    """One check of one view. For one thread."""

    def __init__(self, stem: Mainstem, name: str, flows: Flows) -> None:
        self._stem = stem
        self._flows = flows
        self._view = stem.view(name)
        self._planned = flow_into(Program(stem, flows), name)
        self._check_sources(self._planned)
        # Sources of one flow are cut each for itself: of several, only where all of them end is one moment.
        self._ways = WAYS if len(self._planned.leaves) == 1 else 1
        self._replays = 0

    def run(self, sample: int, seed: int) -> CheckedView:
        """Compare about so many rows."""
        if sample < 1:
            raise Invalid(
                f"a sample of {sample} rows shows nothing",
                detail="It is how many rows of the view are made again and compared, about.",
                hint="Give 1 or more; for all rows a number that is larger than the view.",
            )
        with self._view.snapshot() as snapshot:
            version, rows, applied = snapshot.version, snapshot.count(), snapshot.offsets()
            position = snapshot.positions()[1]
            chosen, there = sampled(snapshot.batches, self._view.key, rows=rows, wanted=sample, seed=seed)
        upto = {topic: applied[topic] for topic in self._planned.topics if topic in applied}
        self._check_log(upto)
        with Replay(self._stem, self._view, self._planned, self._flows, [upto]) as replay:
            self._replays += 1
            made = replay.run()
            expected = chosen.of(made.batches()) if made.exists else {}
        wrong = _compared(there, expected, self._view.key)
        first = self._first(wrong, version, position, upto) if wrong else None
        return CheckedView(
            view=self._view.name, version=version, flow=self._planned.name, rows=rows,
            compared=len({*there, *expected}), upto=upto, seed=seed, wrong=wrong, first=first,
            running=self._running_in(version), replays=self._replays, depends=self._depends(),
        )  # fmt: skip

    # Whether it can be done

    def _check_sources(self, planned: PlannedFlow) -> None:
        others = [source for source in planned.sources if source not in planned.topics]
        if others:
            raise Invalid(
                f'view "{self._view.name}" cannot be checked against the log',
                detail=f"It is not made from topics alone, but from {', '.join(others)}.",
                hint="Check the views that it is made from; and build it anew beside the live one, which shows how they "
                f"differ: mainstem view rebuild {self._view.name} --program FILE --keep-both.",
            )

    def _check_log(self, upto: Offsets) -> None:
        """What is made again from a part of the log would be wrong itself."""
        for topic, ends in upto.items():
            backend = self._stem.log.open_topic(topic)
            for number, end in ends.items():
                if (first := backend.earliest(number)) > 0 and end > 0:
                    raise FellOff(
                        f'view "{self._view.name}" can no longer be checked: topic "{topic}" has dropped what it was made from',
                        detail=f"{topic}[{number}] begins at offset {first}.",
                        hint=f"Keep the topic for longer, for views that are made from now on: mainstem topic alter {topic} --keep forever",
                        topic=topic,
                        partition=number,
                        first_lost=0,
                        last_lost=first - 1,
                    )

    def _running_in(self, version: int) -> int | None:
        process = running_in(FlowStore(self._stem.home, self._planned.name).of_version(version))
        return None if process is None else int(process["pid"])

    def _depends(self) -> list[str]:
        """What of the flow may give other rows when it is cut into other batches."""
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
        # At each moment that was looked at, what the rows should have been.
        should: dict[int, Rows] = {last: {row.name: row.expected for row in wrong}}

        def were(place: int) -> Rows:
            with self._live(version) as live:
                return {name: live.get(key, moments[place].position) for name, key in keys.items()}

        def differing(place: int) -> list[str]:
            shown = were(place)
            return [name for name in keys if not same_rows(shown[name], should[place][name])]

        def look(places: Sequence[int]) -> list[bool]:
            should.update(zip(places, self._replayed([moments[place].applied for place in places], keys), strict=True))
            return [bool(differing(place)) for place in places]

        place = first_place(-1, last, self._ways, look)
        row = next(row for row in wrong if row.name in differing(place))
        cause: Literal["batch", "store"] = "batch"
        if row.name in last_told and not same_rows(last_told[row.name], row.shown):
            cause = "store"
        if place == 0 and not moments[0].first:
            # Of what was before the first batch that is known, nothing can be said.
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
                    f'another version of view "{self._view.name}" was put to use while it was checked',
                    detail=f"Version {version} was compared, and {live.version} is live now.",
                    hint="Check it again.",
                )
            yield live

    def _record(self, line: OffsetLine, row: WrongRow, before: Row, after: Row) -> tuple[str, int, int] | None:
        """The first record of some with which the row should have changed; None if it should not have at all."""
        if same_rows(before, after):
            return None

        def look(places: Sequence[int]) -> list[bool]:
            found = self._replayed([line.applied(place) for place in places], {row.name: row.key})
            return [not same_rows(before, rows[row.name]) for rows in found]

        return line.record(first_place(0, len(line), self._ways, look))

    def _replayed(self, cuts: Sequence[Offsets], keys: Mapping[str, Any]) -> list[Rows]:
        """What the rows with these keys should be at each cut."""
        if len(cuts) > 1 and self._ways == 1:
            return [rows for cut in cuts for rows in self._replayed([cut], keys)]
        with Replay(self._stem, self._view, self._planned, self._flows, cuts) as replay:
            self._replays += 1
            made = replay.run()
            return [{name: made.get(key, as_of=token_of(cut)) for name, key in keys.items()} for cut in cuts]

    def _last_told(self, wrong: Sequence[WrongRow], until: int) -> Rows:
        """What each row became with the last change of it that is kept: what it is, unless somebody changed the store."""
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


def _compared(there: Rows, expected: Rows, key: Sequence[str]) -> tuple[WrongRow, ...]:
    wrong = []
    for name in sorted({*there, *expected}):
        shown, should = there.get(name), expected.get(name)
        if not same_rows(shown, should):
            row = shown or should or {}
            wrong.append(WrongRow(name, tuple(row[column] for column in key), shown, should))
    return tuple(wrong)
