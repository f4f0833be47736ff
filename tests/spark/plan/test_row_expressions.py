"""Expressions over Arrow against Spark: each of them for 10,000 rows in which edges of all types meet, bit for bit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mainstem.errors import Invalid
from mainstem.spark.plan.catalyst_expression import TRANSLATIONS, NotTranslated, condition_of, translate
from mainstem.spark.plan.flow_plan import optimize
from mainstem.spark.plan.row_expression import (
    Expression,
    can_fail,
    columns_in,
    condition_mask,
    is_small,
    value_of,
    values_of,
)

ROWS = 10_000
DAY = 86_400_000_000
YEAR_1, YEAR_10000 = (date(1, 1, 1) - date(1970, 1, 1)).days, (date(9999, 12, 31) - date(1970, 1, 1)).days + 1

Draw = Callable[[random.Random], Any]


def whole(bits: int) -> Draw:
    edges = [0, 1, -1, 2, 7, -7, 10, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 2 ** (bits - 1) - 2, 1 - 2 ** (bits - 1)]
    return lambda chance: chance.choice(
        [chance.choice(edges), chance.randint(-50, 50), chance.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)]
    )


def between(low: int, high: int) -> Draw:
    return lambda chance: chance.choice(
        [low, high, 0, chance.randint(low, high), chance.randint(max(low, -9), min(high, 9))]
    )


def real(chance: random.Random) -> float:
    edges = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1.7976931348623157e308, 2.0**63, -(2.0**63), 2.0**31,
             2147483647.5, -2147483648.5, 0.5, -0.5, 1.5, 2.5, 2.0**53, 9.223372036854775e18, 127.9, -128.9, 3.4e38, 1e-46]  # fmt: skip
    return chance.choice(
        [chance.choice(edges), chance.uniform(-1000, 1000), chance.randint(-20, 20) / 2, chance.uniform(-1e19, 1e19)]
    )


def tame(chance: random.Random) -> float:
    return chance.choice([chance.randint(1, 20) / 4, -chance.uniform(0.001, 1e6), chance.uniform(0.001, 1e6)])


def text(chance: random.Random) -> str:
    edges = ["", " ", "a", "A", "ab", "abc", " a ", "\ta", "a\n", "ä", "ß", "İ", "ς", "z\U0001f600", "\U0001f600\U0001f601", "a%b", "a_b",
             "e\u0301", "\x00", "aaa", "xaxbx", "\u3000a", "%", "_", "a\\b", "line\nline"]  # fmt: skip
    some = "".join(chance.choice("ab x_%ä€\U0001f600\n") for _ in range(chance.randint(0, 12)))
    return chance.choice([chance.choice(edges), some])


def decimals(digits: int, scale: int) -> Draw:
    most = 10**digits - 1

    def draw(chance: random.Random) -> Decimal:
        unscaled = chance.choice(
            [0, 1, -1, most, -most, 5, 15, 25, -25, 50, chance.randint(-most, most), chance.randint(-999, 999)]
        )
        return Decimal(f"{unscaled}E-{scale}")

    return draw


def days(chance: random.Random) -> int:
    return chance.choice(
        [
            0,
            -1,
            1,
            YEAR_1,
            YEAR_10000 - 1,
            59,
            60,
            11016,
            11017,
            -25509,
            364,
            365,
            730,
            chance.randint(YEAR_1, YEAR_10000 - 1),
            chance.randint(-1000, 20000),
        ]
    )


def moments(chance: random.Random) -> int:
    return chance.choice(
        [
            0,
            -1,
            1,
            days(chance) * DAY,
            days(chance) * DAY - (days(chance) > YEAR_1),
            chance.randint(YEAR_1 * DAY, YEAR_10000 * DAY - 1),
            chance.randint(0, 2_000_000_000_000_000),
            999_999,
            -999_999,
        ]
    )


# The columns that expressions use: those with edges of their type, and those with values for which arithmetic cannot fail.
COLUMNS: dict[str, tuple[pa.DataType, Draw]] = {
    "b": (pa.int8(), whole(8)), "h": (pa.int16(), whole(16)), "i": (pa.int32(), whole(32)), "j": (pa.int32(), whole(32)),
    "n": (pa.int64(), whole(64)), "o": (pa.int64(), whole(64)),
    "few": (pa.int8(), between(-60, 60)), "some": (pa.int16(), between(-15000, 15000)), "k": (pa.int32(), between(-30000, 30000)),
    "many": (pa.int64(), between(-(2**31), 2**31)), "part": (pa.int32(), lambda chance: chance.randint(1, 100)), "by": (pa.int64(), lambda chance: chance.randint(-7, -1)),
    "x": (pa.float64(), real), "y": (pa.float64(), real), "f": (pa.float32(), real), "g": (pa.float32(), real),
    "z": (pa.float64(), tame), "r": (pa.float32(), tame),
    "s": (pa.string(), text), "t": (pa.string(), text), "raw": (pa.binary(), lambda chance: text(chance).encode()),
    "yes": (pa.bool_(), lambda chance: chance.random() < 0.5), "no": (pa.bool_(), lambda chance: chance.random() < 0.5),
    "m": (pa.decimal128(8, 2), decimals(8, 2)), "w": (pa.decimal128(12, 4), decimals(12, 4)), "wide": (pa.decimal128(38, 10), decimals(38, 10)),
    "d": (pa.date32(), days), "e": (pa.date32(), days), "far_day": (pa.date32(), whole(32)),
    "at": (pa.timestamp("us", "UTC"), moments), "until": (pa.timestamp("us", "UTC"), moments), "far": (pa.timestamp("us", "UTC"), whole(64)),
    "local": (pa.timestamp("us"), moments),
}  # fmt: skip

# Every kind of Spark's expressions that is translated, and what it is tried with. None of these fails for the values above.
CASES: dict[str, str] = {
    "Literal": "1Y, 2S, 3, 4L, 1.5F, -0.0D, double('NaN'), 'ä', X'00FF', true, 1.50BD, date'1969-12-31', timestamp'1969-12-31 23:59:59.999999', "
               "timestamp_ntz'2020-02-29 12:00:00', cast(null as int), cast(null as decimal(5,2))",
    "KnownNullable": "window(until, '7 seconds').start", "PreciseTimestampConversion": "window(until, '1 hour', '1 hour', '11 minutes').end",
    "And": "yes and no, yes and null, x > 0 and yes and n > 5", "Or": "yes or no, no or null, x > 0 or no or n > 5", "Not": "not yes, not (x > y)",
    "IsNull": "n is null, x is null, s is null, inner is null, inner.a is null", "IsNotNull": "n is not null, inner.b is not null", "IsNaN": "isnan(x), isnan(f)",
    "EqualTo": "b = few, n = o, i = 5, x = y, x = 0D, f = g, x = double('NaN'), s = t, s = 'a', raw = X'61', yes = no, m = 0.05BD, m = w, d = e, at = until, far = at, local = timestamp_ntz'1970-01-01 00:00:00'",
    "EqualNullSafe": "n <=> o, n <=> null, x <=> y, x <=> double('NaN'), f <=> g, s <=> t, yes <=> no, d <=> e, at <=> until, m <=> m + 0",
    "LessThan": "b < few, n < o, x < y, x < double('NaN'), x < 0D, 0D < x, f < g, s < t, raw < X'61', yes < no, m < w, d < e, at < until, local < timestamp_ntz'1970-01-01 00:00:00'",
    "LessThanOrEqual": "n <= o, x <= y, x <= double('NaN'), x <= 0D, double('NaN') <= x, f <= g, s <= t, yes <= no, wide <= 0, d <= e, at <= until",
    "GreaterThan": "n > o, x > y, x > double('NaN'), x > 0D, f > g, s > t, yes > no, m > w, d > e, at > until, n > i, x > f",
    "GreaterThanOrEqual": "n >= o, x >= y, x >= double('NaN'), x >= 0D, f >= g, s >= t, yes >= no, m >= w, d >= e, at >= until, s between 'a' and 'b'",
    "In": "n in (1, 2, 7), n in (1, null), s in ('a', 'ä'), d in (date'1970-01-01'), m in (0.01BD, 0.15BD), at in (timestamp'1970-01-01 00:00:00'), raw in (X'61', X'')",
    "InSet": "n in (0,1,2,3,4,5,6,7,8,9,10,11), s in ('a','b','c','d','e','f','g','h','i','j','ab', null)",
    "If": "if(n > 0, s, t), if(yes, x, y), if(null, n, o), nullif(n, 1), if(yes, m, null), nullif(x, 0D)",
    "CaseWhen": "case when n > 0 then 'more' when n < 0 then 'less' end, case when yes then at when no then until else null end, case i when 1 then 2 when 7 then 3 else 4 end, "
                "case when part > 50 then many * part when k <> 0 then many div k else many + 1 end",
    "Coalesce": "coalesce(n, o), coalesce(s, t, 'none'), coalesce(n, i, 0), ifnull(x, y), nvl(d, e), coalesce(few, many div 3, many * 2)",
    "CreateNamedStruct": "struct(n, s), named_struct('a', x, 'b', struct(m as c)), window(until, '7 seconds'), struct(n as column, s as literal)",
    "GetStructField": "inner.a, inner.b, inner.c.d, struct(n as a, s as b).b, inner.a + 0Y",
    "Cast": "cast(b as smallint), cast(b as bigint), cast(i as bigint), cast(n as double), cast(n as float), cast(i as float), cast(x as float), cast(f as double), "
            "cast(few as tinyint), cast(many as double), cast(part as tinyint), cast(k as smallint), cast(z as int), cast(r as bigint), cast(z as bigint), "
            "cast(n as decimal(20,0)), cast(i as decimal(15,2)), cast(b as decimal(3,0)), cast(m as decimal(20,5)), cast(m as double), cast(w as double), cast(wide as double), "
            "cast(yes as int), cast(yes as bigint), cast(yes as string), cast(n as string), cast(b as string), cast(s as binary), "
            "cast(at as date), cast(far as date), cast(local as date), cast(d as timestamp), cast(d as timestamp_ntz), cast(at as bigint), cast(far as bigint), cast(at as timestamp_ntz), cast(local as timestamp), "
            "cast(d as string), cast(far_day as string), cast(at as string), cast(far as string), cast(local as string)",
    "NaNvl": "nanvl(x, y), nanvl(f, g)",
    "Greatest": "greatest(n, o), greatest(x, y), greatest(y, x, 0D), greatest(s, t, 'a'), greatest(m, w), greatest(d, e), greatest(at, until), greatest(0D, x), greatest(-0.0D, x)",
    "Least": "least(n, o, 5), least(x, y), least(f, g), least(s, t), least(d, e), least(at, until), least(yes, no), least(x, 0D)",
    "AtLeastNNonNulls": "",
    "Add": "few + few, some + some, k + k, many + many, x + y, f + g, x + 1, m + m, m + w, m + 1, k + few",
    "Subtract": "few - few, some - some, k - part, many - k, x - y, f - g, 1 - x, m - w, w - m",
    "Multiply": "k * part, many * k, many * 0.908D, x * y, f * g, m * w, m * 2, many * 0.908BD, n * 0.908BD",
    "Divide": "x / z, z / 3, n / 2, f / r, many / part, x / -2D",
    "IntegralDivide": "n div 3, many div by, n div part, k div part, n div -2",
    "Remainder": "n % 3, n % -3, n % by, b % 7Y, i % part, x % z, f % r, n % -1",
    "Pmod": "pmod(n, 3L), pmod(n, by), pmod(i, part), pmod(b, 7Y), pmod(x, z), pmod(n, -3L), pmod(h, 11S)",
    "UnaryMinus": "-few, -some, -k, -many, -x, -f, -m", "Abs": "abs(few), abs(k), abs(many), abs(x), abs(f), abs(m)",
    "BitwiseAnd": "n & o, i & 255, b & few", "BitwiseOr": "n | o, i | 1", "BitwiseXor": "n ^ o, h ^ some", "BitwiseNot": "~n, ~b",
    "ShiftLeft": "n << 3, n << i, i << j, i << 31", "ShiftRight": "n >> 3, n >> i, i >> j", "ShiftRightUnsigned": "n >>> 3, n >>> i, i >>> j",
    "Floor": "floor(x), floor(z), floor(n), floor(f)", "Ceil": "ceil(x), ceil(z), ceil(n)", "Rint": "rint(x), rint(z)", "Sqrt": "sqrt(x), sqrt(n)", "Signum": "sign(x), sign(n)",
    "Round": "round(m, 1), round(m), round(w, 2), round(w, 3)",
    "Length": "length(s), char_length(t)", "OctetLength": "octet_length(s), octet_length(raw)",
    "Substring": "substring(s, 1, 1), substring(s, 2), substring(s, 0, 2), substring(s, -2, 1), substring(s, -3), substring(s, -5, 3), substring(s, 2, -1), substring(s, 2, 0), left(s, 3), right(s, 3), "
                 "substring(s, 3, 2147483647), substring(s, -2147483648, 5), substring(s, -2147483648, 2147483647), substring(s, 2147483647, 1), substring(s, -3, 3), substring(s, -3, 2)",
    "Concat": "concat(s, t), s || 'x', concat('a', s, 'b', t), concat(s, n)",
    "StringTrim": "trim(s), trim(BOTH 'ab' FROM s), trim(BOTH 'ä€' FROM s)", "StringTrimLeft": "ltrim(s), trim(LEADING 'xa' FROM s)", "StringTrimRight": "rtrim(s), trim(TRAILING 'b\\n' FROM s)",
    "StartsWith": "startswith(s, 'a'), s like 'a%', startswith(s, '')", "EndsWith": "endswith(s, 'b'), s like '%\\U0001f600', endswith(s, '')", "Contains": "contains(s, 'a'), s like '%x%', contains(s, ''), s like '%\\n%'",
    "Like": "s like 'a_b', s like '%a_b%', s like '_', s like 'a%b', s like '__%', s like '%_%a', s like 'a%b%', s like '_%ä'",
    "StringReplace": "replace(s, 'a', 'xyz'), replace(s, 'aa', 'a'), replace(s, '', 'x'), replace(s, 'ä'), replace(s, '\\U0001f600', 'a')",
    "UnixMicros": "unix_micros(at), unix_micros(far)", "UnixMillis": "unix_millis(at), unix_millis(far)", "UnixSeconds": "unix_seconds(at), unix_seconds(far)",
    "UnixTimestamp": "unix_timestamp(at)", "ToUnixTimestamp": "to_unix_timestamp(at)",
    "MicrosToTimestamp": "timestamp_micros(n)", "MillisToTimestamp": "timestamp_millis(many)", "SecondsToTimestamp": "timestamp_seconds(many), timestamp_seconds(k)",
    "UnixDate": "unix_date(d), unix_date(far_day)", "DateFromUnixDate": "date_from_unix_date(i)",
    "Year": "year(d), year(at), year(far_day), year(far), year(local)", "Quarter": "quarter(d), quarter(far_day)", "Month": "month(d), month(far_day), month(at)", "WeekOfYear": "weekofyear(d), weekofyear(far_day)",
    "DayOfMonth": "day(d), day(far_day), day(at)", "DayOfYear": "dayofyear(d), dayofyear(far_day)", "DayOfWeek": "dayofweek(d), dayofweek(far_day)", "WeekDay": "weekday(d), weekday(far_day)",
    "Hour": "hour(at), hour(far), hour(local)", "Minute": "minute(at), minute(far), minute(local)", "Second": "second(at), second(far), second(local)",
    "LastDay": "last_day(d), last_day(far_day)", "DateAdd": "date_add(d, 1), date_add(d, k), d + 7, date_add(far_day, i), date_add(d, few)", "DateSub": "date_sub(d, 1), date_sub(d, k), d - 7, date_sub(far_day, i)", "DateDiff": "datediff(d, e), datediff(far_day, date_from_unix_date(i))",
    "TruncDate": "trunc(d, 'year'), trunc(d, 'MM'), trunc(d, 'week'), trunc(far_day, 'week'), trunc(far_day, 'year'), trunc(far_day, 'mon')",
    "TruncTimestamp": "date_trunc('year', at), date_trunc('quarter', at), date_trunc('month', at), date_trunc('week', at), date_trunc('DAY', at), date_trunc('hour', at), date_trunc('minute', at), "
                      "date_trunc('second', at), date_trunc('millisecond', at), date_trunc('microsecond', at)",
    "TimestampAddInterval": "at + interval 5 minutes, at - interval '1 02:03:04.5' day to second, local + interval 3 days, at + interval '-7' second",
    "SubtractTimestamps": "at - until, at - until < interval '5' minute, local - timestamp_ntz'2000-01-01 00:00:00'",
}  # fmt: skip


def values() -> pa.Table:
    chance = random.Random(20261117)
    columns = {}
    for name, (data_type, draw) in COLUMNS.items():
        drawn = [None if chance.random() < 0.05 else draw(chance) for _ in range(ROWS)]
        storage = (
            pa.int32() if pa.types.is_date(data_type) else pa.int64() if pa.types.is_timestamp(data_type) else data_type
        )
        # numpy makes of a double the float next to it.
        columns[name] = (
            pa.array(drawn, pa.float64()).cast(data_type, safe=False)
            if data_type == pa.float32() else pa.array(drawn, storage).cast(data_type)
        )  # fmt: skip
    inner = [
        None if number % 7 == 0 else {"a": None if number % 5 == 0 else number % 100 - 50, "b": None if number % 3 == 0 else str(number), "c": None if number % 2 else {"d": number}}
        for number in range(ROWS)
    ]  # fmt: skip
    kind = pa.struct([("a", pa.int8()), ("b", pa.string()), ("c", pa.struct([("d", pa.int64())]))])
    return pa.table({**columns, "inner": pa.array(inner, kind)})


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return values()


@pytest.fixture(scope="module")
def frame(spark: SparkSession, table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    file = tmp_path_factory.mktemp("values") / "values.parquet"
    write(table, file)
    return spark.read.parquet(str(file))


@pytest.fixture(scope="module")
def batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def write(table: pa.Table, file: Path) -> None:
    pq.write_table(table, file)


def split(texts: str) -> list[str]:
    """Expressions that are divided by commas."""
    found, depth, start, quoted = [], 0, 0, False
    for place, letter in enumerate(texts):
        quoted ^= letter == "'"
        depth += 0 if quoted else (letter == "(") - (letter == ")")
        if letter == "," and not depth and not quoted:
            found.append(texts[start:place].strip())
            start = place + 1
    return [text for text in (*found, texts[start:].strip()) if text]


def translated(rows: DataFrame) -> list[Expression]:
    """The columns of a projection, as they are optimized."""
    return [translate(expression) for expression in optimized(rows)]


def optimized(rows: DataFrame) -> list[Any]:
    expressions = optimize(rows).expressions()
    found = [expressions.apply(place) for place in range(expressions.size())]
    return [expression.child() if expression.nodeName() == "Alias" else expression for expression in found]


def difference(ours: pa.Array, theirs: pa.Array) -> str:
    """The first row in which two columns are not the same, bit for bit; all NaN are."""
    if pa.types.is_struct(ours.type) and [field.name for field in ours.type] == [field.name for field in theirs.type]:
        parts = [difference(one, other) for one, other in zip(ours.flatten(), theirs.flatten(), strict=True)]
        parts.append(difference(pc.is_valid(ours), pc.is_valid(theirs)))
        return "; ".join(part for part in parts if part)
    if (ours.type, len(ours)) != (theirs.type, len(theirs)):
        return f"{len(ours)} {ours.type} are not {len(theirs)} {theirs.type}"
    ours, theirs = bits(ours), bits(theirs)
    if ours.equals(theirs):
        return ""
    unequal = [place for place, (one, other) in enumerate(zip(ours, theirs, strict=True)) if not one.equals(other)]
    return f"{len(unequal)} rows, first {unequal[0]}: {ours[unequal[0]]} is not {theirs[unequal[0]]}"


def bits(column: pa.Array) -> pa.Array:
    """Numbers and times as integers, of which none are equal that differ."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.fill_null(pc.is_nan(column), False), pa.scalar(math.nan, column.type), column)
    if pa.types.is_floating(column.type) or pa.types.is_temporal(column.type):
        return column.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
    return column


