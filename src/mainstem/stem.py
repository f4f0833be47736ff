"""Mainstem: an open home, with its topics, views and programs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from mainstem.arguments import checked_call, checked_calls, column_names, find_name, path_text, text, values
from mainstem.clock import Clock
from mainstem.durable_files import unavailable
from mainstem.durations import Duration, duration_us
from mainstem.errors import Invalid, MainstemError, NotFound, TopicNotFound
from mainstem.log.activity import note_activity
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.upkeep.upkeep import UpkeepMode
from mainstem.log.kafka.kafka_settings import SCHEME, names_brokers
from mainstem.log.log import Log, TopicBackend
from mainstem.log.producer import Producer
from mainstem.log.query_limits import ROWS_MAX, QueryLimits
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.transaction import Transaction
from mainstem.log.upkeep_report import TakeOverReport
from mainstem.names import check_name
from mainstem.sinks.file_sink import FileSink
from mainstem.sinks.store import Store, StoreStatus, store_name
from mainstem.sinks.store_backend import StoreBackend
from mainstem.spark.build import current_build
from mainstem.spark.checkpoint.checkpoint_location import checkpoints_of_home
from mainstem.spark.sources.spark_topic import SparkTopic
from mainstem.spark.sources.topic_glob import TopicGlob
from mainstem.spark.sources.topic_writer import NewTopic
from mainstem.spark.spark_session import prepare_session, spark_session
from mainstem.views.home_views import backend_of_home
from mainstem.views.spark_view import SparkView
from mainstem.views.view import View
from mainstem.views.view_store import ViewBackend

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from mainstem.capture.capture import Captures
    from mainstem.capture.capture_process import CaptureProcess
    from mainstem.capture.capture_status import CaptureStatus
    from mainstem.flows.compared_tables import Comparison
    from mainstem.flows.home_copy import HomeCopy
    from mainstem.flows.home_verification import HomeVerification
    from mainstem.flows.program import Flows
    from mainstem.flows.rebuild import Rebuild
    from mainstem.flows.runner import RunningFlows
    from mainstem.flows.view_check import CheckedView
    from mainstem.sinks.search_index import SearchIndex
    from mainstem.views.row_explanation import RowExplanation

__all__ = ["Mainstem", "is_on_kafka", "open", "open_brokers", "open_log"]


@checked_call
def open(
    home: str | os.PathLike[str],
    *,
    log: str | None = None,
    views: str | None = None,
    checkpoints: str | None = None,
    upkeep: UpkeepMode = "background",
    spark: str | SparkSession = "local[*]",
) -> Mainstem:
    """Open a home, the directory of a log; it is created if it does not exist.

    `log`: the Kafka brokers that store the topics, "kafka://broker1:9092,broker2:9092". By default those in the home's
    `kafka.toml`; without that file topics are stored in the home itself.

    `spark`: where programs run, an address such as "local[*]" or "spark://master:7077", or your own session. Spark
    starts when a program or a DataFrame first needs it.

    `views`: the PostgreSQL database that stores the views, "postgresql://user@host:5432/database". By default the one
    in the home's `views.toml`; without that file views are stored in the home itself.

    `checkpoints`: the directory for the checkpoints of new flows, on any file system that Spark supports,
    "hdfs://namenode/shop", "s3a://bucket/shop", or a shared path. By default the one in the home's `checkpoints.toml`;
    without that file the home.

    A background thread seals, compacts and deletes expired segments; with `upkeep="manual"` other processes do this, or
    `topic.seal()`, `topic.compact()` and `topic.drop_expired()`.

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
    """The log of a home: in the home itself, or on Kafka if `log` or the home names brokers."""
    if log is None and not is_on_kafka(home):
        return EmbeddedLog(home, upkeep=upkeep, clock=clock)
    # Views, checkpoints and settings are stored here; other users may not read them.
    os.makedirs(home, mode=0o700, exist_ok=True)
    return open_brokers(SCHEME if log is None else log, home=home)


