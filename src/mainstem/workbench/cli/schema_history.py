"""The schemas that a topic had, newest first: what each changed, and since when, as far as that is noted."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.clock import as_us
from mainstem.log.activity import read_activity
from mainstem.log.rows.schema_ddl import schema_to_ddl, type_to_ddl

if TYPE_CHECKING:
    from mainstem.log.topic import Topic
    from mainstem.stem import Mainstem

__all__ = ["schema_history"]

# How long activity is kept.
BACK = timedelta(days=90)


def schema_history(stem: Mainstem, topic: Topic, at: datetime | None = None) -> list[dict[str, Any]]:
    """The versions up to a time. `since` is null for the first one, and where the note of the alteration is gone."""
    settings = topic.settings
    schemas = [*settings.past_schemas, settings.schema]
    begin = stem.log.clock.now() - BACK // timedelta(microseconds=1)
    noted = [
        row["at"]
        for row in read_activity(stem.log, begin, [topic.name])
        if row["subject"] == "topic" and row["what"] == "altered" and "schema from" in (row["detail"] or "")
    ]
    # The last alterations of the schema belong to the last versions.
    times = noted[max(0, len(noted) - len(schemas) + 1) :]
    since = [None] * (len(schemas) - len(times)) + times
    found = [
        {
            "version": number,
            "since": moment,
            "schema": schema_to_ddl(schema),
            "changes": [] if number == 1 else _changes(schemas[number - 2], schema),
        }
        for number, (schema, moment) in enumerate(zip(schemas, since, strict=True), 1)
        if at is None or moment is None or as_us(moment) <= as_us(at)
    ]
    return found[::-1]


def _changes(before: pa.Schema, after: pa.Schema) -> list[str]:
    known = {field.name: field for field in before}
    found = []
    for field in after:
        if field.name not in known:
            found.append(f"added {field.name} {type_to_ddl(field.type)}")
        elif not known[field.name].type.equals(field.type):
            found.append(f"{field.name} from {type_to_ddl(known[field.name].type)} to {type_to_ddl(field.type)}")
        elif known[field.name].nullable != field.nullable:
            found.append(f"{field.name} {'may be null' if field.nullable else 'may not be null'}")
    return found + [f"dropped {name}" for name in known if name not in after.names]
