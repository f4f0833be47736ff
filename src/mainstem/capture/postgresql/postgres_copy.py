"""The rows of a query by COPY, as columns of text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg import errors, pq, sql
from pyarrow import csv

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from mainstem.capture.postgresql.postgres_session import PostgresSession

__all__ = ["copy_columns", "parse_copy"]

_ESCAPES = {b"\\b": b"\b", b"\\f": b"\f", b"\\n": b"\n", b"\\r": b"\r", b"\\t": b"\t", b"\\v": b"\v", b"\\\\": b"\\"}
_ESCAPED = re.compile(rb"\\[bfnrtv\\]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARSE = csv.ParseOptions(delimiter="\t", quote_char=False, double_quote=False, ignore_empty_lines=False)


def copy_columns(
    session: PostgresSession, statement: sql.Composed, count: int, bytes_max: int | None = None
) -> tuple[list[pa.BinaryArray], bool]:
    """The columns of a query, as text, and whether rows after `bytes_max` were left out. COPY sends them at a fraction of a query's cost; its rows are taken from libpq, since
    each step of psycopg's own loop costs more than the row."""
    connection = session.pgconn
    # Not exec_(): a call of libpq that waits would stop all threads of the process.
    connection.send_query(sql.SQL("COPY ({}) TO STDOUT").format(statement).as_bytes(session))
    result = _next_result(session)
    failed: PGresult | None = None
    if result is not None and result.status != pq.ExecStatus.COPY_OUT:
        failed = result
    rows: list[bytes] = []
    total, cut = 0, False
    while failed is None:
        size, row = connection.get_copy_data(1)
        if size > 0:
            cut = cut or (bytes_max is not None and total >= bytes_max)
            if not cut:
                rows.append(bytes(row))
                total += size
        elif size == 0:
            session.wait_for_input()
        else:
            break
    while (result := _next_result(session)) is not None:
        if result.status != pq.ExecStatus.COMMAND_OK:
            failed = result
    if failed is not None:
        raise errors.error_from_result(failed)
    return parse_copy(b"".join(rows), count), cut


def _next_result(session: PostgresSession) -> PGresult | None:
    connection = session.pgconn
    while connection.flush() or connection.is_busy():
        session.wait_for_input()
    return connection.get_result()


def parse_copy(data: bytes, count: int) -> list[pa.BinaryArray]:
    """The columns of what COPY sent.

    >>> [column.to_pylist() for column in parse_copy(b"1\\ta\\\\\\\\b\\n2\\t\\\\N\\n", 2)]
    [[b'1', b'2'], [b'a\\\\b', None]]
    """
    if not data:
        return [pa.array([], pa.binary())] * count
    if data.count(b"\\") == data.count(b"\\N") and not data.startswith(_BYTE_ORDER_MARK):
        # Nothing is escaped, and each \\N is a null.
        names = [str(number) for number in range(count)]
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            _PARSE,
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.binary()), null_values=["\\N"], strings_can_be_null=True,
                check_utf8=False,
            ),
        )  # fmt: skip
        return [column.combine_chunks() for column in table.columns]
    rows = [line.split(b"\t") for line in data[:-1].split(b"\n")]
    return [pa.array(map(_unescape, values), pa.binary()) for values in zip(*rows, strict=True)]


def _unescape(value: bytes) -> bytes | None:
    if b"\\" not in value:
        return value
    return None if value == b"\\N" else _ESCAPED.sub(lambda found: _ESCAPES[found[0]], value)
