"""Types of PostgreSQL as types of topics: each value equals what psycopg reads, or is refused with its reason.

C12: every type with a real server, 100,000 values: random ones and those at the ends of the type's range, NaN, infinity, dates
before Christ, NUL bytes, a megabyte of text, quotes, nulls. They are written as literals, read back by COPY in text form, and
compared with what psycopg reads in binary form.
"""

from __future__ import annotations

import json
import pickle
import random
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, Inexact
from math import inf, nan
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest
from psycopg.types.datetime import DateBinaryLoader, TimeBinaryLoader, TimestampBinaryLoader, TimestamptzBinaryLoader

from mainstem.capture.postgresql.postgres_types import (
    SESSION_OPTIONS,
    PostgresType,
    Unrepresentable,
    arrow_array,
    arrow_type,
)
from mainstem.log.rows.schema_ddl import schema_from_ddl, type_to_ddl
from tests.postgres_server import PostgresServer

BOOL = PostgresType(16, name="boolean")
BYTEA = PostgresType(17, name="bytea")
INT8 = PostgresType(20, name="bigint")
INT2 = PostgresType(21, name="smallint")
INT4 = PostgresType(23, name="integer")
TEXT = PostgresType(25, name="text")
OID = PostgresType(26, name="oid")
FLOAT4 = PostgresType(700, name="real")
FLOAT8 = PostgresType(701, name="double precision")
DATE = PostgresType(1082, name="date")
TIME = PostgresType(1083, name="time")
TIMESTAMP = PostgresType(1114, name="timestamp")
TIMESTAMPTZ = PostgresType(1184, name="timestamptz")
NUMERIC = PostgresType(1700, name="numeric")
ENUM = PostgresType(16_500, name="mood", enum=True)
MEGABYTE = 1 << 20


def numeric(precision: int, scale: int) -> PostgresType:
    return PostgresType(1700, (precision << 16 | scale & 0x7FF) + 4, f"numeric({precision},{scale})")


def array_of(element: PostgresType) -> PostgresType:
    return PostgresType(99, element.modifier, f"{element.name}[]", element=element.oid, enum=element.enum)


def column_type(ddl: str) -> pa.DataType:
    return schema_from_ddl(f"a {ddl}").field("a").type


@pytest.mark.parametrize(
    ("column", "ddl"),
    [
        (numeric(10, 2), "DECIMAL(10, 2)"),
        (numeric(38, 38), "DECIMAL(38, 38)"),
        (numeric(1, 0), "DECIMAL(1, 0)"),
        (numeric(39, 2), "STRING"),
        (numeric(1000, 1000), "STRING"),
        (numeric(5, -2), "STRING"),
        (numeric(3, 5), "STRING"),
        (NUMERIC, "STRING"),
        (ENUM, "STRING"),
        (array_of(INT4), "ARRAY<INT>"),
        (array_of(numeric(10, 2)), "ARRAY<DECIMAL(10, 2)>"),
        (array_of(NUMERIC), "ARRAY<STRING>"),
        (array_of(ENUM), "ARRAY<STRING>"),
        # The delimiter of its elements is not known.
        (array_of(PostgresType(16_500)), "STRING"),
    ],
)
def test_a_type_becomes_a_type_of_topics(column: PostgresType, ddl: str) -> None:
    assert type_to_ddl(arrow_type(column)) == ddl


