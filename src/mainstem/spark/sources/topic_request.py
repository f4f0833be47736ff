"""TopicRequest: a flow's read of a topic, as it is passed in the options of a Spark source."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa

from mainstem.batch import FlowRun
from mainstem.errors import Invalid

__all__ = [
    "BYTES_MAX",
    "LIGHT_ROWS_MAX",
    "OPTION",
    "PACKING",
    "ROWS_MAX",
    "TOPIC_SOURCE",
    "TopicRequest",
    "from_text",
    "to_text",
]


# Values of this program as text, so that they travel in the options of a Spark source: frozen dataclasses and what is in them.
#
#     {"class": "module:name", "fields": {...}}    a dataclass of mainstem's own
#     {"tuple": [...]}    {"schema": text}    {"type": text}    and plain JSON
#
# A schema or type is an Arrow message in base64.


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
    raise Invalid(f"{type(value).__name__} cannot be passed to a Spark source", detail=f"It is {value!r}.")


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
        raise Invalid(
            f'"{module}" is not a module of mainstem', detail="Options hold values of mainstem's own types only."
        )
    return getattr(import_module(module), name)(**{name: _read(part) for name, part in found["fields"].items()})


# All of it is one option, so that nothing depends on how Spark treats the case of names.
OPTION = "request"
# Where rows are to come packed for a stage: how; see `operators.stage.packed_rows`.
PACKING = "packing"
# What Spark calls the source of one topic.
TOPIC_SOURCE = "mainstem_topic"

# A batch holds at most so many rows, or so many bytes as they lie in the log: enough to be worth a batch's fixed cost,
# little enough for the driver's memory.
ROWS_MAX = 500_000
# Of a flow without state whose rows do not pass through the driver: so that a batch's fixed cost weighs less.
LIGHT_ROWS_MAX = 2_000_000
BYTES_MAX = 256 << 20


@dataclass(frozen=True)
class TopicRequest:
    """A read of one topic: which columns, from where, how much at a time, and for which run of which flow."""

    home: str
    topic: str
    columns: tuple[str, ...]
    # Microseconds that the watermark at a record lags behind; None where nobody asked for it.
    delay: int | None = None
    # As `topic.follow` takes it, a datetime as microseconds: {"at": 1}.
    start: Any = "earliest"
    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX
    flow: str = ""
    epoch: int = 0
    version: int = 1
    # Which of the streams of a program this is, by the order in which they were made.
    leaf: int = -1
    # How many tasks a batch is to have.
    slices: int = 1
    # How long to wait for an append before saying that there is nothing new.
    wait_ms: int = 100
    # What of the rows is wanted; see `row_condition`.
    condition: Any = None
    # Where sealed files end that were read before this request, as an offset of it; see `native_history`.
    history: Any = None
    # The address of the log; empty where it lies in the home.
    log: str = ""
    # Where a read ends that is no stream: {"0": 17}.
    stop: Any = None
    # Beside which checkpoint the clock of its batches is kept; empty where they need none. See `batch_clock`.
    clock: str = ""
    # Where the batches of a replay end, one after the other, and behind the last one nothing comes: [{"0": 17}, ...].
    cuts: Any = None
    # Of an input that may be silent for long: {"after": microseconds, "beside": [[topic, delay], ...]}; see `idle_input`.
    idle: Any = None

    # Whether `topic` is a pattern.
    pattern: bool = False
    # Where the sources of the flow agree on the ends of its batches; empty where no flow reads. See `agreed_cut`.
    together: str = ""

    @property
    def run(self) -> FlowRun | None:
        return FlowRun(self.flow, self.epoch, self.version) if self.flow else None

    @property
    def holder(self) -> str:
        """Under which name the records of a planned batch are held; empty where no flow reads."""
        return f"{self.flow}.v{self.version}.{self.leaf}" if self.flow else ""

    def to_option(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> TopicRequest:
        values = json.loads(options[OPTION])
        return cls(**{**values, "columns": tuple(values["columns"])})
