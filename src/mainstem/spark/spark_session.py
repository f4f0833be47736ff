"""The Spark session, and each of its settings with its reason. A user's own settings take precedence."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.errors import Invalid, Unavailable
from mainstem.spark.class_archive import ClassArchive, find_archive
from mainstem.spark.hidden_libraries import check_libraries
from mainstem.spark.java_patches import java_home, own_script, patch_session, patches_are_on, run_options
from mainstem.spark.warm_workers import start_warm_process, worker_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = [
    "CALLED_WITH",
    "SETTINGS",
    "add_java_options",
    "class_archive",
    "has_times",
    "prepare_session",
    "session_settings",
    "show_calls",
    "spark_session",
    "with_call_shown",
]


# The arguments with which a user's function (`F.udf`) failed.
#
# Spark passes on the error of such a function as text, with the line of the program, but without the row. So the function is
# wrapped: the wrapper adds a note with the arguments to the error. `runner` finds it there.


CALLED_WITH = "Called with: "
# Values are truncated: enough to recognise the row.
SHOWN_MAX = 300


def with_call_shown(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, wrapped: its errors have a note with its arguments, on one line."""

    @functools.wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except Exception as error:
            shown = ", ".join([*map(repr, values), *(f"{name}={value!r}" for name, value in named.items())])
            shown = " ".join(shown.split())
            error.add_note(f"{CALLED_WITH}{shown[:SHOWN_MAX]}{'...' if len(shown) > SHOWN_MAX else ''}")
            raise

    return call


def show_calls() -> None:
    """Wrap all row-by-row functions that are used from now on. Once per process."""
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    plain: Any = UserDefinedFunction._create_judf
    if hasattr(plain, "__wrapped__"):
        return
    row_by_row = (PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)

    @functools.wraps(plain)
    def create(self: Any, function: Any) -> Any:
        return plain(self, with_call_shown(function) if self.evalType in row_by_row else function)

    made: Any = create
    UserDefinedFunction._create_judf = made  # type: ignore[method-assign]


TIME_TYPE = "spark.sql.timeType.enabled"

SETTINGS: dict[str, str] = {
    # A local session must not be reachable from the network.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Users get our errors; Spark's log repeats them in seventy lines.
    "spark.log.level": "OFF",
    # All times are UTC.
    "spark.sql.session.timeZone": "UTC",
    # Flows share one session; none waits for a whole batch of another.
    "spark.scheduler.mode": "FAIR",
    # Rows go to Python and come back as Arrow.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # PySpark makes nine calls to Java for each function and column, to report its line in Spark's messages. Ours do not show
    # it.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Not over TCP: there Java's second small write waits 40 ms for Python to acknowledge the first, in every task.
    "spark.python.unix.domain.socket.enabled": "true",
    # Batches are small: replanning between stages costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    # A batch of packed rows is large; Spark's buffer for it grows by doubling and copying.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
    # Spark hashes every shuffled byte to detect a task that is not deterministic; reads of the log are deterministic. It does
    # so unless both are off.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    # One write and one rename for each file of a checkpoint, and no hidden checksum file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Spark 4.2 refuses its TIME type unless it is enabled.
    TIME_TYPE: "true",
    # State may be larger than memory, and a batch writes only its changes.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Verify the page checksums of sealed segments.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # A batch of half a million rows passes through the driver into a view or a topic.
    "spark.driver.memory": "2g",
    # Progress of the last batches, for the display.
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}