@pytest.mark.parametrize(
    ("column", "ddl", "texts", "values"),
    [
        (BOOL, "BOOLEAN", [b"t", None, b"f"], [True, None, False]),
        (INT2, "SMALLINT", [b"-32768", None, b"32767"], [-32768, None, 32767]),
        (INT4, "INT", [b"-2147483648", b"0"], [-(2**31), 0]),
        (INT8, "BIGINT", [b"-9223372036854775808", b"9223372036854775807"], [-(2**63), 2**63 - 1]),
        (OID, "BIGINT", [b"4294967295"], [2**32 - 1]),
        (FLOAT4, "FLOAT", [b"0.1", b"-0", b"NaN", b"-Infinity", b"1e-45"], [0.10000000149011612, -0.0, nan, -inf, 2**-149]),
        (FLOAT8, "DOUBLE", [b"0.1", b"1e+300", b"NaN", b"Infinity", b"5e-324"], [0.1, 1e300, nan, inf, 5e-324]),
        (numeric(4, 2), "DECIMAL(4, 2)", [b"-12.30", None, b"0.00"], [Decimal("-12.30"), None, Decimal("0.00")]),
        (TEXT, "STRING", [b"", b"NULL", "\u00e4\n\U0001f600".encode()], ["", "NULL", "\u00e4\n\U0001f600"]),
        (BYTEA, "BINARY", [rb"\x", None, rb"\x00ff5c78", rb"\x6d"], [b"", None, b"\0\xff\\x", b"m"]),
        (DATE, "DATE", [b"0001-01-01", b"9999-12-31"], [date(1, 1, 1), date(9999, 12, 31)]),
        (TIME, "TIME", [b"00:00:00", None, b"23:59:59.999999", b"03:04:05.5"],
         [time(0), None, time(23, 59, 59, 999_999), time(3, 4, 5, 500_000)]),
        (TIMESTAMP, "TIMESTAMP_NTZ", [b"2024-01-02 03:04:05.678"], [datetime.fromisoformat("2024-01-02T03:04:05.678000")]),
        (TIMESTAMPTZ, "TIMESTAMP", [b"0001-01-01 00:00:00+00", b"9999-12-31 23:59:59.999999+00"],
         [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)]),
        (array_of(INT4), "ARRAY<INT>", [b"{1,NULL,-2}", b"{}", None, b"{NULL}"], [[1, None, -2], [], None, [None]]),
        (array_of(TEXT), "ARRAY<STRING>", [rb'{NULL,"NULL","","a \"b\"","\\","{1,2}",c d}', b"{}", b'{"\n"}'],
         [[None, "NULL", "", 'a "b"', "\\", "{1,2}", "c d"], [], ["\n"]]),
        (array_of(BYTEA), "ARRAY<BINARY>", [rb'{"\\x00","\\x",NULL}'], [[b"\0", b"", None]]),
        (array_of(TIMESTAMP), "ARRAY<TIMESTAMP_NTZ>", [b'{"2024-01-02 00:00:00"}'], [[datetime.fromisoformat("2024-01-02")]]),
        # As text, whatever it is.
        (DATE, "STRING", [b"infinity", b"0044-03-15 BC", None], ["infinity", "0044-03-15 BC", None]),
        (BYTEA, "STRING", [rb"\x00"], [r"\x00"]),
        (array_of(INT4), "STRING", [b"[0:1]={1,2}"], ["[0:1]={1,2}"]),
        # Wider than the column is.
        (INT2, "BIGINT", [b"-1"], [-1]),
        (INT4, "DOUBLE", [b"2147483647"], [2147483647.0]),
        (INT8, "DECIMAL(20, 1)", [b"-9223372036854775808"], [Decimal("-9223372036854775808.0")]),
        # As PostgreSQL and a topic widen it.
        (FLOAT4, "DOUBLE", [b"0.1", b"NaN", b"Infinity"], [0.10000000149011612, nan, inf]),
        (numeric(4, 2), "DECIMAL(38, 2)", [b"-99.99"], [Decimal("-99.99")]),
        (array_of(INT2), "ARRAY<BIGINT>", [b"{1}"], [[1]]),
        # Narrower, for the values that fit.
        (INT8, "INT", [b"5"], [5]),
        (FLOAT8, "FLOAT", [b"0.5", b"NaN", b"Infinity"], [0.5, nan, inf]),
        (NUMERIC, "DECIMAL(38, 2)", [b"1.5" + 50 * b"0", b"0." + 60 * b"0", b"-7"],
         [Decimal("1.50"), Decimal("0.00"), Decimal("-7.00")]),
        (TEXT, "INT", [None, None], [None, None]),
        *((column, ddl, [], []) for column, ddl in [(BOOL, "BOOLEAN"), (BYTEA, "BINARY"), (numeric(9, 0), "DECIMAL(9, 0)"),
          (DATE, "DATE"), (TIME, "TIME"), (array_of(TEXT), "ARRAY<STRING>")]),
        *((column, ddl, [None, None], [None, None]) for column, ddl in [(BYTEA, "BINARY"), (NUMERIC, "DECIMAL(9, 0)"),
          (TIMESTAMP, "TIMESTAMP_NTZ"), (array_of(INT4), "ARRAY<INT>")]),
    ],
)  # fmt: skip
def test_values_are_read(column: PostgresType, ddl: str, texts: list[bytes | None], values: list[object]) -> None:
    found = arrow_array(texts, column, column_type(ddl))
    found.validate(full=True)
    assert found.type == column_type(ddl)
    # Not equals: NaN is not equal to itself, and minus zero is to zero.
    assert repr([as_utc(value) for value in found.to_pylist()]) == repr(values)


