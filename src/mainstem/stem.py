"""Mainstem: an opened home, from which everything else is reached."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from mainstem.arguments import named, path_text, text, values
from mainstem.clock import Clock
from mainstem.durable_files import unavailable
from mainstem.durations import Duration
from mainstem.errors import Invalid, NotFound
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.upkeep.upkeep import UpkeepMode
from mainstem.log.kafka.kafka_settings import SCHEME, names_brokers
from mainstem.log.log import Log
from mainstem.log.producer import Producer
from mainstem.log.query_limits import ROWS_MAX, QueryLimits
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.transaction import Transaction
from mainstem.log.upkeep_report import TakeOverReport
from mainstem.names import check_name
from mainstem.sinks.file_sink import FileSink
from mainstem.spark.build import current_build
from mainstem.spark.checkpoint.checkpoint_location import checkpoints_of_home
from mainstem.spark.sources.spark_topic import SparkTopic
from mainstem.spark.sources.topic_glob import TopicGlob
from mainstem.spark.sources.topic_writer import NewTopic
from mainstem.spark.spark_session import prepared, spark_session
from mainstem.views.home_views import backend_of_home
from mainstem.views.spark_view import SparkView
from mainstem.views.view import View
from mainstem.views.view_store import ViewBackend

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mainstem.flows.home_copy import HomeCopy
    from mainstem.flows.home_verification import HomeVerification
    from mainstem.flows.program import Flows
    from mainstem.flows.rebuild import Rebuild
    from mainstem.flows.runner import RunningFlows
    from mainstem.flows.view_check import CheckedView

__all__ = ["Mainstem", "open", "open_log"]

# What a Spark session is taught to read; named, since they import Spark.
SOURCES = (
    "mainstem.spark.sources.topic_source:TopicSource",
    "mainstem.spark.sources.topic_source:TopicsSource",
    "mainstem.views.view_source:ViewSource",
)


def open(
    home: str | os.PathLike[str],
    *,
    log: str | None = None,
    views: str | None = None,
    checkpoints: str | None = None,
    upkeep: UpkeepMode = "background",
    spark: str | SparkSession = "local[*]",
) -> Mainstem:
    """Open a home, the directory that holds the log; it is made if there is none.

    `log` is where topics are kept: the brokers of a Kafka, "kafka://broker1:9092,broker2:9092". Without it, where the home
    says (`kafka.toml`), else in the home itself.

    `spark` is where programs run: an address such as "local[*]" or "spark://master:7077", or a session of yours. It is
    not touched before a program or a DataFrame asks for it.

    `views` is where views are kept: the address of a PostgreSQL database, "postgresql://user@host:5432/database". Without
    it, where the home says (`views.toml`), else in the home itself.

    `checkpoints` is where Spark keeps those of new flows: a folder of any file system that it knows, "hdfs://namenode/shop",
    "s3a://bucket/shop", or a shared path. Without it, where the home says (`checkpoints.toml`), else in the home itself.

    A thread in the background seals, compacts and drops what is due in it; with `upkeep="manual"` that is left to
    other processes, or to `topic.seal()`, `topic.compact()` and `topic.drop_expired()`.

    >>> import mainstem, tempfile
    >>> with mainstem.open(tempfile.mkdtemp()) as stem:
    ...     stem.topics()
    []
    """
    home = path_text(home, "home")
    path = os.path.abspath(home)
    for setting, address in (("log", log), ("views", views), ("checkpoints", checkpoints)):
        if address is not None:
            text(address, setting)
    with unavailable(path):
        opened = open_log(home, log, upkeep)
    return Mainstem(opened, home=path, spark=spark, views=views, checkpoints=checkpoints)


def open_log(
    home: str | os.PathLike[str], log: str | None = None, upkeep: UpkeepMode = "manual", clock: Clock | None = None
) -> Log:
    """The log of a home: in it, or on the Kafka that is named here or in the home."""
    if log is None and not names_brokers(home):
        return EmbeddedLog(home, upkeep=upkeep, clock=clock)
    try:
        from mainstem.log.kafka.kafka_log import KafkaLog
    except ModuleNotFoundError as error:
        raise NotFound(
            "the client library for Kafka is not installed",
            detail=f"{error}.",
            hint='Install it: pip install "mainstem[kafka]".',
        ) from error
    # Views, checkpoints and settings stay here; nobody else is to look into them.
    os.makedirs(home, mode=0o700, exist_ok=True)
    return KafkaLog(SCHEME if log is None else log, home=home)


class Mainstem:
    """An opened home. Used with `with`, or closed with `close()`; what is acknowledged needs neither. Thread-safe.

    >>> import mainstem, tempfile
    >>> stem = mainstem.open(tempfile.mkdtemp())
    >>> stem.create_topic("orders", schema="order_id STRING, amount DOUBLE").append([{"order_id": "o-1", "amount": 2.0}]).count
    1
    >>> stem.query("SELECT sum(amount) AS total FROM orders").to_pylist()
    [{'total': 2.0}]
    >>> stem.close()
    """

    def __init__(
        self, log: Log, *, home: str = "", spark: str | SparkSession = "local[*]", views: str | None = None,
        checkpoints: str | None = None,
    ) -> None:  # fmt: skip
        self.log = log
        self.home = home
        try:
            self.view_backend: ViewBackend = backend_of_home(home, views)
            self.checkpoints = checkpoints_of_home(home, checkpoints)
        except BaseException:
            log.close()
            raise
        self._spark = spark
        self._guard = threading.RLock()

    def __repr__(self) -> str:
        return f"<Mainstem on {self.log.title}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all files and connections."""
        self.log.close()
        self.view_backend.close()

    def copy_to(self, path: str | os.PathLike[str], *, step: Callable[[str], None] | None = None) -> HomeCopy:
        """Copy the home to a new directory, consistent while it is in use (in the field: a backup).

        Topics are copied as of one moment, with each transaction whole or not at all; each flow as it is between two batches,
        with its checkpoint and its view. Flows wait for it, appends do not. `elsewhere` of the result names what belongs to
        the home and is not in it, and so was not copied. Damage is copied as it is, and named by `problems`. `step` is called with
        what is being copied.

        >>> import mainstem, tempfile
        >>> with mainstem.open(tempfile.mkdtemp()) as stem:
        ...     orders = stem.create_topic("orders", schema="order_id STRING")
        ...     copied = stem.copy_to(tempfile.mkdtemp())
        >>> copied.topics, copied.elsewhere
        (('orders',), ())
        """
        from mainstem.flows.home_copy import copy_home

        return copy_home(self, path, step or (lambda what: None))

    def verify(self, *, step: Callable[[str], None] | None = None) -> HomeVerification:
        """Read every file of the home that can be checked: topics, ledgers, views, flows; `problems` of the result names each
        damaged file and place. `step` is called with what is being read.

        >>> import mainstem, tempfile
        >>> with mainstem.open(tempfile.mkdtemp()) as stem:
        ...     orders = stem.create_topic("orders", schema="order_id STRING")
        ...     stem.verify().sound
        True
        """
        from mainstem.flows.home_verification import verify_home

        return verify_home(self.log, self.home, step or (lambda what: None))

    # Topics

    @overload
    def topics(self) -> list[str]: ...
    @overload
    def topics(self, glob: str) -> TopicGlob: ...
    def topics(self, glob: str | None = None) -> list[str] | TopicGlob:
        """The names of all topics, sorted; or all topics whose names fit a pattern ("orders.*"), to be streamed as one."""
        if glob is None:
            return self.log.topic_names()
        return TopicGlob(self.log, glob, self.home, self._session)

    def topic(self, topic: str | Topic) -> SparkTopic:
        """A topic that is there; in a program also one that a flow of it makes."""
        if isinstance(topic, SparkTopic):
            return topic
        name = named(topic, "topic", Topic)
        if current_build() is not None and name not in self.log.topic_names():
            return NewTopic(self.log, name, self.home, self._session)
        return SparkTopic(self.log, self.log.open_topic(name), self.home, self._session)

    def create_topic(self, name: str, *, schema: str | pa.Schema, **settings: Any) -> SparkTopic:
        """Create a topic, or open it if it is there with the same settings; with others it is a `Conflict`.

        `schema`: Spark DDL or a pyarrow Schema. Settings: `key` (a column or several), `event_time`, `partitions`,
        `keep` ("7 days", "10 GiB", "forever", `Keep(...)`), `archive`, `idle_after`, `ahead_max`, `record_bytes_max`,
        `segment_bytes_max`, `segment_age_max`.
        """
        check_name(name, "topic")
        backend = self.log.create_topic(TopicSettings.of(name, schema=schema, **settings))
        return SparkTopic(self.log, backend, self.home, self._session)

    def adopt_topic(self, name: str, *, schema: str | pa.Schema, **settings: Any) -> SparkTopic:
        """Take over a topic that other programs made on Kafka, with the schema and the `codec` that its values have.

        A value that does not fit goes to the topic `<name>.unreadable`, with its bytes and the reason.
        """
        check_name(name, "topic")
        backend = self.log.adopt_topic(TopicSettings.of(name, schema=schema, **settings))
        return SparkTopic(self.log, backend, self.home, self._session)

    def delete_topic(self, topic: str | Topic) -> None:
        """Delete a topic with its records, groups and queues."""
        self.log.delete_topic(named(topic, "topic", Topic))

    # Writing

    def producer(self, name: str) -> Producer:
        """Begin a run of a producer: its appends can be repeated, and older runs of it are fenced."""
        check_name(name, "producer")
        return Producer(self.log, self.log.open_producer(name))

    def transaction(self, *, timeout: Duration = "1 minute") -> Transaction:
        """A transaction over any topics and a group's offsets."""
        return Transaction(self.log, timeout=timeout)

    # Views

    def views(self) -> list[str]:
        """The names of all views, sorted."""
        return self.view_backend.names()

    def view(self, name: str | View, *, key: str | Sequence[str] | None = None, **settings: Any) -> SparkView:
        """A view, there or to be made by a flow; its `key` may be left out where it is there.

        Settings: `changes_max` and `changes_age`, how many changes it keeps and for how long; `history`, for how long it can
        be asked what it was.
        """
        if isinstance(name, SparkView):
            return name
        known = named(name, "view", View)
        return SparkView(
            self.home, known, self._session, key=key, clock=self.log.clock, backend=self.view_backend, **settings
        )

    # Files

    def files(self, path: str | os.PathLike[str], *, partition_by: str | Sequence[str] = ()) -> FileSink:
        """A folder of Parquet files that a flow adds to; with a folder in it for each value of the columns given."""
        return FileSink(path, self.home, self._session, partition_by=partition_by)

    def take_over(self) -> TakeOverReport:
        """End processes that stand still inside a lock of this home, and fence what they had under way; what was done.

        Only what nobody could append to is taken over. `LockHeld` names such a process; after a failed fsync a new segment
        is begun behind what is safe. Reading needs no lock, so that no reader needs this.
        """
        return self.log.take_over()

    # Asking

    def query(
        self,
        sql: str,
        parameters: Sequence[object] = (),
        *,
        rows_max: int = ROWS_MAX,
        timeout: Duration | None = None,
    ) -> pa.Table:
        """Ask in SQL (DuckDB): one SELECT over topics and views, `?` stands for a parameter. Of a compacted topic one sees
        the latest record of each key; where a topic and a view share a name, the topic is meant. `Invalid` if the
        statement is no SELECT, the answer has more than `rows_max` rows, or it takes longer than `timeout`."""
        limits = QueryLimits.checked(rows_max, timeout)
        asked, given = text(sql, "sql"), values(parameters, "parameters")
        return self.log.query(asked, given, {name: self.view(name).to_arrow for name in self.views()}, limits)

    # Programs

    @property
    def spark(self) -> SparkSession:
        """The Spark session; the first one to ask starts it."""
        return self._session()

    def _session(self) -> SparkSession:
        with self._guard:
            if isinstance(self._spark, str):
                self._spark = spark_session(self._spark)
            return prepared(self._spark, *SOURCES)

    def start(self, flows: Flows, *, only: Sequence[str] | None = None) -> RunningFlows:
        """Start the flows of a program (or those named in `only`), and return a handle for each by its name."""
        from mainstem.flows.runner import start_flows

        return start_flows(self, flows, only)

    def run(
        self, flows: Flows, *, only: Sequence[str] | None = None, until: Literal["stopped", "idle"] = "stopped"
    ) -> None:
        """Run a program until it is stopped (Ctrl-C), or until its flows have all that the log has.

        Raises `FlowFailed` if a flow died, after the others have ended.
        """
        if until not in ("stopped", "idle"):
            raise Invalid(
                f"{until!r} is nothing to run until",
                detail='A program runs until it is "stopped", or until it is "idle".',
                hint='Give until="idle", or leave it out.',
            )
        with self.start(flows, only=only) as running:
            if until == "idle":
                running.wait_until_idle()
            else:
                running.wait()

    def rebuild(self, view: str | View, flows: Flows) -> Rebuild:
        """Replay the log into a new version of a view beside the live one, with the program as it is now."""
        from mainstem.flows.rebuild import Rebuild

        return Rebuild(self, named(view, "view", View), flows)

    def check_view(self, view: str | View, flows: Flows, *, sample: int = 1000, seed: int | None = None) -> CheckedView:
        """Make about so many rows of a view again from the log, with the program as it is now, and compare them.

        Of rows that are wrong it is found out where the first one went wrong. Nothing is changed; the flow need not be
        stopped. The rows are chosen by `seed`, another one each time unless it is given.
        """
        from mainstem.flows.view_check import ViewCheck

        chosen = self.log.clock.now() if seed is None else seed
        return ViewCheck(self, named(view, "view", View), flows).run(sample, chosen)
