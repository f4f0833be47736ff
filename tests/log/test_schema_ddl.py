"""Spark's DDL as people write it, and what is said of DDL that cannot be."""

import pyarrow as pa
import pytest

from mainstem.errors import Invalid
from mainstem.log.rows import schema_ddl
from mainstem.log.rows.normal_schema import ALLOWED_TYPES
from mainstem.log.rows.schema_ddl import schema_from_ddl, schema_to_ddl


@pytest.mark.parametrize(
    ("ddl", "data_type", "written"),
    [
        ("boolean", pa.bool_(), "BOOLEAN"),
        ("tinyint", pa.int8(), "TINYINT"),
        ("byte", pa.int8(), "TINYINT"),
        ("smallint", pa.int16(), "SMALLINT"),
        ("short", pa.int16(), "SMALLINT"),
        ("int", pa.int32(), "INT"),
        ("Integer", pa.int32(), "INT"),
        ("bigint", pa.int64(), "BIGINT"),
        ("LONG", pa.int64(), "BIGINT"),
        ("float", pa.float32(), "FLOAT"),
        ("real", pa.float32(), "FLOAT"),
        ("double", pa.float64(), "DOUBLE"),
        ("decimal", pa.decimal128(10, 0), "DECIMAL(10, 0)"),
        ("dec(5)", pa.decimal128(5, 0), "DECIMAL(5, 0)"),
        ("numeric( 38 , 38 )", pa.decimal128(38, 38), "DECIMAL(38, 38)"),
        ("string", pa.string(), "STRING"),
        ("varchar(10)", pa.string(), "STRING"),
        ("char(3)", pa.string(), "STRING"),
        ("binary", pa.binary(), "BINARY"),
        ("date", pa.date32(), "DATE"),
        ("time", pa.time64("us"), "TIME"),
        ("time(3)", pa.time64("us"), "TIME"),
        ("timestamp", pa.timestamp("us", "UTC"), "TIMESTAMP"),
        ("timestamp_ltz", pa.timestamp("us", "UTC"), "TIMESTAMP"),
        ("timestamp_ntz", pa.timestamp("us"), "TIMESTAMP_NTZ"),
        ("array<array<int>>", pa.list_(pa.list_(pa.int32())), "ARRAY<ARRAY<INT>>"),
        ("map<string,array<int>>", pa.map_(pa.string(), pa.list_(pa.int32())), "MAP<STRING, ARRAY<INT>>"),
        ("struct<a:int,b string>", pa.struct({"a": pa.int32(), "b": pa.string()}), "STRUCT<a: INT, b: STRING>"),
    ],
)
def test_a_type_is_read_and_written(ddl: str, data_type: pa.DataType, written: str) -> None:
    schema = schema_from_ddl(f"x {ddl}")
    assert schema == pa.schema({"x": data_type})
    assert schema_to_ddl(schema) == f"x {written}"


@pytest.mark.parametrize(
    ("ddl", "written"),
    [
        ("a: int, b:string", "a INT, b STRING"),
        ("a INT NOT NULL COMMENT 'of ''one'' day'", "a INT NOT NULL COMMENT 'of \\'one\\' day'"),
        ("a INT COMMENT 'one ' 'two'", "a INT COMMENT 'one two'"),
        ("s struct<zip: string not null comment 'q'>", "s STRUCT<zip: STRING NOT NULL COMMENT 'q'>"),
        ("`order id` int, `x``y` int, größe int", "`order id` INT, `x``y` INT, `größe` INT"),
        ("show int, order string, for timestamp, date date", "show INT, order STRING, for TIMESTAMP, date DATE"),
        ("a int, -- the first\n b int /* the second */", "a INT, b INT"),
        ("1st int", "`1st` INT"),
    ],
)
def test_columns_are_read_and_written(ddl: str, written: str) -> None:
    assert schema_to_ddl(schema_from_ddl(ddl)) == written


