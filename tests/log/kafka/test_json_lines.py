"""JSON values read at once are what they are when read one by one."""

import json
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.log.kafka import kafka_codec as json_codec
from mainstem.log.kafka.kafka_codec import JsonCodec, lines_read
from mainstem.log.topic_settings import TopicSettings

TOPIC = TopicSettings.of("t", schema="n BIGINT, i INT, x DOUBLE, s STRING, b BOOLEAN, t TIMESTAMP")


@dataclass(frozen=True)
class Written:
    """A message, as far as the codec looks at it."""

    text: str

    def value(self) -> bytes:
        return self.text.encode("utf-8", "surrogatepass")

    def key(self) -> None:
        return None


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.sampled_from([2**53 + 1, -(2**53) - 1, 10**400, 12345678901234567000]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(
        ["NaN", "1", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01T01:02:03.5Z", "2026-01-01T01:02:03+02:00"]
    ),
    st.datetimes().map(lambda at: at.isoformat() + "Z"),
)
ordinary = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "s": st.none() | st.text(max_size=5),
        "b": st.none() | st.booleans(),
        "t": st.none() | st.datetimes().map(lambda at: at.isoformat() + "Z"),
        "other": st.none() | st.lists(st.integers(), max_size=2),
    },
)
odd = st.dictionaries(st.sampled_from("nixsbt"), scalars, max_size=6)
texts = st.one_of(
    st.one_of(ordinary, odd).map(json.dumps),
    st.sampled_from(
        [
            '{"n":1}{"n":2}',
            "",
            " ",
            "{",
            '{"n":1,"n":2}',
            '{"n":01}',
            '{"x":1e400}',
            '{"x":-1e400}',
            '{"s":"\ud800"}',
            '{"t":"0000-01-01T00:00:00Z"}',
            '[{"n":1}]',
            '{\n"n":1}',
            "null",
            "7",
        ]
    ),
)


def one_by_one(messages: list[Written]) -> tuple:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_codec, "lines_read", lambda values, schema: None)
        return told(messages)


def told(messages: list[Written]) -> tuple:
    rows, unreadable = JsonCodec().decode(messages, TOPIC)
    return str(rows.to_pylist()), [number for number, _ in unreadable]


@settings(max_examples=400)
@given(st.lists(texts, min_size=1, max_size=4).map(lambda many: [Written(text) for text in many]))
def test_at_once_is_as_one_by_one(messages: list[Written]) -> None:
    assert told(messages) == one_by_one(messages)


@given(st.lists(ordinary.map(json.dumps), min_size=1, max_size=6))
def test_ordinary_values_are_read_at_once(values: list[str]) -> None:
    assert lines_read([value.encode() for value in values], TOPIC.stored_schema) is not None


@pytest.mark.parametrize("text", ['{"s":"\ud800"}', '{"t":"0000-01-01T00:00:00Z"}'])
def test_what_arrow_takes_and_nobody_can_read_is_found_alone(text: str) -> None:
    messages = [Written('{"n":1}'), Written(text), Written('{"n":3}')]
    rows, unreadable = JsonCodec().decode(messages, TOPIC)  # type: ignore[arg-type]
    assert ([row["n"] for row in rows.to_pylist()], [number for number, _ in unreadable]) == ([1, None, 3], [1])


def test_what_stands_for_something_else_is_read_one_by_one() -> None:
    assert lines_read([b'{"d":"1.50"}'], pa.schema([("d", pa.decimal128(9, 2))])) is None


def test_digits_become_the_nearest_number_and_none_beyond_all() -> None:
    rows, unreadable = JsonCodec().decode(
        [Written('{"x":9007199254740993}'), Written('{"x":12345678901234567000}'), Written('{"x":1e400}')], TOPIC
    )
    assert rows.column("x").to_pylist() == [9007199254740992.0, 12345678901234567000.0, None]
    assert [number for number, _ in unreadable] == [2]
