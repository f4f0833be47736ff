"""Spark's DDL to an Arrow schema and back, without Spark.

    columns := column ("," column)*
    column  := name [":"] type ["NOT" "NULL"] ["COMMENT" string]
    type    := word ["(" number ("," number)* ")"] | "ARRAY" "<" type ">" | "MAP" "<" type "," type ">"
             | "STRUCT" "<" columns ">"

Names may be back-quoted, keywords and types are case-insensitive. sqlglot's tokenizer for Spark splits the text; the
rules above are parsed here, because a parser of whole statements takes some column names for keywords and does not know
the types of topics. A comment is stored in the field's metadata, as in Spark.
CHAR(n) and VARCHAR(n) become STRING, without a check of the length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from mainstem.errors import Invalid, did_you_mean
from mainstem.log.rows.column_types import SCALARS, inner_fields, kind_of
from mainstem.log.rows.normal_schema import COMMENT, DEPTH_MAX, cannot_store, normal_schema, normal_type

__all__ = ["schema_from_ddl", "schema_to_ddl", "type_to_ddl"]

_TYPES: dict[str, pa.DataType] = SCALARS | {
    other: SCALARS[name]
    for name, others in {
        "TINYINT": "BYTE",
        "SMALLINT": "SHORT",
        "INT": "INTEGER",
        "BIGINT": "LONG",
        "FLOAT": "REAL",
        "STRING": "VARCHAR CHAR CHARACTER",
        "TIMESTAMP": "TIMESTAMP_LTZ",
    }.items()
    for other in others.split()
}
_NAMES: dict[pa.DataType, str] = {data_type: name for name, data_type in SCALARS.items()}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_NESTED = {"list": "ARRAY", "map": "MAP", "struct": "STRUCT"}
# The minimal and maximal count of numbers in parentheses of a type, and their maximal value.
_NUMBERS = {"VARCHAR": (1, 1, 2**31 - 1), "CHAR": (1, 1, 2**31 - 1), "CHARACTER": (1, 1, 2**31 - 1), "TIME": (0, 1, 6)}
_REFUSED = {
    "INTERVAL": ("Parquet has no form for it that Spark and DuckDB read back.", "Use BIGINT, the unit in the name."),
    "VARIANT": ("Arrow has no form for it.", "Use STRING with JSON, or a STRUCT."),
    "VOID": ("Such a column can hold nothing.", "Say the type of the values that will come."),
    "OBJECT": ("Only a running Spark holds it.", "Use a STRUCT."),
}
# The names of types in Python, Arrow and other databases, and those of Spark.
_ELSEWHERE = {
    word: name
    for name, words in {
        "STRING": "STR TEXT UUID JSON OBJECT_ID UTF8 NVARCHAR VARCHAR2 NVARCHAR2 CLOB",
        "BOOLEAN": "BOOL BIT",
        "TIMESTAMP": "DATETIME TIMESTAMPTZ INSTANT",
        "BINARY": "BYTES BLOB BYTEA VARBINARY",
        "SMALLINT": "INT16",
        "INT": "INT32",
        "BIGINT": "INT64 UINT32",
        "FLOAT": "FLOAT32",
        "DOUBLE": "FLOAT64 NUMBER",
        "DECIMAL(10, 2)": "MONEY",
        "ARRAY<...>": "LIST TUPLE SET",
        "MAP<STRING, ...> or STRUCT<...>": "DICT",
    }.items()
    for word in words.split()
}
# sqlglot's names of tokens that are neither words nor symbols.
_KINDS = {"STRING": "string", "IDENTIFIER": "name", "NUMBER": "number"}
_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# The tokens of nearly every schema, and for others sqlglot's tokenizer, whose import takes longer than opening a topic.
_PLAIN_TOKENS = re.compile(
    r"(?:[A-Za-z_][A-Za-z0-9_]*+|(?<![A-Za-z0-9_])[0-9]++(?![A-Za-z0-9_.])|[,>()]|:(?!:)|<(?!>)|[ \n]++)*+"
)
_PLAIN_TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[,:<>()]")


def schema_from_ddl(text: str) -> pa.Schema:
    """The Arrow schema that Spark DDL describes.

    >>> schema_from_ddl("order_id STRING NOT NULL, lines ARRAY<STRUCT<sku: STRING, price: DECIMAL(10, 2)>>")
    order_id: string not null
    lines: list<element: struct<sku: string, price: decimal128(10, 2)>>
      child 0, element: struct<sku: string, price: decimal128(10, 2)>
          child 0, sku: string
          child 1, price: decimal128(10, 2)
    """
    return normal_schema(pa.schema(_Reader(text).schema()))


def schema_to_ddl(schema: pa.Schema) -> str:
    """The Spark DDL that describes an Arrow schema.

    >>> schema_to_ddl(pa.schema([pa.field("order id", pa.string(), nullable=False), ("total", pa.float64())]))
    '`order id` STRING NOT NULL, total DOUBLE'
    """
    return ", ".join(_field_to_ddl(field, " ", normal_type(field.type, field.name)) for field in schema)


def type_to_ddl(data_type: pa.DataType) -> str:
    """One type of a normal schema as DDL."""
    kind = kind_of(data_type)
    if kind == "decimal":
        return f"DECIMAL({data_type.precision}, {data_type.scale})"
    if kind in _NESTED:
        fields = inner_fields(data_type)
        inner = [_field_to_ddl(at, ": ", at.type) if kind == "struct" else type_to_ddl(at.type) for at in fields]
        return f"{_NESTED[kind]}<{', '.join(inner)}>"
    return _NAMES[data_type]


def _field_to_ddl(field: pa.Field, separator: str, data_type: pa.DataType) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else "`" + field.name.replace("`", "``") + "`"
    comment = (field.metadata or {}).get(COMMENT, b"").decode()
    quoted = comment.replace("\\", "\\\\").replace("'", "\\'")
    required = "" if field.nullable else " NOT NULL"
    return f"{name}{separator}{type_to_ddl(data_type)}{required}" + (f" COMMENT '{quoted}'" if comment else "")


@dataclass(frozen=True)
class _Token:
    kind: str  # word, name (back-quoted), string, number, symbol, end
    text: str
    start: int
    end: int


class _Reader:
    """A parser with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.index = 0

    def schema(self) -> list[pa.Field]:
        if self.ahead.kind == "end":
            return []
        fields = self.columns(1)
        if self.ahead.kind != "end":
            self.fail('a comma, NOT NULL, COMMENT "..." or the end')
        return fields

    def columns(self, depth: int) -> list[pa.Field]:
        fields = [self.column(depth)]
        while self.take(","):
            fields.append(self.column(depth))
        return fields

    def column(self, depth: int) -> pa.Field:
        if self.ahead.kind not in ("word", "name"):
            self.fail("a column's name (in back-quotes if it is more than letters, digits and underscores)")
        name = self.next().text
        self.take(":")
        data_type = self.data_type(name, depth)
        nullable = True
        if self.take("NOT"):
            self.need("NULL")
            nullable = False
        comment = self.comment() if self.take("COMMENT") else ""
        return pa.field(name, data_type, nullable=nullable, metadata={COMMENT: comment} if comment else None)

    def data_type(self, path: str, depth: int) -> pa.DataType:
        if self.ahead.kind != "word":
            self.fail(f'the type of column "{path}"')
        if depth > DEPTH_MAX:
            self.fail(f"at most {DEPTH_MAX} levels of ARRAY, MAP and STRUCT")
        word = self.next().text.upper()
        if word in _NESTED.values():
            return self.nested(word, path, depth)
        if word in _DECIMALS:
            return self.decimal(path)
        if word not in _TYPES:
            _refuse_type(word, path)
        fewest, most, largest = _NUMBERS.get(word, (0, 0, 0))
        numbers = self.numbers()
        if not fewest <= len(numbers) <= most or any(number > largest for number in numbers):
            takes = f"{'a' if fewest else 'at most a'} number up to {largest} in parentheses" if most else "no numbers"
            _refuse_numbers(word, numbers, path, f"{word} takes {takes}.", f"Write {word}{'(n)' if fewest else ''}.")
        return _TYPES[word]

    def nested(self, word: str, path: str, depth: int) -> pa.DataType:
        if self.take("<>"):
            self.index -= 1
            self.fail(f"what the {word} holds")
        self.need("<")
        result: pa.DataType
        if word == "ARRAY":
            result = pa.list_(pa.field("element", self.data_type(f"{path}.element", depth + 1)))
        elif word == "MAP":
            key = self.data_type(f"{path}.key", depth + 1)
            self.need(",")
            result = pa.map_(key, self.data_type(f"{path}.value", depth + 1))
        else:
            result = pa.struct(self.columns(depth + 1))
        self.need(">")
        return result

    def decimal(self, path: str) -> pa.DataType:
        numbers = self.numbers()
        # Spark's own default for a DECIMAL without numbers.
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
        if len(numbers) > 2 or not 1 <= precision <= 38 or scale > precision:
            detail = "DECIMAL(p, s) has p from 1 to 38 digits in all, of which s from 0 to p follow the point."
            _refuse_numbers("DECIMAL", numbers, path, detail, "Write it as in DECIMAL(10, 2).")
        return pa.decimal128(precision, scale)

    def numbers(self) -> list[int]:
        found: list[int] = []
        if self.take("("):
            while True:
                if self.ahead.kind != "number" or not self.ahead.text.isascii() or not self.ahead.text.isdigit():
                    self.fail("a whole number")
                found.append(int(self.next().text[:12]))
                if not self.take(","):
                    break
            self.need(")")
        return found

    def comment(self) -> str:
        if self.ahead.kind != "string":
            self.fail("the comment in quotes")
        last = self.next()
        text = last.text
        while self.ahead.kind == "string":
            # Adjacent strings are one; without a space between them they are one string with a doubled quote.
            touching = self.ahead.start == last.end + 1
            last = self.next()
            text += ("'" if touching else "") + last.text
        return text

    @property
    def ahead(self) -> _Token:
        return self.tokens[self.index]

    def next(self) -> _Token:
        self.index += 1
        return self.tokens[self.index - 1]

    def take(self, text: str) -> bool:
        if self.ahead.kind in ("word", "symbol") and self.ahead.text.upper() == text:
            self.index += 1
            return True
        return False

    def need(self, text: str) -> None:
        if not self.take(text):
            self.fail(f'"{text}"')

    def fail(self, expected: str) -> NoReturn:
        found = "the text ends" if self.ahead.kind == "end" else f'there is "{self.ahead.text}"'
        before = self.text[max(0, self.ahead.start - 40) : self.ahead.start]
        raise Invalid(
            f"schema cannot be read at character {self.ahead.start}",
            detail=f'After "{before}" {found}; expected: {expected}.',
            hint='Write columns as in "order_id STRING NOT NULL, lines ARRAY<STRUCT<sku: STRING, price: DOUBLE>>".',
        )