def spark_session(address: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session for an address such as "local[*]" or "spark://master:7077"; a new or the running one."""
    # The folder of the program, or the working directory of a shell.
    check_libraries(os.path.abspath(sys.path[0] if sys.path else ""))
    _prepare_environment(address)
    from pyspark.sql import SparkSession

    wanted = session_settings(address, settings)
    builder = SparkSession.builder.appName("mainstem").master(address)
    for name, value in wanted.items():
        if value:
            builder = builder.config(name, value)
    archive = class_archive(address, wanted)
    options = archive.options() if archive is not None else []
    with (
        _quiet_java(),
        _own_interrupts(),
        _outlast_signals(),
        add_java_options(*options, *run_options(wanted, os.environ)),
    ):
        session = builder.getOrCreate()
    patch_session(session)
    if archive is not None:
        archive.attend(session, options)
    return session


def session_settings(address: str, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of a session that is made here; the user's take precedence. An empty value removes a setting."""
    return SETTINGS | _by_place(address) | _spark_defaults() | dict(settings or {})


def class_archive(address: str, settings: Mapping[str, str]) -> ClassArchive | None:
    """The archive of classes for a Java that a local session starts; None if it has none or Java runs already."""
    from pyspark import SparkContext

    started = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    if started or not address.startswith("local") or not patches_are_on():
        return None
    return find_archive(settings, os.environ)


@contextmanager
def add_java_options(*options: str) -> Iterator[None]:
    """A Java of Spark's that is started inside has these options, after those of the user."""
    before = os.environ.get("SPARK_SUBMIT_OPTS")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*([before] if before else []), *options])
    try:
        yield
    finally:
        if before is None:
            del os.environ["SPARK_SUBMIT_OPTS"]
        else:
            os.environ["SPARK_SUBMIT_OPTS"] = before


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep our handler of Ctrl-C: Spark's would cancel all batches, so that every flow would fail instead of stopping."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _outlast_signals() -> Iterator[None]:
    """A Java that is started inside ignores SIGTERM, as Spark has it ignore SIGINT: a signal to the whole group of processes,
    as a supervisor sends it, would end Java in the middle of a batch. It ends with this process, when its flows have stopped.
    """
    from pyspark import java_gateway

    gateway: Any = java_gateway
    plain = gateway.Popen

    def start(command: list[str], **options: Any) -> Any:
        prepare = options.pop("preexec_fn")

        def prepare_both() -> None:
            prepare()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        return plain(command, preexec_fn=prepare_both, **options)

    gateway.Popen = start
    try:
        yield
    finally:
        gateway.Popen = plain


@contextmanager
def _quiet_java() -> Iterator[None]:
    """Write Java's output (harmless warnings) to a file; it is shown if Java does not start."""
    with tempfile.NamedTemporaryFile(prefix="mainstem-java-", suffix=".log") as said:
        kept = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except Exception as error:
            lines = Path(said.name).read_text(errors="replace").strip().splitlines()
            raise Unavailable(
                "Spark does not start",
                detail=" ".join(lines[-3:]) or str(error).splitlines()[0],
                hint="See whether JAVA_HOME is a Java 17 or later, and whether the address of Spark is right.",
            ) from error
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def prepare_session(spark: SparkSession, *sources: type[DataSource]) -> SparkSession:
    """The session, ours or a user's own, with these sources registered."""
    if spark.sparkContext._jsc is None:  # there is no public API for this
        raise Unavailable(
            "the Spark session was stopped",
            detail="This mainstem was opened with it, or the program stopped it (spark.stop()).",
            hint="Open the home again, with a session that runs or without `spark=`.",
        )
    if id(spark) not in _known:
        _check_python(spark)
        show_calls()
        with _environment_ready(spark):
            for source in sources:
                _register(spark, source)
        if TIME_TYPE not in spark.conf.getAll:
            spark.conf.set(TIME_TYPE, SETTINGS[TIME_TYPE])
        _known[id(spark)] = spark
    _activate(spark)
    return spark


def _check_python(spark: SparkSession) -> None:
    """Raise an error if a user's own session runs its workers with a Python that lacks Mainstem."""
    context: Any = spark.sparkContext
    worker = str(context.pythonExec)
    # The Python of a cluster's machines is unknown here.
    if not str(context.master).startswith("local") or _runs_mainstem(worker):
        return
    raise Invalid(
        f'the Spark session runs Python functions with "{worker}", in which there is no Mainstem',
        detail=f"{shutil.which(worker) or 'There is no such program, and it'} cannot import mainstem and pyspark; this program "
        f"runs with {sys.executable}. Spark takes the name from PYSPARK_PYTHON when a session is made.",
        hint='Set it before you make the session: os.environ["PYSPARK_PYTHON"] = sys.executable. Or leave `spark=` out: '
        "Mainstem makes a session then.",
    )