def as_utc(value: object) -> object:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo else value


@pytest.mark.parametrize(
    ("column", "ddl", "good", "bad", "reason"),
    [
        (BOOL, "BOOLEAN", b"t", b"true", "not the text form of boolean under SESSION_OPTIONS"),
        (INT8, "INT", b"1", b"2147483648", "INT cannot store this number exactly"),
        (INT8, "DOUBLE", b"1", b"9007199254740993", "DOUBLE cannot store this number exactly"),
        (INT4, "FLOAT", b"1", b"16777217", "FLOAT cannot store this number exactly"),
        (FLOAT8, "FLOAT", b"1", b"0.1", "FLOAT cannot store this number exactly"),
        (FLOAT8, "FLOAT", b"1", b"1e+39", "FLOAT cannot store this number exactly"),
        (numeric(4, 2), "DECIMAL(4, 2)", b"1.00", b"NaN", "DECIMAL(4, 2) cannot store NaN"),
        (NUMERIC, "DECIMAL(4, 2)", b"1", b"-Infinity", "DECIMAL(4, 2) cannot store -Infinity"),
        (NUMERIC, "DECIMAL(4, 2)", b"1", b"100", "DECIMAL(4, 2) cannot store this number exactly"),
        (NUMERIC, "DECIMAL(4, 2)", b"1", b"0.001", "DECIMAL(4, 2) cannot store this number exactly"),
        # Arrow alone makes another number of it.
        (NUMERIC, "DECIMAL(38, 0)", b"1", b"170141183460469231731687303715884105728",
         "DECIMAL(38, 0) cannot store this number exactly"),
        (NUMERIC, "DECIMAL(38, 0)", b"1", b"9" * 131_072, "DECIMAL(38, 0) cannot store this number exactly"),
        (TEXT, "STRING", b"a", b"a\xff", "byte 1 is not UTF-8"),
        (TEXT, "INT", None, b"12", "INT cannot store values of type text"),
        (DATE, "TIMESTAMP_NTZ", None, b"2024-01-02", "TIMESTAMP_NTZ cannot store values of type date"),
        (TIMESTAMP, "TIMESTAMP", None, b"2024-01-02 00:00:00", "TIMESTAMP cannot store values of type timestamp"),
        (BYTEA, "BINARY", rb"\x00", rb"a\000", "not the text form of bytea under SESSION_OPTIONS"),
        (BYTEA, "BINARY", rb"\x00", b"6d61", "not the text form of bytea under SESSION_OPTIONS"),
        (BYTEA, "BINARY", rb"\x00", rb"\x0", "not the text form of bytea under SESSION_OPTIONS"),
        (DATE, "DATE", b"2024-01-02", b"infinity", "DATE cannot store infinity"),
        (DATE, "DATE", b"2024-01-02", b"0001-12-31 BC", "DATE stores the years 1 to 9999 only"),
        (DATE, "DATE", b"2024-01-02", b"0000-12-31", "DATE stores the years 1 to 9999 only"),
        (DATE, "DATE", b"2024-01-02", b"10000-01-01", "DATE stores the years 1 to 9999 only"),
        (DATE, "DATE", b"2024-01-02", b"02.01.2024",
         "not the text form of date under SESSION_OPTIONS"),
        (TIMESTAMP, "TIMESTAMP_NTZ", b"2024-01-02 00:00:00", b"-infinity", "TIMESTAMP_NTZ cannot store infinity"),
        (TIMESTAMPTZ, "TIMESTAMP", b"2024-01-02 00:00:00+00", b"294276-12-31 23:59:59.999999+00",
         "TIMESTAMP stores the years 1 to 9999 only"),
        (TIMESTAMPTZ, "TIMESTAMP", b"2024-01-02 00:00:00+00", b"4714-11-24 00:00:00+00 BC",
         "TIMESTAMP stores the years 1 to 9999 only"),
        (TIMESTAMPTZ, "TIMESTAMP", b"2024-01-02 00:00:00+00", b"0001-01-01 00:00:00+01",
         "not the text form of timestamptz under SESSION_OPTIONS"),
        (TIME, "TIME", b"23:59:59", b"24:00:00", "TIME cannot store 24:00:00"),
        (array_of(INT4), "ARRAY<INT>", b"{1}", b"{{1,2},{3,4}}", "ARRAY stores one dimension only"),
        (array_of(TEXT), "ARRAY<STRING>", b'{"a b"}', b'{{"a b"},{c}}', "ARRAY stores one dimension only"),
        (array_of(INT4), "ARRAY<INT>", b"{1}", b"[0:1]={1,2}", "ARRAY cannot store lower bounds"),
        (array_of(DATE), "ARRAY<DATE>", b"{2024-01-02}", b"{NULL,infinity}", "element 2, 'infinity': DATE cannot store infinity"),
        (array_of(TEXT), "ARRAY<INT>", b"{NULL}", b"{1}", "element 1, '1': INT cannot store values of type text"),
        (INT4, "ARRAY<INT>", None, b"1", "ARRAY<INT> cannot store values of type integer"),
        (array_of(INT4), "INT", None, b"{1}", "INT cannot store values of type integer[]"),
    ],
)  # fmt: skip
def test_a_value_without_a_place_is_refused(
    column: PostgresType, ddl: str, good: bytes | None, bad: bytes, reason: str
) -> None:
    for before, after in [(0, 0), (1, 0), (5, 3), (2, 100)]:
        with pytest.raises(Unrepresentable) as raised:
            arrow_array([*[good] * before, bad, None, *[bad, good] * after], column, column_type(ddl))
        refused = raised.value
        assert (refused.index, refused.value, refused.reason) == (before, bad.decode(errors="backslashreplace"), reason)
    again = pickle.loads(pickle.dumps(refused))
    assert (str(again), vars(again)) == (str(refused), vars(refused))
    assert str(refused).startswith("value 2, ")
    assert len(str(refused)) < 200


