"""Values of columns as Python objects: those of Arrow's own conversion, for every type, with nulls and slices."""

import random
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.operators.stage.python_values import each_value, to_values

CASES = 300
TIME = pa.timestamp("us", "UTC")
PLAIN = [
    pa.int32(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), TIME,
    pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.date32(), pa.null(),
    pa.time64("us"), pa.decimal128(9, 2), pa.duration("us"),
]  # fmt: skip
# The first and the last of Python, 1970, and one with microseconds before it.
TIMES = [-62135596800000000, 253402300799999999, 0, -1, 1_767_268_800_000_007]
DAYS = [-719162, 2932896, 0, -1]


def generated_type(chance, depth):
    kind = chance.choice(["plain", "struct", "list", "large list", "map"]) if depth else "plain"
    if kind == "plain":
        return chance.choice(PLAIN)
    inner = [generated_type(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    if kind == "struct":
        return pa.struct([(f"f{place}", of) for place, of in enumerate(inner)])
    if kind == "map":
        return pa.map_(pa.string(), pa.int64())
    return {"list": pa.list_, "large list": pa.large_list}[kind](inner[0] if inner else TIME)


def generated_array(chance, data_type, count):
    nulls = [chance.random() < 0.2 for _ in range(count)] if chance.random() < 0.6 else None
    mask = None if nulls is None else pa.array(nulls, pa.bool_())
    if pa.types.is_struct(data_type):
        columns = [generated_array(chance, of.type, count) for of in data_type]
        if not columns:
            return pa.array([None if nulls and nulls[at] else {} for at in range(count)], data_type)
        return pa.StructArray.from_arrays(columns, fields=list(data_type), mask=mask)
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        lengths = [chance.randint(0, 3) for _ in range(count)]
        values = generated_array(chance, data_type.value_type, sum(lengths))
        offsets = [sum(lengths[:at]) for at in range(count + 1)]
        made = pa.LargeListArray if pa.types.is_large_list(data_type) else pa.ListArray
        stored = pa.int64() if pa.types.is_large_list(data_type) else pa.int32()
        return made.from_arrays(pa.array(offsets, stored), values, mask=mask)
    values = [None if nulls and nulls[at] else generated_value(chance, data_type) for at in range(count)]
    if pa.types.is_timestamp(data_type):
        return pa.array(values, pa.int64()).view(data_type)
    if pa.types.is_date32(data_type):
        return pa.array(values, pa.int32()).view(data_type)
    return pa.array(values, data_type)


def generated_value(chance, data_type):
    number = chance.randint(-1000, 1000)
    if pa.types.is_timestamp(data_type):
        # Of another unit or in a zone that is ahead, the last moments of Python are beyond its end.
        return chance.choice(TIMES) if data_type in (TIME, pa.timestamp("us")) else number
    if pa.types.is_date32(data_type):
        return chance.choice(DAYS)
    if pa.types.is_map(data_type):
        return [("a", number)] * chance.randint(0, 2)
    if pa.types.is_null(data_type):
        return None
    if pa.types.is_boolean(data_type):
        return number > 0
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return f"ü{number}"
    return f"{number}".encode() if pa.types.is_binary(data_type) else abs(number)


def test_values_are_those_of_arrow(share):
    for seed in range(share(CASES)):
        chance = random.Random(seed)
        data_type = generated_type(chance, 3)
        array = generated_array(chance, data_type, chance.choice([0, 1, 2, 20]))
        first = chance.randint(0, len(array))
        part = array.slice(first, chance.randint(0, len(array) - first))
        for column in (array, part, pa.chunked_array([part, array, part])):
            expected = column.to_pylist()
            assert to_values(column) == expected, (seed, data_type)
            assert list(each_value(column)) == expected, (seed, data_type)
            assert repr(to_values(column)) == repr(expected), (seed, data_type)


def test_records_of_a_topic_have_times_in_utc():
    found = to_values(pa.array([{"offset": 1, "appended_at": datetime(2026, 1, 1, tzinfo=UTC)}], WATERMARKED_RECORD))

    assert found[0]["appended_at"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert found[0]["headers"] is None


@pytest.mark.parametrize(("number", "data_type"), [(2**62, TIME), (-(2**62), TIME), (2**31 - 1, pa.date32())])
def test_a_time_beyond_those_of_python_is_refused_as_arrow_refuses_it(number, data_type):
    column = pa.array([0, number], pa.int32() if data_type == pa.date32() else pa.int64()).view(data_type)

    with pytest.raises((OverflowError, ValueError)) as expected:
        column.to_pylist()
    with pytest.raises(type(expected.value)):
        to_values(column)


def test_a_name_that_comes_twice_is_refused_as_arrow_refuses_it():
    column = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])

    with pytest.raises(ValueError, match="duplicate"):
        to_values(column)


def test_structs_are_made_when_they_are_taken():
    values = each_value(pa.array([{"day": date(2026, 1, 1)}, {"day": None}]))

    assert next(values) == {"day": date(2026, 1, 1)}
    assert next(values) == {"day": None}
