"""TopicSettings: schema, key, event time, number of partitions, retention.

Stored as JSON. It has every schema the topic ever had, the first one as number 1: a block names the number of its
schema. DDL can express every schema, so it is the only form.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from mainstem.arguments import column_names, path_text
from mainstem.durations import parse_duration, parse_size, show_duration, show_size
from mainstem.errors import CorruptHome, Invalid, NewerFormat, did_you_mean
from mainstem.log.keep_rule import Keep
from mainstem.log.record import record_schema
from mainstem.log.rows.normal_schema import has_required, normal_schema, nullable_schema
from mainstem.log.rows.schema_ddl import schema_from_ddl, schema_to_ddl, type_to_ddl
from mainstem.log.rows.schema_evolution import evolve
from mainstem.names import check_own_name

__all__ = ["PARTITIONS_MAX", "Keep", "TopicSettings", "changes_between", "difference"]

FORMAT_VERSION = 1
PARTITIONS_MAX = 1024
# Arrow limits a string column to 31 bits of bytes; half of that leaves room for the other rows of a block.
RECORD_BYTES_LIMIT = 1 << 30

CODECS = ("json", "raw", "arrow", "debezium")

_FOREVER = Keep.forever()
_DURATIONS = ("idle_after", "ahead_max", "segment_age_max")
_SIZES = ("segment_bytes_max", "record_bytes_max")


# The names of settings in Kafka and other systems.
_ELSEWHERE = {
    word: hint
    for hint, words in {
        'How long records are kept is keep="7 days", or keep="10 GiB".': (
            "retention", "retention_ms", "retention_bytes", "retention_time", "ttl", "max_age", "expire", "expires",
        ),
        'A compacted topic has keep="latest per key".': ("compact", "compacted", "compaction", "cleanup_policy"),
        "The number of partitions is partitions=4.": ("num_partitions", "partition_count", "shards"),
        'The key columns are key="order_id", or key=["store", "day"].': ("keys", "primary_key", "partition_key", "partition_by"),
        'The column with the event time is event_time="placed_at".': ("timestamp", "time", "time_column", "timestamp_column"),
        'The columns are schema="order_id STRING, amount DOUBLE".': ("columns", "fields"),
    }.items()
    for word in words
}  # fmt: skip


@dataclass(frozen=True)
class TopicSettings:
    """The settings of a topic, as created or altered.

    >>> orders = TopicSettings.of("orders", schema="order_id STRING, placed_at TIMESTAMP", key="order_id")
    >>> orders.key, orders.partitions, str(orders.keep)
    (('order_id',), 1, 'forever')
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    event_time: str | None = None
    partitions: int = 1
    keep: Keep = _FOREVER
    archive: str | None = None
    # A partition without appends for this long no longer holds the watermark back.
    idle_after: timedelta = timedelta(minutes=1)
    # An event time further ahead of its append time than this does not move the watermark.
    ahead_max: timedelta = timedelta(hours=1)
    # A segment is sealed when it is this large, or this old if it has any record.
    segment_bytes_max: int = 64 << 20
    segment_age_max: timedelta = timedelta(hours=1)
    record_bytes_max: int = 16 << 20
    # How rows are encoded in messages; only on Kafka.
    codec: str | None = None
    past_schemas: tuple[pa.Schema, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        *,
        schema: str | pa.Schema,
        key: str | Sequence[str] | None = None,
        keep: str | timedelta | Keep = "forever",
        archive: str | os.PathLike[str] | None = None,
        **others: Any,
    ) -> TopicSettings:
        """The settings from user input: DDL or Arrow schema, one key column or several, durations and sizes as text.

        >>> TopicSettings.of("orders", schema="id STRING", segment_bytes_max="1 MiB").segment_bytes_max
        1048576
        """
        known = cls.__dataclass_fields__
        if unknown := [word for word in others if word not in known or word == "past_schemas"]:
            raise Invalid(
                f'a topic has no setting "{unknown[0]}"',
                detail=f"Its settings are: {', '.join(word for word in known if word != 'past_schemas')}.",
                hint=_ELSEWHERE.get(unknown[0], "") or did_you_mean(unknown[0], known) or "Leave it out.",
            )
        for setting in _DURATIONS:
            if setting in others:
                others[setting] = parse_duration(others[setting], setting=setting)
        for setting in _SIZES:
            if isinstance(others.get(setting), str):
                others[setting] = parse_size(others[setting], setting=setting)
        return cls(
            name=name,
            schema=_schema_of(schema),
            key=() if key is None else column_names(key, "key"),
            keep=Keep.parse(keep),
            archive=None if archive is None else path_text(archive, "archive"),
            **others,
        )

    def __post_init__(self) -> None:
        check_own_name(self.name, "topic")
        self._check_key()
        self._check_event_time()
        self._check_numbers()
        if self.codec is not None and self.codec not in CODECS:
            raise Invalid(
                f'codec of topic "{self.name}" is {self.codec!r}',
                detail=f"The codecs are: {', '.join(CODECS)}.",
                hint='"json" is what other programs expect, "arrow" is the cheapest.',
            )

    def _check_key(self) -> None:
        for column in self.key:
            field = self._field(column, "key")
            if kinds.is_nested(field.type):
                raise Invalid(
                    f'key column "{column}" is {type_to_ddl(field.type)}',
                    detail="Key columns must have a plain type, not a nested one.",
                    hint="Use a column of a plain type, such as STRING or BIGINT.",
                    column=column,
                )
        if len(set(self.key)) < len(self.key):
            raise Invalid(
                f'key of topic "{self.name}" names a column twice',
                detail=f"The key is {', '.join(self.key)}.",
                hint="Name each column once.",
            )
        if self.keep.compacted and not self.key:
            raise Invalid(
                f'topic "{self.name}" has no key, so it cannot keep the latest record per key',
                detail="Compaction compares records by key.",
                hint='Give key="..." with one of: ' + ", ".join(self.schema.names) + ".",
            )

    def _check_event_time(self) -> None:
        if self.event_time is None:
            return
        data_type = self._field(self.event_time, "event-time").type
        if not data_type.equals(pa.timestamp("us", "UTC")):
            raise Invalid(
                f'event-time column "{self.event_time}" is {type_to_ddl(data_type)}',
                detail="Event times need the type TIMESTAMP, which is in UTC.",
                hint=f'Declare the column as "{self.event_time} TIMESTAMP".',
                column=self.event_time,
            )

    def _field(self, column: str, role: str) -> pa.Field:
        if column in self.schema.names:
            return self.schema.field(column)
        raise Invalid(
            f'{role} column "{column}" is not in the schema of topic "{self.name}"',
            detail=f"The columns are: {', '.join(self.schema.names)}.",
            hint=did_you_mean(str(column), self.schema.names) or "Name one of these columns, or add it to the schema.",
            column=column,
        )

    def _check_numbers(self) -> None:
        limits = {
            "partitions": PARTITIONS_MAX,
            "segment_bytes_max": 1 << 40,
            "record_bytes_max": RECORD_BYTES_LIMIT,
        }
        for setting, most in limits.items():
            value = getattr(self, setting)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                shown = show_size(most) if setting in _SIZES else str(most)
                raise Invalid(
                    f'{setting} of topic "{self.name}" is {value!r}',
                    detail=f"It is a whole number from 1 to {shown}.",
                    hint='Write it as in "64 MiB".' if setting in _SIZES else "4 is enough for most topics.",
                )
        if self.segment_age_max <= timedelta(0):
            raise Invalid(
                f'segment_age_max of topic "{self.name}" is {show_duration(self.segment_age_max)}',
                detail="Every record would get a file of its own.",
                hint='Use a duration such as "1 hour".',
            )

    @property
    def schema_version(self) -> int:
        """The number of the current schema; the first one was 1."""
        return len(self.past_schemas) + 1

    def schema_of(self, version: int) -> pa.Schema:
        """The schema of that number as it is stored: every column nullable."""
        return self._stored_schemas[version - 1]

    @cached_property
    def _stored_schemas(self) -> tuple[pa.Schema, ...]:
        return tuple(nullable_schema(schema) for schema in (*self.past_schemas, self.schema))

    @property
    def stored_schema(self) -> pa.Schema:
        """The current schema with every column nullable: a tombstone has only its key."""
        return self._stored_schemas[-1]

    @cached_property
    def required_fields(self) -> tuple[pa.Field, ...]:
        """The columns that are NOT NULL, or have a NOT NULL field inside."""
        return tuple(field for field in self.schema if has_required(field))

    @cached_property
    def record_schema(self) -> pa.Schema:
        """The schema of rows read from the topic: its columns, then `record`; it and the event-time column are
        marked."""
        return record_schema(self.stored_schema, self.event_time)

    def alter(self, **changes: Any) -> TopicSettings:
        """The settings after a change, given as in `of`; refuses changes that existing rows do not allow.

        >>> orders = TopicSettings.of("orders", schema="id STRING, n INT", key="id")
        >>> orders.alter(schema="id STRING, n BIGINT", keep="7 days").schema_version
        2
        """
        for setting in ("name", "key", "event_time", "codec"):
            if setting in changes:
                raise Invalid(
                    f'{setting} of topic "{self.name}" cannot be changed',
                    detail="It determined the partition and the event time of existing rows.",
                    hint="Create a new topic and copy the rows.",
                )
        if changes.get("partitions", self.partitions) < self.partitions:
            raise Invalid(
                f'topic "{self.name}" cannot go from {self.partitions} to {changes["partitions"]} partitions',
                detail="The rows of the removed partitions would be lost.",
                hint=f"Keep {self.partitions}, or create a new topic and copy the rows.",
            )
        new = _schema_of(changes.pop("schema", self.schema))
        asked = TopicSettings.of(self.name, schema=evolve(self.schema, new), **{**self._to_arguments(), **changes})
        # A changed comment makes no new version: the stored rows are the same.
        grown = not asked.schema.equals(self.schema)
        return replace(asked, past_schemas=(*self.past_schemas, self.schema) if grown else self.past_schemas)

    def with_codec(self, codec: str) -> TopicSettings:
        """The same settings with a codec."""
        return replace(self, codec=codec)

    def _to_arguments(self) -> dict[str, Any]:
        names = [name for name in self.__dataclass_fields__ if name not in ("name", "schema", "past_schemas")]
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        given = self._to_arguments()
        if self.codec is None:
            # Omitted in an embedded log, as in older versions.
            del given["codec"]
        return {
            "version": FORMAT_VERSION,
            "name": self.name,
            "schemas": [schema_to_ddl(schema) for schema in (*self.past_schemas, self.schema)],
            **given,
            "key": list(self.key),
            "keep": self.keep.to_json(),
            **{setting: show_duration(getattr(self, setting)) for setting in _DURATIONS},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], *, known: int = FORMAT_VERSION) -> TopicSettings:
        """The settings from JSON, of this or an earlier version of Mainstem; `known`: the newest version that is
        read."""
        name = value.get("name", "?")
        version = value.get("version")
        if isinstance(version, int) and version > known:
            raise NewerFormat.of(f'topic "{name}"', version, known, where="The record of its settings")
        try:
            past = [schema_from_ddl(ddl) for ddl in value["schemas"]]
            others = {key: value[key] for key in ("key", "event_time", "partitions", "archive", *_DURATIONS, *_SIZES)}
            others["codec"] = value.get("codec")
            settings = cls.of(value["name"], schema=past[-1], keep=Keep.from_json(value["keep"]), **others)
            return replace(settings, past_schemas=tuple(past[:-1]))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptHome(
                f'settings of topic "{name}" cannot be read',
                detail=f"{type(error).__name__}: {error}.",
                hint="Restore the topic's file from a copy of the home.",
            ) from error


