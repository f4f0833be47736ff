"""Values of this program as text, so that they travel in the options of a Spark source: frozen dataclasses and what is in them.

    {"class": "module:name", "fields": {...}}    a dataclass of mainstem's own
    {"tuple": [...]}    {"schema": text}    {"type": text}    and plain JSON

A schema or type is an Arrow message in base64.
"""

from __future__ import annotations

import base64
import json
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa

from mainstem.errors import Invalid

__all__ = ["from_text", "to_text"]


def to_text(value: Any) -> str:
    """The value as text.

    >>> from_text(to_text((1, pa.schema([("n", pa.int64())]), ["a", None])))
    (1, n: int64, ['a', None])
    """
    return json.dumps(_written(value))


def from_text(text: str) -> Any:
    """The value that was written so."""
    return _read(json.loads(text))


def _written(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        known = {field.name: _written(getattr(value, field.name)) for field in fields(value)}
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": known}
    if isinstance(value, tuple):
        return {"tuple": [_written(part) for part in value]}
    if isinstance(value, list):
        return [_written(part) for part in value]
    if isinstance(value, pa.Schema):
        return {"schema": base64.b64encode(value.serialize().to_pybytes()).decode()}
    if isinstance(value, pa.DataType):
        return {"type": _written(pa.schema([("of", value)]))}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise Invalid(f"{type(value).__name__} cannot be sent to a source of Spark", detail=f"It is {value!r}.")


def _read(found: Any) -> Any:
    if isinstance(found, list):
        return [_read(part) for part in found]
    if not isinstance(found, dict):
        return found
    if "tuple" in found:
        return tuple(_read(part) for part in found["tuple"])
    if "schema" in found:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"])))
    if "type" in found:
        return _read(found["type"]).field(0).type
    module, _, name = found["class"].partition(":")
    if not module.startswith("mainstem."):
        raise Invalid(f'"{module}" is no module of mainstem', detail="Only its own values are read from options.")
    return getattr(import_module(module), name)(**{name: _read(part) for name, part in found["fields"].items()})