def differences(frame: DataFrame, batch: pa.RecordBatch, texts: list[str]) -> dict[str, str]:
    """Of all rows, and of a batch that begins in the middle of its buffers."""
    rows = frame.selectExpr(*(f"{text} AS c{place}" for place, text in enumerate(texts)))
    expressions = translated(rows)
    theirs = [column.combine_chunks() for column in rows.toArrow().columns]
    found: dict[str, str] = {}
    for start, count in ((0, batch.num_rows), (13, 1000), (7, 0)):
        ours = values_of(expressions, batch.slice(start, count))
        compared = zip(texts, ours, theirs, strict=True)
        found |= {text: it for text, one, other in compared if (it := difference(one, other.slice(start, count)))}
    return found


def test_expressions_are_computed_as_spark_does(
    frame: DataFrame, batch: pa.RecordBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What has no case here is not translated, and each case must be one of its kind.
    assert set(CASES) == set(TRANSLATIONS)
    met: set[str] = set()

    def meet(kind: str, translation: Any) -> Any:
        return lambda *arguments: met.add(kind) or translation(*arguments)

    for kind, translation in list(TRANSLATIONS.items()):
        monkeypatch.setitem(TRANSLATIONS, kind, meet(kind, translation))
    texts = [text for texts in CASES.values() for text in split(texts)]
    windows = [text for text in texts if "window(" in text]
    texts = [text for text in texts if text not in windows]
    found: dict[str, str] = {}
    for place in range(0, len(texts), 80):
        found |= differences(frame, batch, texts[place : place + 80])
    # Spark has one window for a row, and none for a row without a time.
    timed, there = frame.where("until is not null"), batch.filter(pc.is_valid(batch.column("until")))
    for text in windows:
        found |= differences(timed, there, [text])
    known = frame.selectExpr("x", "m", "s").na.drop(thresh=2)
    mask = condition_mask(translate(optimize(known).children().apply(0).condition()), batch)
    assert known.toArrow().column("s").equals(pa.chunked_array([batch.filter(mask).column("s")]))
    assert found == {}
    assert met == set(CASES)


# Expressions that fail for some rows, and the same ones with null instead.
FAILING_CASES = {
    "b + few": "try_add(b, few)", "i + j": "try_add(i, j)", "n + o": "try_add(n, o)", "n + 1": "try_add(n, 1)",
    "b - few": "try_subtract(b, few)", "n - o": "try_subtract(n, o)", "1 - n": "try_subtract(1, n)",
    "b * few": "try_multiply(b, few)", "i * j": "try_multiply(i, j)", "n * o": "try_multiply(n, o)",
    "x / y": "try_divide(x, y)", "n / k": "try_divide(n, k)", "n % k": "try_mod(n, k)", "x % y": "try_mod(x, y)", "b % few": "try_mod(b, few)",
    "n div o": "if(o = 0 or (o = -1 and n = -9223372036854775808L), null, n div o)",
    "pmod(n, o)": "if(o = 0, null, pmod(n, o))", "-n": "nullif(try_subtract(0, n), null)", "-b": "if(b = -128Y, null, -b)", "abs(i)": "if(i = -2147483648, null, abs(i))",
    "cast(n as int)": "try_cast(n as int)", "cast(i as smallint)": "try_cast(i as smallint)", "cast(h as tinyint)": "try_cast(h as tinyint)",
    "cast(x as bigint)": "try_cast(x as bigint)", "cast(x as int)": "try_cast(x as int)", "cast(x as tinyint)": "try_cast(x as tinyint)",
    "cast(f as bigint)": "try_cast(f as bigint)", "cast(f as int)": "try_cast(f as int)", "cast(f as smallint)": "try_cast(f as smallint)",
}  # fmt: skip


def test_an_expression_fails_for_the_rows_for_which_spark_fails(frame: DataFrame, batch: pa.RecordBatch) -> None:
    texts = [*FAILING_CASES]
    ours = translated(frame.selectExpr(*(f"{text} AS c{place}" for place, text in enumerate(texts))))
    theirs = frame.selectExpr(*(f"{text} AS c{place}" for place, text in enumerate(FAILING_CASES.values()))).toArrow()
    for text, expression, column in zip(texts, ours, theirs.columns, strict=True):
        assert can_fail(expression), text
        used = reduce(pc.and_, (pc.is_valid(batch.column(name)) for name in columns_in(expression)))
        fails = pc.and_(used, pc.is_null(column.combine_chunks()))
        works = pc.invert(fails)
        assert difference(value_of(expression, batch.filter(works)), column.filter(works).combine_chunks()) == "", text
        failing = batch.filter(fails)
        assert failing.num_rows, text
        for place in range(min(failing.num_rows, 50)):
            with pytest.raises(Invalid):
                value_of(expression, failing.slice(place, 1))


def test_a_time_that_is_too_large_fails(frame: DataFrame, batch: pa.RecordBatch) -> None:
    texts = ["timestamp_seconds(n)", "timestamp_millis(n)", "cast(far_day as timestamp)", "far + interval 1 day", "far - at",
             *(f"date_trunc('{unit}', far)" for unit in ("hour", "week", "year"))]  # fmt: skip
    for text in texts:
        rows = frame.selectExpr(text)
        with pytest.raises(Invalid, match="ARITHMETIC_OVERFLOW"):
            value_of(translated(rows)[0], batch)
        with pytest.raises((PySparkException, Py4JJavaError), match="overflow"):
            rows.toArrow()


# With parts that would fail for rows for which Spark does not compute them.
LAZY = [
    "case when k <> 0 then many div k else -1 end", "if(n between -1000 and 1000, n * n, 0)", "k <> 0 and many div k > 3", "k = 0 or many div k > 3",
    "coalesce(few, cast(b as int) + if(k <> 0, 1 div k, 0))", "case when x = 0 then 0 when x < 0 then 1 / x when x > 0 then -1 / x end",
    "if(n > 0, null, cast(n as string)) || if(n > 0, 'x', cast(-(n + 1) as string))", "not (k <> 0 and n % k = 1) or yes",
    "if(abs(cast(i as bigint)) < 40000, i * i, null) + part", "if(o > 5, o, null) + if(o > 5, 0, n * n)", "if(k = 0, null, n) / k", "n % if(k = 0, null, k)",
    "(n + 1) % if(n > 1000, null, 7)", "if(n > 1000, null, 7) % if(n > 1000, 0, 2)", "coalesce(if(o < 0, 1, null), o - 1)",
    "case when yes then if(k = 0, 0, many div k) when no then if(few = 0, 0, many div few) else many end",
]  # fmt: skip


def test_a_part_that_spark_does_not_compute_cannot_fail(
    spark: SparkSession, frame: DataFrame, batch: pa.RecordBatch
) -> None:
    # What several columns have in common Spark computes first, and then for all rows.
    spark.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    try:
        assert differences(frame, batch, LAZY) == {}
    finally:
        spark.conf.unset("spark.sql.subexpressionElimination.enabled")
    assert all(map(can_fail, translated(frame.selectExpr(*LAZY))))


def test_a_filter_computes_what_can_fail_only_for_rows_that_its_other_parts_keep(
    frame: DataFrame, batch: pa.RecordBatch
) -> None:
    rows = frame.where("k > 0 and many div k > 3 and s is not null").select("many", "k", "s")
    condition = translate(optimize(rows).children().apply(0).condition())
    kept = pa.Table.from_batches([batch.filter(condition_mask(condition, batch))]).select(["many", "k", "s"])
    assert kept.equals(rows.toArrow())
    # What can fail last: Spark may compute the parts of a filter in any order.
    first = ["and", *sorted(condition[1:], key=lambda part: not can_fail(part))]
    assert condition_mask(first, batch).equals(condition_mask(condition, batch))


def test_a_condition_that_only_narrows_never_fails(frame: DataFrame) -> None:
    def found(text: str) -> Any:
        return condition_of(optimized(frame.selectExpr(f"{text} AS c"))[0])

    assert found("n + 1 > 3") is None
    assert found("n + 1 > 3 and s = 'a'") == ["=", ["column", "s"], ["literal", "string", "a"]]
    assert found("n + 1 > 3 or s = 'a'") is None
    assert found("x + 1 > 3") is not None


# Spark's functions and casts that differ from what Arrow has, and those that are not the same twice.
REFUSED = [
    "upper(s)", "lower(s)", "round(x, 2)", "round(wide, 2)", "-wide", "wide * 2", "cast(x as string)", "cast(s as int)", "cast(s as double)",
    "cast(m as int)", "cast(w as decimal(8, 2))", "m / 2", "exp(x)", "s rlike 'a+'", "s like 'a\\\\_b'", "x in (1D, 2D)", "try_add(n, 1)", "try_cast(n as int)", "rand() > 0.5",
    "monotonically_increasing_id()", "uuid()", "array(n)", "trunc(d, 'quarter')", "at + make_interval(0, 1)", "s = t collate unicode", "struct(n) = struct(o)", "split(s, 'a')[0]",
    "case when n = 1 then array(n) end", "add_months(d, 1)", "contains(s, t)", "substring(s, i, 2)", "concat(raw, raw)", "n in (1, o)",
]  # fmt: skip


def test_what_is_not_the_same_in_arrow_is_left_to_spark(spark: SparkSession, frame: DataFrame) -> None:
    for text in REFUSED:
        with pytest.raises(NotTranslated):
            translated(frame.selectExpr(f"{text} AS c"))


@pytest.mark.parametrize(
    ("setting", "value", "texts"),
    [
        ("spark.sql.ansi.enabled", "false", ["n + 1", "n div 3", "cast(n as int)", "cast(x as int)", "-n", "abs(n)", "x / y", "n % k"]),
        ("spark.sql.session.timeZone", "Europe/Berlin", ["cast(at as date)", "cast(d as timestamp)", "hour(at)", "date_trunc('hour', at)", "at + interval 1 day", "cast(at as timestamp_ntz)"]),
    ],
)  # fmt: skip
def test_a_session_with_other_settings_is_left_to_spark(
    spark: SparkSession, frame: DataFrame, setting: str, value: str, texts: list[str]
) -> None:
    before = spark.conf.get(setting)
    spark.conf.set(setting, value)
    try:
        for text in texts:
            with pytest.raises(NotTranslated):
                translated(frame.selectExpr(f"{text} AS c"))
        assert translated(frame.selectExpr("x + 1", "n > 3", "unix_micros(at)"))
    finally:
        spark.conf.set(setting, before)


# How values of a type are made of others.
GRAMMAR = {
    "truth": ["yes", "no", "{number} < {number}", "{number} = {number}", "{real} >= {real}", "{real} <=> {real}", "{text} > {text}", "{time} <= {time}", "{day} <> {day}",
              "{truth} and {truth}", "{truth} or {truth}", "not {truth}", "{text} is null", "isnan({real})", "{number} in (1, 2, null)", "startswith({text}, 'a')"],
    "number": ["n", "o", "many", "{number} & {number}", "{number} ^ {number}", "{number} % 7", "{number} >> 3", "if({truth}, {number}, {number})", "coalesce({number}, {number})", "unix_micros({time})",
               "cast(length({text}) as bigint)", "cast(year({day}) as bigint)", "floor({real})", "least({number}, {number})", "pmod({number}, 5L)", "cast({truth} as bigint)"],
    "real": ["x", "y", "z", "{real} + {real}", "{real} - {real}", "{real} * {real}", "-{real}", "abs({real})", "nanvl({real}, {real})", "greatest({real}, {real})", "cast({number} as double)",
             "case when {truth} then {real} when {truth} then {real} end", "nullif({real}, {real})", "{real} / 3", "sqrt({real})"],
    "text": ["s", "t", "'a'", "substring({text}, 2, 3)", "right({text}, 2)", "{text} || {text}", "trim({text})", "replace({text}, 'a', 'ä')", "if({truth}, {text}, {text})", "cast({number} as string)"],
    "time": ["at", "until", "far", "if({truth}, {time}, {time})", "greatest({time}, {time})", "coalesce({time}, {time})"],
    "day": ["d", "e", "cast({time} as date)", "date_add({day}, 3)", "last_day({day})", "trunc({day}, 'week')"],
}  # fmt: skip


def compose(chance: random.Random, kind: str, depth: int) -> str:
    ways = GRAMMAR[kind]
    way = chance.choice([way for way in ways if "{" not in way] if depth == 0 else ways)
    for part in GRAMMAR:
        while f"{{{part}}}" in way:
            way = way.replace(f"{{{part}}}", f"({compose(chance, part, depth - 1)})", 1)
    return way


def test_compositions_are_computed_as_spark_does(frame: DataFrame, batch: pa.RecordBatch) -> None:
    chance = random.Random(20261118)
    texts = [compose(chance, kind, 3) for kind in GRAMMAR for _ in range(12)]
    assert differences(frame, batch, texts) == {}


def test_an_expression_of_too_many_parts_is_left_to_spark(frame: DataFrame) -> None:
    deep = " or ".join(f"n = {number} and o > {number}" for number in range(300))
    cases = "case " + " ".join(f"when n = {number} then s || '{number}'" for number in range(120)) + " end"
    for text in (deep, cases):
        with pytest.raises(NotTranslated):
            translated(frame.selectExpr(f"{text} AS c"))
    assert condition_of(optimized(frame.selectExpr(f"{deep} AS c"))[0]) is None
    found: Expression = ["column", "n"]
    for _ in range(60):
        found = ["+.", found, found]
    assert not is_small(found)
    assert is_small(["+.", ["column", "n"], ["column", "n"]])


def test_parts_are_found_in_structs_and_lists() -> None:
    expression: Expression = [
        "struct",
        ["column", ["in", ["column", "a"], [["literal", "int", 1]]]],
        ["+", ["+", ["column", "b"], ["column", "c"]]],
    ]
    assert columns_in(expression) == {"a", "b", "c"}
    assert can_fail(expression)
    assert not can_fail(["struct", ["+", ["column", "b"]]])


def test_an_expression_of_literals_alone_has_a_value_for_each_row() -> None:
    rows = pa.RecordBatch.from_pydict({"n": [1, 2]})
    one: Expression = ["literal", "int", 1]
    assert value_of(["date part", "year", ["literal", "date", 0]], rows).to_pylist() == [1970, 1970]
    assert value_of(["greatest", one, one], rows).to_pylist() == [1, 1]
    assert value_of(["if", ["=", one, one], one, ["divide whole", ["literal", "int", 0], one]], rows).to_pylist() == [
        1,
        1,
    ]
    assert condition_mask(["and", ["=", one, one], ["<", ["+", one, one], one]], rows).to_pylist() == [False, False]