def _schema_of(schema: str | pa.Schema) -> pa.Schema:
    if isinstance(schema, str):
        return schema_from_ddl(schema)
    if isinstance(schema, pa.Schema):
        return normal_schema(schema)
    raise Invalid(
        f"schema is {type(schema).__name__}",
        detail="A schema is Spark DDL or a pyarrow.Schema.",
        hint='Write it as in schema="order_id STRING, amount DOUBLE".',
    )


def difference(there: TopicSettings, asked: TopicSettings) -> list[str]:
    """The differences between `asked` and `there`, as text; empty if there are none.

    >>> orders = TopicSettings.of("orders", schema="id STRING", keep="7 days")
    >>> difference(orders, TopicSettings.of("orders", schema="id STRING"))
    ['keep is "7 days", asked for "forever"']
    """
    here, wanted = _show(there), _show(asked)
    return [f'{name} is "{here[name]}", asked for "{wanted[name]}"' for name in here if here[name] != wanted[name]]


def changes_between(before: TopicSettings, after: TopicSettings) -> list[str]:
    """What an alteration changed, as text.

    >>> orders = TopicSettings.of("orders", schema="id STRING", keep="7 days")
    >>> changes_between(orders, orders.alter(keep="30 days"))
    ['keep from "7 days" to "30 days"']
    """
    old, new = _show(before), _show(after)
    return [f'{name} from "{old[name]}" to "{new[name]}"' for name in old if old[name] != new[name]]


def _show(settings: TopicSettings) -> dict[str, str]:
    return {
        "name": settings.name,
        "schema": schema_to_ddl(settings.schema),
        **{name: str(value) for name, value in settings._to_arguments().items()},
        "key": ", ".join(settings.key) or "none",
        "event_time": settings.event_time or "none",
        "archive": settings.archive or "none",
        "codec": settings.codec or "none",
        **{setting: show_duration(getattr(settings, setting)) for setting in _DURATIONS},
        **{setting: show_size(getattr(settings, setting)) for setting in _SIZES},
    }
