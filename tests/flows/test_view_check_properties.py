"""The parts of a check that need no Spark: the search for the first place, the line of records, and the sample."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.flows.view_check import RowSample, draw_sample, first_place, names_of, offsets_between, same_rows


@given(st.integers(-1, 50), st.integers(1, 5000), st.integers(1, 12), st.data())
def test_the_first_place_is_found_in_few_looks(before, size, ways, data):
    known = before + size
    first = data.draw(st.integers(before + 1, known))
    looks = []

    def look(places):
        assert before < places[0] <= places[-1] < known
        assert len(places) <= ways
        looks.append(len(places))
        return [place >= first for place in places]

    assert first_place(before, known, ways, look) == first
    # A look leaves at most one part in (ways + 1), rounded up.
    assert len(looks) <= math.log(size, ways + 1) + 2


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4))
def test_records_between_two_positions_lie_in_a_row(ends):
    start = {"t": {number: low for number, (low, _) in enumerate(ends)}}
    end = {"t": {number: low + more for number, (low, more) in enumerate(ends)}}
    line = offsets_between(start, end)
    assert len(line) == sum(more for _, more in ends)
    assert (line.offsets_after(0), line.offsets_after(len(line))) == (start, end)
    seen = set()
    for count in range(1, len(line) + 1):
        topic, partition, offset = line.record(count)
        assert line.offsets_after(count)[topic][partition] == offset + 1
        assert line.offsets_after(count - 1)[topic][partition] == offset
        seen.add((partition, offset))
    assert len(seen) == len(line)


@given(st.sets(st.text(max_size=3), max_size=40), st.floats(0, 1), st.integers())
def test_a_sample_is_of_keys_not_of_views(keys, share, seed):
    seed %= 2**63
    names = sorted(keys)
    batch = pa.record_batch({"id": pa.array(names, pa.string()), "n": list(range(len(names)))})
    other = pa.record_batch({"n": [0] * len(names), "id": pa.array(reversed(names), pa.string())})
    sample = RowSample(["id"], share=share, seed=seed)
    assert sample.of([batch]).keys() == sample.of([other.slice(0, 7), other.slice(7)]).keys()
    assert len(RowSample(["id"], share=1, seed=seed).of([batch])) == len(names)


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 2**32))
def test_a_sample_of_a_view_with_rows_has_some(count, wanted, seed):
    batch = pa.record_batch({"id": list(range(count))})
    sample, rows = draw_sample(lambda: [batch], ["id"], rows=count, wanted=wanted, seed=seed)
    assert 0 < len(rows) <= count
    assert sample.of([batch]) == rows
    if count <= wanted:
        assert len(rows) == count


def test_a_sample_that_may_have_none_is_found(monkeypatch):
    def by_chance_alone(batches, key, *, rows, wanted, seed):
        sample = RowSample(key, share=wanted / rows if rows > wanted else 1.0, seed=seed)
        return sample, sample.of(batches())

    monkeypatch.setitem(globals(), "draw_sample", by_chance_alone)
    with pytest.raises(AssertionError):
        test_a_sample_of_a_view_with_rows_has_some()


def test_rows_are_the_same_but_for_the_order_of_sums():
    row = {"a": 0.1 + 0.2, "b": [float("nan"), {"c": 1}], "d": None}
    assert same_rows(row, {"a": 0.3, "b": [float("nan"), {"c": 1}], "d": None})
    for other in ({**row, "a": 0.31}, {**row, "d": 0}, {**row, "b": [float("nan"), {"c": 2}]}, {"a": 0.3}, None):
        assert not same_rows(row, other)


def test_of_a_pane_is_compared_what_does_not_depend_on_batches():
    def row(index, timing, final):
        return {"n": 1, "pane": {"index": index, "timing": timing, "final": final}}

    assert same_rows(row(1, "late", False), row(1, "late", True))
    assert same_rows(row(1, "late", True), row(2, "late", True))
    assert not same_rows(row(1, "late", True), row(1, "on_time", True))
    assert not same_rows({**row(1, "late", True), "n": 2}, row(1, "late", True))
    # Another column of that name is compared whole, and so is another column with such fields.
    assert not same_rows({"pane": {"final": True}}, {"pane": {"final": False}})
    assert not same_rows({"other": row(1, "late", True)["pane"]}, {"other": row(1, "late", False)["pane"]})


def test_of_a_pane_in_the_key_all_but_final_tells_rows_apart():
    def names(*panes):
        columns = ("index", "timing", "final")
        return names_of(pa.table({"pane": [dict(zip(columns, pane, strict=True)) for pane in panes]}), ["pane"])

    assert names((1, "late", False)) == names((1, "late", True))
    assert len(set(names((1, "late", False), (2, "late", False), (1, "early", False)))) == 3
