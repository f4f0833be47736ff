"""RedisStore: keys of a Redis that a flow keeps current.

    shop:7                       a row. Form "json": a string, {"id":7,"title":"Pen"}
                                 Form "hash": a field for each column, a null has none: id 7, title Pen
    mainstem.store shop:         the fence, a hash: state (filling | current), form, flow, version, epoch, batch, applied_at, fence
    mainstem.next shop:7         a row of the next version, while the store is filled again
    mainstem.store.next shop:    its fence
    mainstem.stores              the prefixes of all stores, a set: none may begin with another one

The key after the prefix:

    one column, STRING           itself: 7, pen, a:b                       BINARY: its bytes
    one column, another type     its text: 7, 1.50, true, 2030-01-31, 2030-01-31T23:59:59.000000Z
    several columns              a JSON array: ["a","b:c"], [7,"2030-01-31"]. So no two keys have the same text

Fields of a hash are texts of the same kind; a struct, an array or a map is JSON.

A batch is one MULTI ... EXEC under WATCH of the fence: rows and fence change together, and only if the fence is the expected
one. Redis is durable as it is configured: what it loses in a crash or a failover, it loses together with the fence that
says so. To switch, one MULTI ... EXEC deletes the live rows and renames those of the next version: readers see all of it or
nothing, and Redis answers nobody for as long as this takes, about a second for 100,000 rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from redis.client import Pipeline
from redis.exceptions import ResponseError, WatchError

from mainstem.arguments import check_choice, text
from mainstem.clock import as_datetime
from mainstem.crash_points import reach
from mainstem.errors import Conflict, Invalid, Unavailable
from mainstem.log.rows.canonical_json import canonical_json, canonical_json_of_rows
from mainstem.log.rows.column_types import NESTED, kind_of
from mainstem.log.rows.nested_json import from_json, to_json
from mainstem.sinks.redis_address import RedisAddress
from mainstem.sinks.store_backend import Copy, Fence, FenceMoved, Fences, StoreBackend, StoreChange

__all__ = ["RedisStore"]

OURS = "mainstem."
STORES = b"mainstem.stores"
PREFIX_BYTES_MAX = 1_024
# Redis takes 512 MB; some is left for the prefix of a key.
VALUE_BYTES_MAX = (512 << 20) - 2 * PREFIX_BYTES_MAX
# In one command: few enough that others are served in between, enough that commands cost little.
KEYS_MAX = 500
# Rows are encoded in pieces of about this size: Arrow's texts end at 2 GB, and are longer than the values.
ENCODED_BYTES_MAX = 16 << 20
_COPIES: tuple[Copy, ...] = ("live", "beside")


class RedisStore(StoreBackend):
    """The keys with a prefix, such as "shop:product:"."""

    def __init__(self, url: str, prefix: str, *, form: Literal["json", "hash"] = "json") -> None:
        self._address = RedisAddress.parse(url)
        self._form = check_choice(form, "form", ("json", "hash"))
        self._prefix = _checked_prefix(text(prefix, "prefix"))
        self._title = f"keys {_shown(self._prefix + b'*')}"
        self.location = f"{self._address.shown}, {self._title}"
        self._client = self._address.connect()

    # Names

    def _rows(self, copy: Copy) -> bytes:
        """What the keys of the rows begin with."""
        return self._prefix if copy == "live" else b"mainstem.next " + self._prefix

    def _fence(self, copy: Copy) -> bytes:
        return (b"mainstem.store " if copy == "live" else b"mainstem.store.next ") + self._prefix

    # Checks

    def unfit(self, column: pa.Array, field: pa.Field, key: tuple[str, ...]) -> Mapping[int, str]:
        if _bytes_max(column) <= VALUE_BYTES_MAX:
            return {}
        reason = f'column "{field.name}" has more than the {VALUE_BYTES_MAX} bytes that Redis takes'
        return {row: reason for row in range(len(column)) if self._size(column.slice(row, 1)) > VALUE_BYTES_MAX}

    def refused(self, change: StoreChange) -> Mapping[int, str]:
        rows = change.upserts
        if self._form == "hash" or rows is None:
            return {}
        # With the name of each column; a number or a time has less than 64 bytes.
        most = sum(_bytes_max(part) for column in rows.columns for part in column.chunks)
        if most + sum(6 * len(name.encode()) + 64 for name in rows.column_names) <= VALUE_BYTES_MAX:
            return {}
        reason = f'the row has more than the {VALUE_BYTES_MAX} bytes that Redis takes; store its columns one by one: form="hash"'
        (batch,) = rows.combine_chunks().to_batches()
        sizes = (self._size(batch.slice(row, 1).to_struct_array()) for row in range(batch.num_rows))
        return {row: reason for row, size in enumerate(sizes) if size > VALUE_BYTES_MAX}

    def _size(self, value: pa.Array) -> int:
        try:
            encoded = to_json(value) if self._form == "json" else _texts(value)
        except pa.ArrowException:
            return VALUE_BYTES_MAX + 1
        return pc.binary_length(encoded)[0].as_py() or 0

    # Fences

    def fences(self) -> Fences:
        with self._address.translate_errors(self._title):
            found = self._read_fences()
            if found.live is None and (key := next(self._scan(self._client, "live"), None)) is not None:
                # A flow may have begun since.
                found = self._read_fences()
                if found.live is None:
                    raise self._foreign(key)
            return found

    def _read_fences(self) -> Fences:
        # Without MULTI, which Redis refuses while its memory is full.
        with self._client.pipeline(transaction=False) as pipe:
            for copy in _COPIES:
                pipe.execute_command("HGET", self._fence(copy), "fence")
            return Fences(*map(self._parse, pipe.execute()))

    def _parse(self, found: bytes | None) -> Fence | None:
        try:
            return None if found is None else Fence.from_json(found.decode())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Conflict(
                f"the fence of {self._title} is not one that a flow has written",
                detail=f"It is the key {_shown(self._fence('live'))} in {self._address.shown}.",
                hint="Delete that key and the rows, or give another prefix: the flow fills the store from the log.",
            ) from error

    def _put_fence(self, pipe: Pipeline, copy: Copy, fence: Fence) -> None:
        shown = {
            "state": "filling" if fence.filling else "current", "form": self._form, "flow": fence.flow,
            "version": fence.version, "epoch": fence.epoch, "batch": fence.batch,
            "applied_at": "" if fence.applied_at is None else as_datetime(fence.applied_at).isoformat(),
            "fence": fence.to_json(),
        }  # fmt: skip
        pipe.execute_command("HSET", self._fence(copy), *(part for item in shown.items() for part in item))

    def _scan(self, client: Any, copy: Copy) -> Iterator[bytes]:
        """The keys of all rows; those that Redis moves meanwhile may come twice."""
        pattern = re.sub(rb"([*?\[\]\\^-])", rb"\\\1", self._rows(copy)) + b"*"
        return iter(client.scan_iter(match=pattern, count=KEYS_MAX))

    def _foreign(self, key: bytes) -> Conflict:
        return Conflict(
            f"{self._title} are there already, and no flow has written them",
            detail=f"One of them is {_shown(key[:100])}. {self._address.shown} has no fence for them: they "
            "would be mixed with the flow's rows.",
            hint="Give another prefix, or delete these keys: the flow fills the store from the log.",
        )

    def _other_form(self, form: str) -> Conflict:
        return Conflict(
            f'{self._title} have the form "{form}"',
            detail=f'The form given is "{self._form}". They are in {self._address.shown}.',
            hint="Give the old form, or fill the store again: mainstem store rebuild STORE --program FILE",
        )

    # Writing

    def commit(self, change: StoreChange) -> None:
        fence = self._fence(change.copy)
        with self._address.translate_errors(self._title):
            try:
                with self._client.pipeline() as pipe:
                    pipe.watch(fence, *([STORES] if change.expected is None else []))
                    kept, form = pipe.execute_command("HMGET", fence, "fence", "form")
                    if (found := self._parse(kept)) != change.expected:
                        raise FenceMoved(found)
                    if form not in (None, self._form.encode()):
                        raise self._other_form(form.decode())
                    if change.upserts is None:
                        self._check_keeps(pipe)
                    if change.expected is None and change.copy == "live":
                        self._check_free(pipe)
                    pipe.multi()
                    if change.expected is None and change.copy == "live":
                        pipe.execute_command("SADD", STORES, self._prefix)
                    self._put_rows(pipe, change)
                    self._put_fence(pipe, change.copy, change.fence)
                    if change.upserts is not None:
                        reach("sink_rows_written")
                    pipe.execute()
            except WatchError:
                found = self._read_fences().of(change.copy)
                if found == change.fence != change.expected:
                    return  # only the answer was lost
                if found != change.expected:
                    raise FenceMoved(found) from None
                raise

    def _check_keeps(self, pipe: Pipeline) -> None:
        """Raise if Redis removes rows by itself: the fence would not tell."""
        try:
            memory: dict[str, Any] = pipe.execute_command("INFO", "memory")
        except ResponseError:
            return  # a user without the permission
        policy = str(memory.get("maxmemory_policy", ""))
        if memory.get("maxmemory") and policy.startswith("allkeys-"):
            raise Invalid(
                f'the Redis "{self._address.shown}" evicts keys without an expiry',
                detail=f"Its maxmemory-policy is {policy}: rows of the store would disappear unnoticed.",
                hint="Set a policy that leaves them alone: CONFIG SET maxmemory-policy volatile-lru (or noeviction).",
            )

    def _check_free(self, pipe: Pipeline) -> None:
        """Raise if another store or another program has keys where the rows would be."""
        for other in pipe.execute_command("SMEMBERS", STORES):
            overlaps = other != self._prefix and (other.startswith(self._prefix) or self._prefix.startswith(other))
            if overlaps and pipe.execute_command("EXISTS", b"mainstem.store " + other):
                raise Conflict(
                    f"the prefixes {_shown(self._prefix)} and {_shown(other)} overlap",
                    detail=f"Another store has the second one, in {self._address.shown}: a key could belong to both.",
                    hint="Give a prefix that does not begin with the other one, nor the other one with it.",
                )
        if (key := next(self._scan(pipe, "live"), None)) is not None:
            raise self._foreign(key)

    def _put_rows(self, pipe: Pipeline, change: StoreChange) -> None:
        prefix, key = self._rows(change.copy), change.fence.key
        for rows in _pieces(change.deletes):
            _unlink(pipe, _keys(prefix, [rows.column(name) for name in key]))
        for rows in _pieces(change.upserts):
            keys = _keys(prefix, [rows.column(name) for name in key])
            if self._form == "json":
                self._put_strings(pipe, keys, rows)
            else:
                _put_hashes(pipe, keys, rows)

    def _put_strings(self, pipe: Pipeline, keys: list[bytes], rows: pa.RecordBatch) -> None:
        texts = to_json(rows.to_struct_array())
        parts: list[bytes] = [b""] * (2 * len(keys))
        parts[::2], parts[1::2] = keys, texts.cast(pa.binary()).to_pylist()
        for first in range(0, len(parts), 2 * KEYS_MAX):
            pipe.execute_command("MSET", *parts[first : first + 2 * KEYS_MAX])

    def switch(self, expected: Fences, fence: Fence) -> None:
        live, beside = self._rows("live"), self._rows("beside")
        with self._address.translate_errors(self._title):
            try:
                with self._client.pipeline() as pipe:
                    pipe.watch(*map(self._fence, _COPIES))
                    found = Fences(
                        *(self._parse(pipe.execute_command("HGET", self._fence(copy), "fence")) for copy in _COPIES)
                    )
                    if found != expected:
                        raise _moved(expected, found)
                    old, new = (set(self._scan(pipe, copy)) for copy in _COPIES)
                    pipe.multi()
                    _unlink(pipe, list(old))
                    for key in new:
                        pipe.execute_command("RENAME", key, live + key[len(beside) :])
                    pipe.execute_command("SADD", STORES, self._prefix)
                    pipe.execute_command("DEL", self._fence("beside"))
                    self._put_fence(pipe, "live", fence)
                    # A row that another program has deleted since the SCAN is missing, as if it were deleted now.
                    for answer in pipe.execute(raise_on_error=False):
                        if isinstance(answer, ResponseError) and "no such key" not in str(answer):
                            raise answer
            except WatchError:
                found = self._read_fences()
                if found == Fences(fence, None):
                    return  # only the answer was lost
                if found != expected:
                    raise _moved(expected, found) from None
                raise

    def drop(self, copy: Copy) -> None:
        with self._address.translate_errors(self._title), self._client.pipeline() as pipe:
            pipe.watch(self._fence(copy))
            # Without a fence, keys with the prefix are not ours.
            ours = copy == "beside" or pipe.execute_command("EXISTS", self._fence(copy))
            keys = set(self._scan(pipe, copy)) if ours else ()
            pipe.multi()
            _unlink(pipe, [*keys, self._fence(copy)])
            if copy == "live":
                pipe.execute_command("SREM", STORES, self._prefix)
            pipe.execute()

    # Reading

    def get(self, fence: Fence, key: Mapping[str, pa.Scalar]) -> dict[str, Any] | None:
        columns = [pa.array([value.as_py()], fence.schema.field(name).type) for name, value in key.items()]
        (found,) = _keys(self._rows("live"), columns)
        with self._address.translate_errors(self._title), self._client.pipeline(transaction=False) as pipe:
            self._ask(pipe, [found], fence)
            rows = self._batch(pipe.execute(), fence).to_pylist()
        return rows[0] if rows else None

    def read(self, fence: Fence, copy: Copy = "live") -> Iterator[pa.RecordBatch]:
        """In any order, not as of one moment; never of two versions. The keys are kept in memory, so that each comes once."""
        seen: set[bytes] = set()
        waiting: list[bytes] = []
        with self._address.translate_errors(self._title):
            for key in self._scan(self._client, copy):
                if key not in seen:
                    seen.add(key)
                    waiting.append(key)
                if len(waiting) == KEYS_MAX:
                    yield self._read_keys(waiting, fence, copy)
                    waiting = []
            yield self._read_keys(waiting, fence, copy)

    def _read_keys(self, keys: list[bytes], fence: Fence, copy: Copy) -> pa.RecordBatch:
        with self._client.pipeline(transaction=False) as pipe:
            self._ask(pipe, keys, fence)
            # After the rows: a version never comes back.
            pipe.execute_command("HGET", self._fence(copy), "version")
            *answers, version = pipe.execute()
        if version != str(fence.version).encode():
            raise Unavailable(
                f"{self._title} were replaced while they were read",
                detail=f"The store had version {fence.version}; it was filled again, or lost its rows. It is in "
                f"{self._address.shown}.",
                hint="Read it again.",
            )
        return self._batch(answers, fence)

    def _ask(self, pipe: Pipeline, keys: list[bytes], fence: Fence) -> None:
        if self._form == "hash":
            names = fence.schema.names
            for key in keys:
                pipe.execute_command("HMGET", key, *names)
        elif keys:
            pipe.execute_command("MGET", *keys)

    def _batch(self, answers: list[Any], fence: Fence) -> pa.RecordBatch:
        schema = fence.schema
        try:
            if self._form == "json":
                texts = [found.decode() for answer in answers for found in answer if found is not None]
                rows = from_json(texts, pa.struct(list(schema)))
                return pa.record_batch(rows.flatten(), schema=schema)
            key = schema.get_field_index(fence.key[0])
            there = [answer for answer in answers if answer[key] is not None]
            columns = zip(*there, strict=True) if there else ([] for _ in schema)
            arrays = [_values(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
            return pa.record_batch(arrays, schema=schema)
        except (ValueError, TypeError, AttributeError, LookupError, pa.ArrowException) as error:
            raise Conflict(
                f"{self._title} have a value that the flow has not written",
                detail=f"It cannot be read: {type(error).__name__}. Another program has changed it in {self._address.shown}.",
                hint="Let only the flow write these keys, and fill the store again: mainstem store rebuild STORE --program FILE",
            ) from error

    def close(self) -> None:
        self._client.connection_pool.disconnect(inuse_connections=False)


def _shown(key: bytes) -> str:
    """A key in quotes, on one line."""
    return json.dumps(key.decode(errors="replace"), ensure_ascii=False)


def _moved(expected: Fences, found: Fences) -> FenceMoved:
    return FenceMoved(found.beside if found.beside != expected.beside else None)


def _checked_prefix(prefix: str) -> bytes:
    problem = None
    if not prefix:
        problem = "It is empty: every key of the database would belong to the store."
    elif OURS.startswith(prefix) or prefix.startswith(OURS):
        problem = f'Keys that begin with "{OURS}" are those of Mainstem itself.'
    encoded = prefix.encode()
    if len(encoded) > PREFIX_BYTES_MAX:
        problem = f"It has {len(encoded)} bytes; {PREFIX_BYTES_MAX} are allowed."
    if problem is not None:
        raise Invalid(
            f"the keys of a store cannot begin with {prefix[:50]!r}",
            detail=problem,
            hint='Give a prefix that no other key of the database begins with: prefix="shop:product:".',
        )
    return encoded


# Rows as texts


def _pieces(rows: pa.Table | None) -> Iterator[pa.RecordBatch]:
    if rows is not None and rows.num_rows:
        each = max(1, rows.num_rows * ENCODED_BYTES_MAX // max(1, rows.nbytes))
        yield from rows.combine_chunks().to_batches(max_chunksize=each)


def _unlink(pipe: Pipeline, keys: Sequence[bytes]) -> None:
    for first in range(0, len(keys), KEYS_MAX):
        pipe.execute_command("UNLINK", *keys[first : first + KEYS_MAX])


def _keys(prefix: bytes, columns: list[pa.Array]) -> list[bytes]:
    """The Redis keys of rows, given the columns of their key.

    >>> _keys(b"shop:", [pa.array(["a:b", "a"]), pa.array([1, 2])])
    [b'shop:["a:b",1]', b'shop:["a",2]']
    """
    if len(columns) > 1:
        nested = [to_json(column) if kind_of(column.type) in NESTED else None for column in columns]
        if any(text is not None for text in nested):
            texts = [
                canonical_json(column) if text is None else text for column, text in zip(columns, nested, strict=True)
            ]
            joined = pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ","), "]", "")
        else:
            joined = canonical_json_of_rows(columns)
        encoded = joined.cast(pa.binary())
    else:
        encoded = _texts(columns[0])
    made: list[bytes] = pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), encoded, b"").to_pylist()
    return made


def _put_hashes(pipe: Pipeline, keys: list[bytes], rows: pa.RecordBatch) -> None:
    _unlink(pipe, keys)
    names = [name.encode() for name in rows.schema.names]
    columns = [_texts(column).to_pylist() for column in rows.columns]
    for key, values in zip(keys, zip(*columns, strict=True), strict=True):
        fields = [part for item in zip(names, values, strict=True) if item[1] is not None for part in item]
        pipe.execute_command("HSET", key, *fields)


# Their JSON is a text in quotes, without escapes.
_QUOTED = frozenset({"floating", "decimal", "date", "time", "timestamp", "timestamp_ntz"})


def _texts(column: pa.Array) -> pa.BinaryArray:
    """The text of each value of a column; null stays null.

    >>> _texts(pa.array([0.5, float("nan"), None])).to_pylist()
    [b'0.5', b'NaN', None]
    """
    kind = kind_of(column.type)
    if kind in ("string", "binary"):
        return column.cast(pa.binary())
    encoded = canonical_json(column) if kind == "decimal" else to_json(column)
    return (pc.utf8_trim(encoded, '"') if kind in _QUOTED else encoded).cast(pa.binary())


def _values(texts: list[bytes | None], data_type: pa.DataType) -> pa.Array:
    """The values that `_texts` wrote."""
    kind = kind_of(data_type)
    if kind == "binary":
        return pa.array(texts, data_type)
    decoded = [None if text is None else text.decode() for text in texts]
    if kind == "string":
        return pa.array(decoded, data_type)
    return from_json([text and f'"{text}"' for text in decoded] if kind in _QUOTED else decoded, data_type)


def _bytes_max(column: pa.Array) -> int:
    """At least the size of the largest value as text."""
    kind = kind_of(column.type)
    if kind in ("string", "binary"):
        # A control character is six in JSON.
        return 6 * (pc.max(pc.binary_length(column)).as_py() or 0) + 2
    # A Boolean in an array, one bit, is written as "false,".
    return 64 * column.nbytes if kind in NESTED else 0