def _runs_mainstem(worker: str) -> bool:
    if worker == sys.executable or worker in _ours:
        return True
    look = "import sys, importlib.util as u; sys.exit(not (u.find_spec('mainstem') and u.find_spec('pyspark')))"
    try:
        return subprocess.run([worker, "-c", look], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def has_times(spark: SparkSession) -> bool:
    """Whether a session supports times of day: it does unless its user has disabled them."""
    return spark.conf.get(TIME_TYPE) == "true"


def _activate(spark: SparkSession) -> None:
    """Make the session active in this thread: without an active session Spark uses its default settings."""
    if getattr(_thread, "active", None) != id(spark):
        java = spark._get_j_spark_session_class(spark._jvm)
        if not java.getActiveSession().isDefined():
            java.setActiveSession(spark._jsparkSession)
        _thread.active = id(spark)


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a source. Spark checks the active session for it, so that must be this one."""
    java = spark._get_j_spark_session_class(spark._jvm)
    active = java.getActiveSession()
    java.setActiveSession(spark._jsparkSession)
    try:
        spark.dataSource.register(source)
    finally:
        if active.isDefined():
            java.setActiveSession(active.get())


@contextmanager
def _environment_ready(spark: SparkSession) -> Iterator[None]:
    """Sources registered inside have, from the start, the variables that Spark sets when a stream starts.

    All streams of one source share one Java map for them, without a lock: two flows that start at once and both add the
    same variable leave the map with a wrong size, and every task with it unreadable (OptionalDataException). Replacing the
    value of an existing variable is safe.
    """
    environment = spark.sparkContext.environment
    missing = [name for name in _SET_BY_SPARK if name not in environment]
    environment.update(dict.fromkeys(missing, ""))
    try:
        yield
    finally:
        for name in missing:
            del environment[name]


# Worker scripts that were written here.
_ours: set[str] = set()

_SET_BY_SPARK = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")

# Sessions live as long as the process; only their identity is used here.
_known: dict[int, SparkSession] = {}
_thread = threading.local()


def _prepare_environment(address: str) -> None:
    """Set the variables that Spark reads when Java starts; existing ones are not changed."""
    # Workers must have the packages that this process has.
    if "PYSPARK_PYTHON" not in os.environ:
        local = address.startswith("local")
        script = worker_script(sys.executable)
        worker = str(own_script(f"python-{zlib.crc32(script.encode()):08x}", script)) if local else sys.executable
        os.environ["PYSPARK_PYTHON"] = worker
        if local:
            start_warm_process()
        _ours.add(worker)
    if _is_here(address):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if home := java_home(os.environ):
        os.environ["JAVA_HOME"] = home
    # These loggers write every error between Python and Java to standard error, with its whole stack trace; our errors
    # report it once, with its cause first.
    from pyspark.logger import PySparkLogger

    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _is_here(address: str) -> bool:
    """Whether driver and executors are all on this machine."""
    host = address.partition("://")[2].rpartition(":")[0]
    return address.startswith("local") or host in ("127.0.0.1", "localhost")


def _by_place(address: str) -> dict[str, str]:
    """Settings that depend on where Spark runs; an empty value removes a setting."""
    # Each shuffle partition of a stateful flow is a task and a state store to commit in every batch: Spark's default of
    # 200 is for tables, not for batches of a second.
    local = address.startswith("local")
    size = max(2, min(8, len(os.sched_getaffinity(0)))) if local else 16
    partitions = {"spark.sql.shuffle.partitions": str(size)}
    if local:
        # What is shuffled stays on this machine, mostly in memory: compression costs more than it saves.
        partitions["spark.shuffle.compress"] = "false"
    # The executors of a cluster must reach the driver by its network address.
    return partitions | ({} if _is_here(address) else {"spark.driver.bindAddress": "", "spark.driver.host": ""})


def _spark_defaults() -> dict[str, str]:
    """The settings of the user's spark-defaults.conf; in Spark ours would override them."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    path = Path(folder) / "spark-defaults.conf"
    # Without either, Spark reads none: not one that lies in the working directory.
    if not folder or not path.is_file():
        return {}
    lines = [line.strip().replace("=", " ", 1).split(None, 1) for line in path.read_text().splitlines()]
    return {line[0]: line[1].strip() for line in lines if len(line) == 2 and line[0].startswith("spark.")}