def test_a_decimal_is_exact_or_refused() -> None:
    chance, held = random.Random(7), 0
    for _ in range(3_000):
        digits = "".join(chance.choices("0159", k=chance.choice([1, 2, 5, 20, 37, 38, 39, 60])))
        point = chance.randint(0, len(digits))
        text = f"{chance.choice(['', '-'])}{digits[:point].lstrip('0') or '0'}.{digits[point:]}{'0' * chance.choice([0, 0, 3, 40])}"
        text = text.rstrip(".")
        precision = chance.choice([1, 5, 37, 38])
        data_type = pa.decimal128(precision, chance.choice([0, precision // 2, precision]))
        expected = exact_decimal(text, data_type)
        try:
            found = arrow_array([text.encode()], NUMERIC, data_type)[0].as_py()
        except Unrepresentable:
            found = None
        assert found == expected, (text, data_type)
        held += found is not None
    assert 500 < held < 2_500


def exact_decimal(text: str, data_type: pa.DataType) -> Decimal | None:
    try:
        exact = Decimal(text).quantize(Decimal(1).scaleb(-data_type.scale), context=Context(prec=200, traps=[Inexact]))
    except Inexact:
        return None
    return exact if len(exact.as_tuple().digits) <= data_type.precision else None


# C12

SEED, VALUES = 20_261_118, 100_000
# psycopg reads no such value, or a topic has no place for it.
UNPLACED = object()

Chance = random.Random
Literal = Callable[[Chance], str]


@dataclass(frozen=True)
class Kind:
    """A type, its type in a topic, a random literal, and how psycopg's value is had: by what expression, and compared as what."""

    name: str
    ddl: str
    literal: Literal
    # As its output function writes it, through a query instead of COPY.
    select: str = "CASE WHEN v IS NOT NULL THEN format('%s', v) END"
    compared: Callable[[Any], object] = field(default=lambda value: value)
    # Literals that are written once each.
    large: tuple[str, ...] = ()


def plain(name: str, ddl: str, literal: Literal, **more: Any) -> Kind:
    """A type that psycopg reads into the same Python type as Arrow."""
    return Kind(name, ddl, literal, select="v", **more)


def pick(*usual: Literal, rarely: tuple[str, ...] = ()) -> Literal:
    """One of the usual ones; of the others about one in 30."""
    return lambda chance: chance.choice(rarely) if rarely and chance.random() < 0.03 else chance.choice(usual)(chance)


def integer(bits: int, *, signed: bool = True) -> Literal:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return pick(
        lambda chance: str(chance.randint(low, high)),
        lambda chance: str(chance.randint(max(low, -9), 9)),
        rarely=(str(low), str(high), "0"),
    )


def floating(form: str) -> Literal:
    def literal(chance: Chance) -> str:
        (value,) = struct.unpack(form, chance.randbytes(struct.calcsize(form)))
        return repr(value)

    return pick(
        literal, lambda chance: repr(chance.randint(-9, 9) / 4), rarely=("NaN", "Infinity", "-Infinity", "-0", "0")
    )


def decimal(precision: int, scale: int, *rarely: str) -> Literal:
    def literal(chance: Chance) -> str:
        digits = chance.randrange(10 ** chance.randint(1, precision))
        return f"{chance.choice(['', '-'])}{digits}e{-scale}"

    most = f"{10**precision - 1}e{-scale}"
    return pick(literal, rarely=("NaN", most, f"-{most}", "0", *rarely))


CHARACTERS = "abcXYZ 019,;:{}[]()'\"\\\n\r\t\b\f\v\x01\x7f\u00e4\u00df\u20ac\u4e2d\u0301\U0001f600\U0010ffff\ufeff"


def text(longest: int = 40, *rarely: str) -> Literal:
    return pick(
        lambda chance: "".join(chance.choices(CHARACTERS, k=chance.randint(0, longest))),
        rarely=("", "NULL", "null", r"\N", r"\.", '"', "\\", " ", "{}", *rarely),
    )


def hexadecimal(chance: Chance) -> str:
    return rf"\x{chance.randbytes(chance.randint(0, 40)).hex()}"


def day(chance: Chance) -> str:
    return f"{chance.randint(1, 9999):04}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"


def time_of_day(chance: Chance) -> str:
    fraction = "".join(chance.choices("0123456789", k=chance.randint(0, 6)))
    return f"{chance.randint(0, 23):02}:{chance.randint(0, 59):02}:{chance.randint(0, 59):02}{'.' * bool(fraction)}{fraction}"


def zone(chance: Chance) -> str:
    return f"{chance.choice('+-')}{chance.randint(0, 14):02}:{chance.choice([0, 30, 59]):02}"


OTHER_DAYS = (
    "infinity",
    "-infinity",
    "4713-01-01 BC",
    "0044-03-15 BC",
    "0001-12-31 BC",
    "10000-01-01",
    "0001-01-01",
    "9999-12-31",
    "2024-02-29",
    "294276-12-31",
)
DAY = pick(day, rarely=(*OTHER_DAYS, "5874897-12-31"))
MOMENT = pick(
    lambda chance: f"{day(chance)} {time_of_day(chance)}",
    rarely=(*OTHER_DAYS, "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "0044-03-15 12:00:00.5 BC"),
)
MOMENT_WITH_ZONE = pick(
    lambda chance: f"{day(chance)} {time_of_day(chance)}{zone(chance)}",
    rarely=(*OTHER_DAYS, "0001-01-01 00:00:00+00", "0001-01-01 00:00:00+01", "9999-12-31 23:59:59.999999-01"),
)
TIME_OF_DAY = pick(time_of_day, rarely=("24:00:00", "00:00:00", "23:59:59.999999"))


def uuid(chance: Chance) -> str:
    return str(UUID(bytes=chance.randbytes(16)))


def document(chance: Chance) -> str:
    made = {text(5)(chance): [chance.random(), text()(chance), None, {"a": chance.choice([True, 10**30])}]}
    return json.dumps(made, ensure_ascii=chance.random() < 0.5)


def mood(chance: Chance) -> str:
    return chance.choice(["sad", "so-so", 'very "happy"', "a,b", "NULL", "\u00e4"])


def interval(chance: Chance) -> str:
    return f"{chance.randint(-99, 99)} months {chance.randint(-99, 99)} days {chance.randint(-(10**9), 10**9) / 1000} seconds"


def bits(chance: Chance) -> str:
    return "".join(chance.choices("01", k=chance.randint(1, 20)))


def address(chance: Chance) -> str:
    parts = ".".join(str(byte) for byte in chance.randbytes(4))
    return chance.choice([f"{parts}/{chance.randint(0, 32)}", parts, f"2001:db8::{chance.randrange(9999)}"])


def integer_range(chance: Chance) -> str:
    low = chance.randint(-99, 99)
    return chance.choice(["empty", f"[{low},{low + 5}]", f"({low},)", "(,)"])


def moment_range(chance: Chance) -> str:
    return f'["{day(chance)} {time_of_day(chance)}+00",infinity)'


def dollars(chance: Chance) -> str:
    return str(chance.randint(-(10**9), 10**9) / 100)


def elements(literal: Literal) -> Literal:
    """An array of a few, now and then with lower bounds or of two dimensions."""

    def quoted(chance: Chance) -> str:
        if chance.random() < 0.1:
            return "NULL"
        inside = re.sub(r'(["\\])', r"\\\1", literal(chance))
        return f'"{inside}"'

    def array(chance: Chance) -> str:
        count = chance.choice([0, 1, 1, 2, 3, 6])
        found = ",".join(quoted(chance) for _ in range(count))
        shape = chance.random() if count else 1
        if shape < 0.02:
            return f"{{{{{found}}}}}"
        return f"[2:{count + 1}]={{{found}}}" if shape < 0.04 else f"{{{found}}}"

    return array


def array_kind(name: str, ddl: str, literal: Literal, **more: Any) -> Kind:
    return plain(f"{name}[]", f"ARRAY<{ddl}>", elements(literal), **more)


LARGE_TEXT = "'\"" + "\u20ac\n" * (MEGABYTE // 4)
NUMERIC_MOST = f"{'9' * 131_072}.{'9' * 16_383}"
KINDS = [
    plain("bool", "BOOLEAN", pick(lambda chance: chance.choice("tf"))),
    plain("int2", "SMALLINT", integer(16)),
    plain("int4", "INT", integer(32)),
    plain("int8", "BIGINT", integer(64)),
    plain("oid", "BIGINT", integer(32, signed=False)),
    plain("float4", "FLOAT", floating("f")),
    plain("float8", "DOUBLE", floating("d")),
    plain("numeric(10,2)", "DECIMAL(10, 2)", decimal(10, 2)),
    plain("numeric(38,10)", "DECIMAL(38, 10)", decimal(38, 10)),
    plain("numeric(38,38)", "DECIMAL(38, 38)", decimal(38, 38)),
    plain("numeric", "STRING", decimal(60, 30, "Infinity", "-Infinity", "1e-16383"), compared=Decimal, large=(NUMERIC_MOST,)),
    plain("numeric(60,5)", "STRING", decimal(60, 5), compared=Decimal),
    plain("numeric(5,-2)", "STRING", decimal(5, -2), compared=Decimal),
    plain("numeric(3,5)", "STRING", decimal(3, 5), compared=Decimal),
    plain("text", "STRING", text(), large=(LARGE_TEXT,)),
    plain("varchar(20)", "STRING", text(20)),
    plain("char(9)", "STRING", text(9)),
    plain("name", "STRING", text(12)),
    Kind('"char"', "STRING", pick(lambda chance: chance.choice("aZ\\\n \"'"))),
    plain("bytea", "BINARY", hexadecimal, large=(rf"\x{'00ff' * (MEGABYTE // 2)}",)),
    plain("date", "DATE", DAY),
    plain("time", "TIME", TIME_OF_DAY),
    plain("time(3)", "TIME", time_of_day),
    plain("timestamp", "TIMESTAMP_NTZ", MOMENT),
    plain("timestamptz", "TIMESTAMP", MOMENT_WITH_ZONE),
    plain("timestamptz(0)", "TIMESTAMP", lambda chance: f"{chance.randint(1900, 2100)}-05-06 {time_of_day(chance)}+00"),
    plain("uuid", "STRING", uuid, compared=UUID),
    plain("json", "STRING", document, compared=json.loads),
    plain("jsonb", "STRING", document, compared=json.loads),
    Kind("mood", "STRING", mood),
    Kind("interval", "STRING", interval),
    Kind("timetz", "STRING", lambda chance: f"{time_of_day(chance)}{zone(chance)}"),
    Kind("inet", "STRING", address),
    Kind("int4range", "STRING", integer_range),
    Kind("tstzrange", "STRING", moment_range),
    Kind("money", "STRING", dollars),
    Kind("varbit", "STRING", bits),
    Kind("box[]", "STRING", lambda chance: f"{{({chance.randint(0, 9)},1),(2,3);(4,5),(6,7)}}"),
    array_kind("bool", "BOOLEAN", lambda chance: chance.choice("tf")),
    array_kind("int4", "INT", integer(32)),
    array_kind("int8", "BIGINT", integer(64)),
    array_kind("float8", "DOUBLE", floating("d")),
    array_kind("numeric(10,2)", "DECIMAL(10, 2)", decimal(10, 2)),
    array_kind("text", "STRING", text(), large=(f'{{"\\"\\\\{LARGE_TEXT[2:]}",NULL}}',)),
    array_kind("bytea", "BINARY", hexadecimal),
    array_kind("date", "DATE", DAY),
    array_kind("time", "TIME", TIME_OF_DAY),
    array_kind("timestamp", "TIMESTAMP_NTZ", MOMENT),
    array_kind("timestamptz", "TIMESTAMP", MOMENT_WITH_ZONE),
    array_kind("uuid", "STRING", uuid, compared=lambda found: [None if value is None else UUID(value) for value in found]),
    Kind("mood[]", "ARRAY<STRING>", elements(mood), select="v::text[]"),
    Kind("int4range[]", "ARRAY<STRING>", elements(integer_range), select="v::text[]"),
]  # fmt: skip


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    if request.param == 16:
        yield request.getfixturevalue("postgres")
    else:
        with PostgresServer(version=request.param) as started:
            yield started


@contextmanager
def session(server: PostgresServer) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """In a schema of its own, with the settings that capture uses; a time that Python has not is UNPLACED."""
    # Nothing is prepared, because the table of the same name has another type each time.
    with psycopg.connect(server.new_address(), autocommit=True, prepare_threshold=None) as connection:
        for name, value in SESSION_OPTIONS.items():
            connection.execute(f"SET {name} = '{value}'")
        loaders = {"date": DateBinaryLoader, "time": TimeBinaryLoader, "timestamp": TimestampBinaryLoader, "timestamptz": TimestamptzBinaryLoader}  # fmt: skip
        for name, loader in loaders.items():
            connection.adapters.register_loader(name, lenient(loader))
        yield connection


def lenient(loader: Any) -> Any:
    def load(self: Any, data: Any) -> object:
        try:
            return loader.load(self, data)
        except psycopg.DataError:
            return UNPLACED

    return type(f"Lenient{loader.__name__}", (loader,), {"load": load})


CATALOG = """
    SELECT a.atttypid, a.atttypmod, format_type(a.atttypid, a.atttypmod),
           CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END, coalesce(e.typtype, t.typtype) = 'e'
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
    WHERE a.attrelid = %s::regclass AND a.attname = 'v'
"""


@pytest.mark.starts_servers
@pytest.mark.thorough
def test_every_value_is_what_psycopg_reads(server: PostgresServer, fault_report: Callable[..., None]) -> None:
    chance = random.Random(SEED)
    count = -(-VALUES // len(KINDS))
    compared, refused, wrong = 0, 0, []
    with session(server) as connection:
        version = connection.info.server_version // 10_000
        connection.execute("""CREATE TYPE mood AS ENUM ('sad', 'so-so', 'very "happy"', 'a,b', 'NULL', '\u00e4')""")
        for kind in KINDS:
            literals = [
                None if chance.random() < 0.02 else kind.literal(chance) for _ in range(count - len(kind.large))
            ]
            literals += kind.large
            postgres, texts = written_and_copied(connection, kind, literals)
            data_type = arrow_type(postgres)
            assert type_to_ddl(data_type) == kind.ddl, kind.name
            expected = read_by_psycopg(connection, kind, data_type)
            assert len(texts) == len(expected) == count
            bad = [number for number, value in enumerate(expected) if value is UNPLACED]
            good = [number for number, value in enumerate(expected) if value is not UNPLACED]
            found = arrow_array([texts[number] for number in good], postgres, data_type).to_pylist()
            for number, given in zip(good, found, strict=True):
                value = None if given is None else kind.compared(given)
                if not same(value, expected[number]):
                    wrong.append(
                        f"{kind.name}: {literals[number]!r:.80} is {value!r:.80}, not {expected[number]!r:.80}"
                    )
            # Each of them by itself, and the first one among all others.
            refusals = [first_refused([texts[number]], postgres, data_type) for number in bad]
            wrong += [
                f"{kind.name}: {literals[number]!r:.80} has a place"
                for number, index in zip(bad, refusals, strict=True)
                if index != 0
            ]
            assert first_refused(texts, postgres, data_type) == (bad[0] if bad else None), kind.name
            assert arrow_array(texts, postgres, pa.string()).to_pylist() == [
                None if value is None else value.decode() for value in texts
            ]
            compared, refused = compared + count, refused + len(bad)
    assert compared >= VALUES
    fault_report(
        "C12", points=compared, compared=compared, violations=wrong, seed=SEED, refused=refused, postgres=version
    )


def written_and_copied(
    connection: psycopg.Connection[tuple[Any, ...]], kind: Kind, literals: list[str | None]
) -> tuple[PostgresType, list[bytes | None]]:
    connection.execute("DROP TABLE IF EXISTS written")
    connection.execute(f"CREATE TABLE written (n int, v {kind.name})")
    cursor = connection.cursor()
    with cursor.copy("COPY written FROM STDIN") as copy:
        for row in enumerate(literals):
            copy.write_row(row)
    with cursor.copy("COPY (SELECT v FROM written ORDER BY n) TO STDOUT") as copy:
        lines = b"".join(copy).split(b"\n")[:-1]
    found = cursor.execute(CATALOG, ["written"]).fetchone()
    assert found is not None
    return PostgresType(*found), [None if line == rb"\N" else unescaped(line) for line in lines]


ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def unescaped(line: bytes) -> bytes:
    if b"\\" not in line:
        return line
    return re.sub(rb"\\(.)", lambda match: ESCAPES.get(match[1], match[1]), line)


def read_by_psycopg(
    connection: psycopg.Connection[tuple[Any, ...]], kind: Kind, data_type: pa.DataType
) -> list[object]:
    """What has no place in a column of the type is UNPLACED."""
    other_shape = "false"
    if pa.types.is_list(data_type):
        other_shape = "coalesce(array_ndims(v) > 1 OR array_lower(v, 1) <> 1, false)"
    cursor = connection.cursor(binary=True)
    rows = cursor.execute(f"SELECT {kind.select}, {other_shape} FROM written ORDER BY n").fetchall()
    is_string = data_type == pa.string()
    return [UNPLACED if shaped or (not is_string and unplaced(value)) else value for value, shaped in rows]


def unplaced(value: object) -> bool:
    if isinstance(value, list):
        return any(map(unplaced, value))
    return value is UNPLACED or (isinstance(value, Decimal) and not value.is_finite())


def same(value: object, expected: object) -> bool:
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, float | Decimal):
        # NaN is not equal to itself, and minus zero is to zero.
        return repr(value) == repr(expected)
    return type(value) is type(expected) and value == expected


def first_refused(texts: list[bytes | None], postgres: PostgresType, data_type: pa.DataType) -> int | None:
    try:
        arrow_array(texts, postgres, data_type)
    except Unrepresentable as refused:
        return refused.index
    return None


@pytest.mark.starts_servers
def test_every_array_of_the_catalog_is_known_by_its_form(server: PostgresServer) -> None:
    """Arrays in another form than `{a,b}` are left in it."""
    with psycopg.connect(server.address()) as connection:
        rows = connection.execute(
            "SELECT a.oid, a.typelem, a.typoutput = 'array_out'::regproc AND a.typdelim = ',', a.typname "
            "FROM pg_type a WHERE a.typcategory = 'A' AND a.oid < 16384"
        ).fetchall()
    wrong = [
        name
        for oid, element, in_braces, name in rows
        if pa.types.is_list(arrow_type(PostgresType(oid, element=element))) != in_braces
    ]
    assert wrong == []
    assert len(rows) > 50
