"""BatchListener: hears from Spark what each batch did, as one piece of JSON.

PySpark's own listener makes an object of every part of a report, with a call to Java for each: 60 to 90 ms of processor
time a batch. This one makes one call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BatchListener"]


class BatchListener:
    """Tells of every batch of a session's queries, from `begin` to `end`."""

    def __init__(self, spark: SparkSession, tell: Callable[[dict[str, Any]], None]) -> None:
        self._spark = spark
        self._tell = tell
        self._known_to_java: Any = None

    def begin(self) -> None:
        """Listen from now on."""
        from pyspark import java_gateway

        jvm: Any = self._spark._jvm
        start_callbacks: Callable[..., None] = java_gateway.ensure_callback_server_started
        start_callbacks(self._spark.sparkContext._gateway)
        self._known_to_java = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)
        self._spark.streams._jsqm.addListener(self._known_to_java)

    def end(self) -> None:
        """Stop listening. May be called twice."""
        if self._known_to_java is not None:
            self._spark.streams._jsqm.removeListener(self._known_to_java)
            self._known_to_java = None

    # Called from Java

    def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802 - Spark's names
    def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802
    def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._tell(json.loads(event.progress().json()))

    class Java:
        """What Java sees of this object."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