@contextmanager
def _extra(what: str, extra: str) -> Iterator[None]:
    """Raises `Invalid` if a library that comes with an extra is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Invalid(
            f"{what} needs the package {(error.name or extra).partition('.')[0]}",
            detail="It is not installed.",
            hint=f'Install it: pip install "mainstem[{extra}]"',
        ) from error


def is_on_kafka(home: str | os.PathLike[str]) -> bool:
    """Whether the home names the brokers of its log."""
    return names_brokers(home)


def open_brokers(address: str, *, home: str | os.PathLike[str] | None = None) -> Log:
    """The log on Kafka with this address; without a home only its topics can be used."""
    try:
        from mainstem.log.kafka.kafka_log import KafkaLog
    except ModuleNotFoundError as error:
        raise NotFound(
            "the client library for Kafka is not installed",
            detail=f"{error}.",
            hint='Install it: pip install "mainstem[kafka]".',
        ) from error
    return KafkaLog(address, home=home)


@checked_calls
class Mainstem:
    """An open home. Use it with `with`, or call `close()`; acknowledged appends are durable without either.
    Thread-safe.

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files and connections."""
        self.log.close()
        self.view_backend.close()

    def copy_to(self, path: str | os.PathLike[str], *, step: Callable[[str], None] | None = None) -> HomeCopy:
        """Back up the home to a new directory; the copy is consistent while the home is in use.

        Topics are copied as of one moment, with each transaction complete or not at all; each flow between two batches,
        with its checkpoint and its view. Flows wait for the copy, appends do not. `elsewhere` of the result names parts
        of the home that are stored elsewhere and were not copied. Damaged files are copied as they are and named in
        `problems`. `step` is called with what is being copied.

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
        """Verify every file of the home that can be checked: topics, ledgers, views, flows; `problems` of the result
        names each damaged file and byte. `step` is called with what is being read.

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
        """The names of all topics, sorted; or all topics whose names match a pattern ("orders.*"), as one stream."""
        if glob is None:
            return self.log.topic_names()
        pattern = text(glob, "glob", hint='For example: stem.topics("orders.*").')
        return TopicGlob(self.log, pattern, self.home, self._session)

    def topic(self, topic: str | Topic) -> SparkTopic:
        """Open an existing topic; in a program also one that a flow of the program creates."""
        if isinstance(topic, SparkTopic):
            return topic
        name = find_name(topic, "topic", Topic)
        if current_build() is not None and name not in self.log.topic_names():
            return NewTopic(self.log, name, self.home, self._session)
        return SparkTopic(self.log, self._open_topic(name), self.home, self._session)

    def _open_topic(self, name: str) -> TopicBackend:
        try:
            return self.log.open_topic(name)
        except TopicNotFound as error:
            # Views that cannot be listed now are another error's subject.
            with suppress(MainstemError):
                if name in self.views():
                    error.hint = f'"{name}" is a view: use stem.view("{name}"), or mainstem view read {name}.'
            raise

    def create_topic(self, name: str, *, schema: str | pa.Schema, **settings: Any) -> SparkTopic:
        """Create a topic, or open it if it exists with the same settings; `Conflict` if it has other settings.

        `schema`: Spark DDL or a pyarrow Schema. Settings: `key` (a column or several), `event_time`, `partitions`,
        `keep` ("7 days", "10 GiB", "forever", `Keep(...)`), `archive`, `idle_after`, `ahead_max`, `record_bytes_max`,
        `segment_bytes_max`, `segment_age_max`.
        """
        check_name(name, "topic")
        backend = self.log.create_topic(TopicSettings.of(name, schema=schema, **settings))
        return SparkTopic(self.log, backend, self.home, self._session)

    def adopt_topic(self, name: str, *, schema: str | pa.Schema, **settings: Any) -> SparkTopic:
        """Adopt a topic that other programs created on Kafka, with the schema and the `codec` of its values.

        A value that cannot be decoded goes to the topic `<name>.unreadable`, with its bytes and the reason.
        """
        check_name(name, "topic")
        backend = self.log.adopt_topic(TopicSettings.of(name, schema=schema, **settings))
        return SparkTopic(self.log, backend, self.home, self._session)

    def delete_topic(self, topic: str | Topic) -> None:
        """Delete a topic with its records, groups and queues."""
        self.log.delete_topic(find_name(topic, "topic", Topic))

    # Writing

    def producer(self, name: str) -> Producer:
        """Open a producer: its appends are idempotent, and its older runs are fenced."""
        check_name(name, "producer")
        return Producer(self.log, self.log.open_producer(name))

    def transaction(self, *, timeout: Duration = "1 minute") -> Transaction:
        """A transaction over any topics and a group's offsets."""
        return Transaction(self.log, timeout=timeout)

    # Views

    def views(self) -> list[str]:
        """The names of all views, sorted."""
        return self.view_backend.names()

    def view(
        self, name: str | View, *, key: str | Sequence[str] | None = None, changes_max: int | None = None,
        changes_age: Duration | None = None, history: Duration | None = None,
    ) -> SparkView:  # fmt: skip
        """A view, existing or to be created by a flow; an existing view needs no `key`.

        `changes_max` and `changes_age`: how many changes it keeps and for how long; `history`: how far back its past
        states can be queried.
        """
        if isinstance(name, SparkView):
            return name
        known = find_name(name, "view", View)
        return SparkView(
            self.home, known, self._session, key=key, changes_max=changes_max, changes_age=changes_age, history=history,
            clock=self.log.clock, backend=self.view_backend,
            used=lambda version: note_activity(
                self.log, "view", known, "version used", f'view "{known}" shows version {version} now', version=version
            ),
            explain=self._explain,
        )  # fmt: skip

    def _explain(self, view: View, key: Any, **asked: Any) -> RowExplanation:
        # Only when it is asked for: it loads engines and DuckDB.
        from mainstem.flows.why.row_why import explain_row

        return explain_row(self.log, self.home, view, key, **asked)

    # Files

    def files(self, path: str | os.PathLike[str], *, partition_by: str | Sequence[str] = ()) -> FileSink:
        """A directory of Parquet files that a flow writes, partitioned by the columns given."""
        return FileSink(path, self.home, self._session, partition_by=partition_by)

    # Stores

    def postgres(self, url: str, table: str, *, key: str | Sequence[str], name: str | None = None) -> Store:
        """A table of a PostgreSQL database ("products", or "sales.products") that a flow keeps current.

        The flow creates it, unless it exists without a flow of Mainstem: that is refused. `name` is the name of the store
        and, by default, of its flow.
        """
        with _extra("PostgreSQL", "postgres"):
            from mainstem.sinks.postgres_store import PostgresStore

        backend = PostgresStore(url, table)
        return self.store(name or store_name("postgres", table), backend, key=key)

    def redis(
        self, url: str, *, prefix: str, key: str | Sequence[str], form: Literal["json", "hash"] = "json",
        name: str | None = None,
    ) -> Store:  # fmt: skip
        """Keys of a Redis ("redis://user@host:6379/0", or "rediss://" with TLS) that a flow keeps current: `prefix` and the row's key.

        A key of one column is its text, of several a JSON array: `shop:7`, `shop:["a","b:c"]`. `form`: "json" stores a row as
        JSON text, "hash" as a hash with a field for each column; a null has none. The hash `mainstem.store <prefix>` tells every
        reader whether the store is "filling" or "current". Only the flow may write keys with this prefix; if there are any
        before it begins, they are refused. What Redis loses is filled in again from the log. When a store that has rows is
        filled again, Redis answers nobody while the new rows replace the old ones, about a second for 100,000 rows.
        """
        with _extra("Redis", "redis"):
            from mainstem.sinks.redis_store import RedisStore

        backend = RedisStore(url, prefix, form=form)
        return self.store(name or store_name("redis", prefix), backend, key=key)

    def delta(self, path: str | os.PathLike[str], *, key: str | Sequence[str] = (), name: str | None = None) -> Store:
        """A Delta Lake table, in a local folder, that a flow keeps current; without a key rows are only appended.

        The flow creates it; a folder with other content is refused. Each batch is one version of the table. Small files are
        compacted. `name` is the name of the store and, by default, of its flow.
        """
        with _extra("a Delta table", "delta"):
            from mainstem.sinks.delta_store import DeltaStore

        backend = DeltaStore(path)
        last_parts = ".".join(backend.path.split(os.sep)[-2:])
        return self.store(name or store_name("delta", last_parts), backend, key=key)

    def search_index(
        self, name: str, *, key: str | Sequence[str] = (), text: str | Sequence[str] = ()
    ) -> SearchIndex:  # fmt: skip
        """A full-text index in the home that a flow keeps current, and its searches: `.search("red shoes")`.

        `text`: the columns in which words are searched, STRING or ARRAY<STRING>. An index that exists needs neither `key` nor
        `text`. The name of the store and, by default, of its flow is `search.<name>`.
        """
        with _extra("a search index", "search"):
            from mainstem.sinks.search_index import open_search_index

        return open_search_index(self.home, name, key, text, identity=self.log.identity, clock=self.log.clock)

    def store(self, name: str, backend: StoreBackend, *, key: str | Sequence[str] = ()) -> Store:
        """A store of your own: `backend` is what reads and writes it."""
        return Store(self.home, name, backend, key=key, identity=self.log.identity, clock=self.log.clock)

    def take_over(self) -> TakeOverReport:
        """End stopped processes that hold a lock of this home, and fence their unfinished writes; return what was done.

        Only partitions that cannot be appended to are taken over. `LockHeld` names such a process; after a failed
        fsync a new segment begins after the safe records. Reads need no lock, so no reader needs this.
        """
        return self.log.take_over()

    # Queries

    def query(
        self,
        sql: str,
        parameters: Sequence[object] = (),
        *,
        rows_max: int = ROWS_MAX,
        timeout: Duration | None = None,
    ) -> pa.Table:
        """Run an SQL query (DuckDB): one SELECT over topics and views, with `?` for parameters. A compacted topic shows
        the latest record of each key; if a topic and a view have the same name, the topic is used. `Invalid` if the
        statement is not a SELECT, the result has more than `rows_max` rows, or the query takes longer than
        `timeout`."""
        limits = QueryLimits.parse(rows_max, timeout)
        asked, given = text(sql, "sql"), values(parameters, "parameters")
        return self.log.query(asked, given, {name: self.view(name).to_arrow for name in self.views()}, limits)

    # Programs

    @property
    def spark(self) -> SparkSession:
        """The Spark session; started on first use."""
        return self._session()

    def _session(self) -> SparkSession:
        with self._guard:
            if isinstance(self._spark, str):
                self._spark = spark_session(self._spark)
            # They import Spark.
            from mainstem.operators.stage.packed_source import PackedTopicSource
            from mainstem.spark.sources.topic_source import TopicsSource
            from mainstem.views.view_source import ViewSource

            return prepare_session(self._spark, PackedTopicSource, TopicsSource, ViewSource)

    def start(
        self, flows: Flows, *, captures: Captures | None = None, only: Sequence[str] | None = None
    ) -> RunningFlows:  # fmt: skip
        """Start the flows of a program (or those named in `only`), and return a handle for each, by name.

        `captures`: run in a process of their own, until the flows are stopped.
        """
        from mainstem.flows.runner import start_flows

        running = self._start_captures(captures, "stopped")
        try:
            return start_flows(self, flows, only, captures=running)
        except BaseException:
            if running is not None:
                running.stop()
            raise

    def run(
        self, flows: Flows | None = None, *, captures: Captures | None = None, only: Sequence[str] | None = None,
        until: Literal["stopped", "idle"] = "stopped",
    ) -> None:  # fmt: skip
        """Run a program until it is stopped (Ctrl-C), or until its flows have processed all records of the log.

        `captures`: a function that yields captures, as `flows` yields flows. Their topics are made before the flows are
        built; they run in a process of their own, which needs no Spark. With `until="idle"` all changes made before the
        start are captured first, and then processed. Without `flows` the captures run alone, without Spark.

        Raises `FlowFailed` if a flow failed, after the others have ended; if a capture failed, its error, after the flows
        were stopped. If standard error is a terminal, it says there what it does: a line for each batch with rows.
        """
        if until not in ("stopped", "idle"):
            raise Invalid(
                f'until must be "stopped" or "idle", not {until!r}',
                detail='With "stopped" a program runs until it is interrupted, with "idle" until its flows have processed every record.',
                hint='Give until="idle", or leave it out.',
            )
        if flows is None and captures is None:
            raise Invalid(
                "run has neither flows nor captures",
                detail="A program is a function that yields flows, a function that yields captures, or both.",
                hint="Write: stem.run(flows), or stem.run(captures=captures).",
            )
        from mainstem.flows.run_notes import RunNotes
        from mainstem.flows.runner import start_flows

        notes = RunNotes(self)
        with ExitStack() as stack:
            capturing = self._start_captures(captures, until, notes.capture)
            if capturing is not None:
                stack.enter_context(capturing)
                if until == "idle" or flows is None:
                    capturing.wait()
            if flows is None:
                return
            if isinstance(self._spark, str):
                notes.say("starting Spark, which takes some seconds")
            running = stack.enter_context(start_flows(self, flows, only, tell=notes.batch, captures=capturing))
            notes.begin(running, until)
            if until == "idle":
                running.wait_until_idle()
                notes.end(running)
            else:
                running.wait()

    def _start_captures(
        self, captures: Captures | None, until: Literal["stopped", "idle"],
        tell: Callable[[CaptureStatus], None] = lambda status: None,
    ) -> CaptureProcess | None:  # fmt: skip
        """Make the topics of a program's captures, and start these; None if there are none."""
        if captures is None:
            return None
        from mainstem.capture.capture import captures_of
        from mainstem.capture.capture_process import start_captures

        return start_captures(self.log, self.home, captures_of(self, captures), until=until, tell=tell)

    def rebuild(self, view: str | View, flows: Flows) -> Rebuild:
        """Replay the log into a new version of a view beside the live one, with the current program."""
        from mainstem.flows.rebuild import Rebuild

        return Rebuild(self, find_name(view, "view", View), flows)

    def rebuild_store(
        self, store: str, flows: Flows, *, incomplete: bool = False, tell: Callable[[int, int], None] | None = None
    ) -> StoreStatus:
        """Fill a store again from the log, with the current program, beside what readers see; then switch in one step.

        `incomplete`: also if retention has removed records, so that rows may be missing. `tell` is called at times with the
        number of records that are applied and of all.
        """
        from mainstem.flows.store_rebuild import rebuild_store

        return rebuild_store(self, find_name(store, "store", Store), flows, incomplete=incomplete, tell=tell)

    def compare(
        self, first: object, second: object, *, key: str | Sequence[str] = (), wait: Duration = "10 seconds"
    ) -> Comparison:
        """How two tables differ, by key: topics (the latest row of each key), views, stores, files.

        If both say up to where they have applied the same topics, they are compared at one position; otherwise a key counts
        as different if it stays so. Waits at most `wait` for that.
        """
        from mainstem.flows.compared_tables import compare_tables, table_to_compare

        return compare_tables(
            table_to_compare(first),
            table_to_compare(second),
            key=column_names(key, "key") if key else (),
            wait_seconds=duration_us(wait, setting="wait") / 1_000_000,
        )

    def check_view(self, view: str | View, flows: Flows, *, sample: int = 1000, seed: int | None = None) -> CheckedView:
        """Recompute about `sample` rows of a view from the log, with the current program, and compare them.

        If rows are wrong, it finds where the first one went wrong. Nothing is changed; the flow may keep running.
        `seed` selects the rows; by default it is different each time.
        """
        from mainstem.flows.view_check import ViewCheck

        chosen = self.log.clock.now() if seed is None else seed
        return ViewCheck(self, find_name(view, "view", View), flows).run(sample, chosen)