@pytest.mark.parametrize(
    "ddl", ["i interval day to second", "i interval year to month", "v variant", "v void", "v foo", "v array<object>"]
)
def test_a_type_that_cannot_be_kept_is_refused_with_the_list(ddl: str) -> None:
    with pytest.raises(Invalid, match="which a topic cannot store") as caught:
        schema_from_ddl(ddl)
    assert ALLOWED_TYPES in caught.value.detail
    assert caught.value.hint


def test_a_type_nearly_right_gets_a_proposal() -> None:
    with pytest.raises(Invalid) as caught:
        schema_from_ddl("name strng")
    assert caught.value.hint == 'Did you mean "STRING"?'


@pytest.mark.parametrize(
    ("ddl", "complaint"),
    [
        ("", "a schema needs at least one column"),
        ("a", "cannot be read at character 1"),
        ("a int,", "cannot be read at character 6"),
        ("a int b int", "cannot be read at character 6"),
        ("a int default 3", "cannot be read at character 6"),
        ("a-b int", "cannot be read at character 1"),
        ("'a' int", "cannot be read at character 0"),
        ("a array<int", "cannot be read at character 11"),
        ("a struct<>", "cannot be read at character 8"),
        ("a map<int>", "cannot be read at character 9"),
        ("a decimal(1.5)", "cannot be read at character 10"),
        ("a int not", "cannot be read at character 9"),
        ("a int comment b", "cannot be read at character 14"),
        ("a int; drop table b", "cannot be read at character 5"),
        ("`a int", "cannot be read"),
        ("a decimal(39, 2)", 'column "a" has type DECIMAL\\(39, 2\\), which does not exist'),
        ("a decimal(5, 6)", "which does not exist"),
        ("a decimal(1, 1, 1)", "which does not exist"),
        ("a int(5)", "which does not exist"),
        ("a varchar", "which does not exist"),
        ("a time(9)", "which does not exist"),
        ("a char(99999999999999999999)", "which does not exist"),
        ("a " + "array<" * 2000 + "int" + ">" * 2000, "cannot be read at character"),
        ("_a int", "underscore"),
    ],
)
def test_what_cannot_be_read_says_where_and_how_to_write_it(ddl: str, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint) as caught:
        schema_from_ddl(ddl)
    assert caught.value.detail
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "a STRING",
        "order_id STRING NOT NULL, lines ARRAY<STRUCT<sku: STRING, price: DECIMAL(10, 2)>>",
        "show INT, order INT, by INT, partition INT, table INT, select INT, e STRING, r STRING, b BINARY, x INT",
        "m MAP<STRING,ARRAY<ARRAY<INT>>>,\n_n VARCHAR(7), date DATE, t TIMESTAMP_NTZ",
        "a b c ( 1 > < 2",
    ],
)
def test_a_plain_schema_is_split_as_sqlglot_splits_it(text):
    plain = [(token.kind, token.text) for token in schema_ddl._plain_tokens(text)]

    assert schema_ddl._PLAIN_TOKENS.fullmatch(text)
    assert plain == [(token.kind, token.text) for token in schema_ddl._sqlglot_tokens(text)]


@pytest.mark.parametrize(
    "text", ["a :: INT", "s STRUCT<>", "1a INT", "`a b` INT", "a INT COMMENT 'x'", "a\tINT", "ä INT"]
)
def test_any_other_schema_is_split_by_sqlglot(text):
    assert not schema_ddl._PLAIN_TOKENS.fullmatch(text)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("str", "Write STRING."),
        ("datetime", "Write TIMESTAMP."),
        ("bool", "Write BOOLEAN."),
        ("bytes", "Write BINARY."),
        ("int64", "Write BIGINT."),
        ("list", "Write ARRAY<...>."),
        ("strng", 'Did you mean "STRING"?'),
    ],
)
def test_a_type_of_python_is_answered_with_that_of_spark(word, hint):
    with pytest.raises(Invalid) as refused:
        schema_from_ddl(f"id {word}")

    assert refused.value.hint == hint


@pytest.mark.parametrize("word", ["int", "float", "INTEGER", "Long"])
def test_types_that_python_and_spark_call_the_same(word):
    assert len(schema_from_ddl(f"id {word}")) == 1
