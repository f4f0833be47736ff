"""Where a batch ends so that no transaction is half in it: the engine against one that tries all ends."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.log.transaction_cut import NO_SPANS, Reached, TooLarge, TransactionCut, TransactionSpans, Unstable

Spans = dict[int, list[tuple[int, int, int]]]
Times = dict[int, list[int]]


def cut(starts: dict[int, int], spans: Spans, times: Times | None = None) -> TransactionCut[int]:
    reached = {
        lane: Reached("all", np.arange(starts[lane], len(row)), np.maximum.accumulate(np.array(row[starts[lane] :])))
        for lane, row in (times or {}).items()
    }
    return TransactionCut(starts, {lane: TransactionSpans.of(spans.get(lane, [])) for lane in starts}, reached)


def consistent(starts: dict[int, int], spans: Spans, ends: dict[int, int]) -> bool:
    known = [(number, lane, first, end) for lane, rows in spans.items() for number, first, end in rows]
    bound = [(number, lane, first, end) for number, lane, first, end in known if first >= starts[lane]]
    for number in {each[0] for each in bound}:
        mine = [(lane, first, end) for each, lane, first, end in bound if each == number]
        inside = all(end <= ends[lane] for lane, _, end in mine)
        outside = all(first >= ends[lane] for lane, first, _ in mine)
        if not inside and not outside:
            return False
    return True


def aligned(starts: dict[int, int], times: Times, ends: dict[int, int]) -> bool:
    """Whether nothing that is taken is later than the latest time up to the first row that is left in any other lane."""
    reached = {
        lane: np.maximum.accumulate(np.array([*row[starts[lane] :], 0])[: len(row) - starts[lane]])
        for lane, row in times.items()
    }
    taken = [int(reached[lane][ends[lane] - starts[lane] - 1]) for lane in times if ends[lane] > starts[lane]]
    left = [int(reached[lane][ends[lane] - starts[lane]]) for lane in times if ends[lane] < len(times[lane])]
    return not taken or not left or max(taken) <= min(left)


def all_ends(starts: dict[int, int], limits: dict[int, int]) -> list[dict[int, int]]:
    ranges = [range(starts[lane], max(starts[lane], limits[lane]) + 1) for lane in starts]
    return [dict(zip(starts, ends, strict=True)) for ends in product(*ranges)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, int], Spans]:
    """Up to three lanes of up to six records, each of one of a few transactions or of none."""
    lanes = range(draw(st.integers(1, 3)))
    spans: Spans = {}
    limits, starts = {}, {}
    for lane in lanes:
        owners = draw(st.lists(st.integers(0, 4), max_size=6))
        limits[lane] = len(owners)
        starts[lane] = draw(st.integers(0, min(2, len(owners))))
        for number in set(owners) - {0}:
            places = [place for place, owner in enumerate(owners) if owner == number]
            spans.setdefault(lane, []).append((number, places[0], places[-1] + 1))
    return starts, limits, spans


@given(histories(), st.data())
def test_below_is_the_greatest_of_all_consistent_ends(
    history: tuple[dict[int, int], dict[int, int], Spans], data: st.DataObject
):
    starts, lengths, spans = history
    limits = {lane: data.draw(st.integers(starts[lane], lengths[lane])) for lane in starts}
    found = cut(starts, spans).below(limits)
    possible = [ends for ends in all_ends(starts, limits) if consistent(starts, spans, ends)]
    assert found in possible
    assert all(ends[lane] <= found[lane] for ends in possible for lane in starts)
    assert not cut(starts, spans).find_split(found)


@given(histories(), st.data())
def test_above_is_the_smallest_of_all_consistent_ends(
    history: tuple[dict[int, int], dict[int, int], Spans], data: st.DataObject
):
    starts, lengths, spans = history
    seeds = {lane: data.draw(st.integers(starts[lane], lengths[lane])) for lane in starts}
    stable = {lane: data.draw(st.integers(starts[lane], lengths[lane])) for lane in starts}
    possible = [
        ends
        for ends in all_ends(starts, stable)
        if consistent(starts, spans, ends) and all(ends[lane] >= seeds[lane] for lane in starts)
    ]
    if not possible:
        with pytest.raises(Unstable):
            cut(starts, spans).above(seeds, stable, 100)
        return
    found = cut(starts, spans).above(seeds, stable, 100)
    assert found in possible
    assert all(ends[lane] >= found[lane] for ends in possible for lane in starts)
    rows = sum(found[lane] - starts[lane] for lane in starts)
    assert cut(starts, spans).above(seeds, stable, rows) == found
    if rows:
        with pytest.raises(TooLarge):
            cut(starts, spans).above(seeds, stable, rows - 1)


@given(histories())
def test_the_smallest_batch_has_the_fewest_rows(history: tuple[dict[int, int], dict[int, int], Spans]):
    starts, stable, spans = history
    sizes = [
        sum(ends.values()) - sum(starts.values())
        for ends in all_ends(starts, stable)
        if ends != starts and consistent(starts, spans, ends)
    ]
    if not sizes:
        with pytest.raises(Unstable):
            cut(starts, spans).smallest(stable, 100)
        return
    found = cut(starts, spans).smallest(stable, 100)
    assert consistent(starts, spans, found)
    assert sum(found.values()) - sum(starts.values()) == min(sizes)


@given(histories(), st.data())
def test_aligned_lanes_stay_aligned(history: tuple[dict[int, int], dict[int, int], Spans], data: st.DataObject):
    starts, lengths, spans = history
    times = {
        lane: data.draw(st.lists(st.integers(0, 9), min_size=length, max_size=length))
        for lane, length in lengths.items()
    }
    times = {lane: row for lane, row in times.items() if row[starts[lane] :]}
    limits = data.draw(st.sampled_from([ends for ends in all_ends(starts, lengths) if aligned(starts, times, ends)]))
    possible = [
        ends for ends in all_ends(starts, lengths) if consistent(starts, spans, ends) and aligned(starts, times, ends)
    ]
    found = cut(starts, spans, times).below(limits)
    assert found in possible
    assert found == max(
        (ends for ends in possible if all(ends[lane] <= limits[lane] for lane in starts)),
        key=lambda ends: sum(ends.values()),
    )
    found = cut(starts, spans, times).above(limits, lengths, 100)
    assert found in possible
    assert found == min(
        (ends for ends in possible if all(ends[lane] >= limits[lane] for lane in starts)),
        key=lambda ends: sum(ends.values()),
    )


def test_transactions_that_overlap_without_end_leave_no_place_below():
    count = 10_000
    overlapping = [(number, 2 * number, 2 * number + 3) for number in range(count)]
    endless = cut(
        {0: 0, 1: 0}, {0: overlapping, 1: [(number, first + 1, end + 1) for number, first, end in overlapping]}
    )
    assert endless.below({0: count, 1: count}) == {0: 0, 1: 1}
    with pytest.raises(TooLarge):
        endless.above({0: 1, 1: 2}, {0: 4 * count, 1: 4 * count}, 1000)
    with pytest.raises(Unstable):
        endless.above({0: 1, 1: 2}, {0: 1000, 1: 1000}, 4 * count)
    assert len(endless.find_split({0: count, 1: count})) == 1


def test_spans_of_several_files_name_a_transaction_once():
    one, other = TransactionSpans.of([(3, 0, 9), (5, 1, 2)]), TransactionSpans.of([(3, 0, 9), (7, 10, 12)])
    both = TransactionSpans.merge([one, other])
    assert both.rows() == [(3, 0, 9), (5, 1, 2), (7, 10, 12)]
    assert TransactionSpans.from_text(both.to_text()).rows() == both.rows()
    assert TransactionSpans.from_text(NO_SPANS.to_text()).rows() == []
    assert both.between(9, 11).rows() == [(7, 10, 12)]
