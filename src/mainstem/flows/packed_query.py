"""The streaming query before a stage whose topics are read and prepared by their readers; see `packed_rows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mainstem.flows.flow_stages import roots_of
from mainstem.log_on_spark.flow_plan import stages_in
from mainstem.log_on_spark.plain_read import PlainRead, plain_read
from mainstem.log_on_spark.spark_types import spark_schema
from mainstem.log_on_spark.topic_request import OPTION, PACKING, TOPIC_SOURCE
from mainstem.operators.stage.packed_rows import PACKED, Packing
from mainstem.operators.stage.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["packed_query"]


def packed_query(stages: Sequence[Stage], buckets: Mapping[str, int] | None) -> DataFrame | None:
    """As `query_rows`, with the rows packed; None where they cannot be. `buckets`: how many each stage has.

    Its sources are the same in the same order, and so are their offsets: a checkpoint that was begun in the one way goes on in
    the other.
    """
    roots = roots_of(stages)
    if buckets is None or len(roots) != 1:
        return None
    [stage] = [stage for stage in stages if stage.number == roots[0].number]
    if stage.spec.packed is None or any(stages_in(rows) for rows in stage.inputs):
        return None
    reads = [plain_read(rows) for rows in stage.inputs]
    known = [read for read in reads if read is not None]
    if len(known) < len(reads) or len({read.request.leaf for read in known}) < len(known):
        return None
    united = None
    for place, read in enumerate(known):
        rows = _packed(stage, place, read, buckets[stage.name])
        united = rows if united is None else united.union(rows)
    return united


def _packed(stage: Stage, place: int, read: PlainRead, buckets: int) -> DataFrame:
    taken = stage.spec.packed
    assert taken is not None
    preparation: Any = getattr(stage.spec.preparations[place].arrow, "__self__", None)
    packing = Packing(read.schema, read.columns, read.condition, preparation, taken, buckets)
    reader = stage.inputs[place].sparkSession.readStream.format(TOPIC_SOURCE).schema(spark_schema(PACKED))
    return reader.option(OPTION, read.request.to_option()).option(PACKING, packing.to_option()).load()