def _tokens(text: str) -> list[_Token]:
    found = _plain_tokens(text) if _PLAIN_TOKENS.fullmatch(text) else _sqlglot_tokens(text)
    return [*found, _Token("end", "", len(text), len(text))]


def _plain_tokens(text: str) -> list[_Token]:
    return [_Token(_kind_of(at[0]), at[0], at.start(), at.end() - 1) for at in _PLAIN_TOKEN.finditer(text)]


def _sqlglot_tokens(text: str) -> list[_Token]:
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import SqlglotError

    found: list[_Token] = []
    try:
        # The parenthesis prevents the tokenizer from taking a first column "show" for a command.
        tokens = Dialect.get_or_raise("spark").tokenize("(" + text)[1:]
    except SqlglotError as error:
        raise Invalid(
            "schema cannot be read",
            detail=f"A quote or back-quote is not closed: {str(error)[:200]}.",
            hint='Write columns as in "order_id STRING NOT NULL, amount DOUBLE".',
        ) from error
    for token in tokens:
        start, end = token.start - 1, token.end - 1
        if (kind := _KINDS.get(token.token_type.name)) is not None:
            found.append(_Token(kind, token.text, start, end))
        elif token.text[:1].isalnum() or token.text[:1] == "_":
            # Keywords of several words, such as ORDER BY, are one token: here they are separate words.
            found += (_Token("word", word, start, end) for word in text[start : end + 1].split())
        else:
            found.append(_Token("symbol", token.text, start, end))
    return found


def _kind_of(token: str) -> str:
    if token[0].isdigit():
        return "number"
    return "word" if token[0].isalpha() or token[0] == "_" else "symbol"


def _refuse_type(word: str, path: str) -> NoReturn:
    near = f"Write {_ELSEWHERE[word]}." if word in _ELSEWHERE else ""
    near = near or did_you_mean(word, [*_TYPES, *_DECIMALS, *_NESTED.values()])
    reason, remedy = _REFUSED.get(word, ("", near))
    raise cannot_store(path, word, reason, remedy or "Use one of these types.")


def _refuse_numbers(word: str, numbers: list[int], path: str, detail: str, hint: str) -> NoReturn:
    shown = f"{word}({', '.join(map(str, numbers))})" if numbers else word
    raise Invalid(f'column "{path}" has type {shown}, which does not exist', detail=detail, hint=hint, column=path)
