"""The Spark session, and every setting of it with its reason. What a user has set otherwise stays."""

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
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.errors import Invalid, Unavailable
from mainstem.spark.java_patches import java_home, own_script, patch_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CALLED_WITH", "SETTINGS", "has_times", "prepared", "show_calls", "spark_session", "with_call_shown"]


# Functions of users (`F.udf`) that say with which values they failed.
#
# Spark passes on what such a function raised as text, with the line of the program, but not the row. So it is sent to the
# workers inside of one that adds a note to the error: what it was called with. `runner` finds it there.


CALLED_WITH = "Called with: "
# Values are shown so that the row can be recognised, not whole.
SHOWN_MAX = 300


def with_call_shown(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; what it raises has a note that shows its arguments, on one line."""

    @functools.wraps(function)
    def called(*values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except Exception as error:
            shown = ", ".join([*map(repr, values), *(f"{name}={value!r}" for name, value in named.items())])
            shown = " ".join(shown.split())
            error.add_note(f"{CALLED_WITH}{shown[:SHOWN_MAX]}{'...' if len(shown) > SHOWN_MAX else ''}")
            raise

    return called


def show_calls() -> None:
    """Have all functions that are called row by row, and are used from now on, show their calls. Once for the process."""
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
    # Nobody on the network is to reach a laptop's session.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A user reads our errors; Spark's own log says the same in seventy lines.
    "spark.log.level": "OFF",
    # All times are UTC.
    "spark.sql.session.timeZone": "UTC",
    # Flows run beside each other in one session; none waits for another's whole batch.
    "spark.scheduler.mode": "FAIR",
    # Rows go to Python and come back as Arrow.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Not over TCP: there Java's second small write waits 40 ms for Python to acknowledge the first, in every task.
    "spark.python.unix.domain.socket.enabled": "true",
    # A batch is small: planning it anew between its stages costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    # Spark hashes every byte that it shuffles, to notice a task that gives other rows when it runs again: what reads the log
    # gives the same.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    # One write and one rename for each file of a checkpoint, instead of also a hidden checksum file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Spark 4.2 has a TIME, and refuses it unless it is told not to.
    TIME_TYPE: "true",
    # State may be larger than memory, and a batch writes only what changed in it.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Pages of sealed segments carry checksums: have them checked.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # A batch of half a million rows passes through the driver on its way into a view or a topic.
    "spark.driver.memory": "2g",
    # Progress of the last batches, for the display.
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}


def spark_session(address: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session for an address such as "local[*]" or "spark://master:7077"; made, or the one that runs."""
    _prepare_environment(address)
    from pyspark.sql import SparkSession

    theirs = _spark_defaults() | dict(settings or {})
    wanted = SETTINGS | _by_place(address) | theirs
    builder = SparkSession.builder.appName("mainstem").master(address)
    for name, value in wanted.items():
        if value:
            builder = builder.config(name, value)
    with _quiet_java(), _own_interrupts():
        session = builder.getOrCreate()
    patch_session(session)
    return session


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Spark would cancel all batches at Ctrl-C, and every flow would seem to have failed: they are stopped in order."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _quiet_java() -> Iterator[None]:
    """Java greets with warnings that mean nothing to a user: what it writes goes to a file, shown if it does not start."""
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


def prepared(spark: SparkSession, *sources: str) -> SparkSession:
    """The session with our sources known to it ("module:class"); ours or a user's own."""
    if spark.sparkContext._jsc is None:  # nothing public tells
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
                module, _, name = source.partition(":")
                _register(spark, getattr(import_module(module), name))
        if TIME_TYPE not in spark.conf.getAll:
            spark.conf.set(TIME_TYPE, SETTINGS[TIME_TYPE])
        _known[id(spark)] = spark
    _activate(spark)
    return spark


def _check_python(spark: SparkSession) -> None:
    """A session of the user's own may run its workers with another Python, in which there is no Mainstem."""
    context: Any = spark.sparkContext
    worker = str(context.pythonExec)
    # What a cluster's machines have is not known here.
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
    """Whether a session takes times of day: it does unless its user has said otherwise."""
    return spark.conf.get(TIME_TYPE) == "true"


def _activate(spark: SparkSession) -> None:
    """In a thread where no session is active, Spark goes by its own settings instead of the session's."""
    if getattr(_thread, "active", None) != id(spark):
        java = spark._get_j_spark_session_class(spark._jvm)
        if not java.getActiveSession().isDefined():
            java.setActiveSession(spark._jsparkSession)
        _thread.active = id(spark)


def _register(spark: SparkSession, source: type) -> None:
    """Have a session know a source. Spark looks in the active one whether it is known: that must be this one."""
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
    """Let what is registered have, from the start, the variables that Spark sets when a stream of it begins.

    All streams of one source share one Java map for them, with no lock: two flows that begin at once and both add the
    same variable leave the map with a wrong count, and every task with it unreadable (OptionalDataException). To give
    a variable that is there another value does the map no harm.
    """
    environment = spark.sparkContext.environment
    missing = [name for name in _SET_BY_SPARK if name not in environment]
    environment.update(dict.fromkeys(missing, ""))
    try:
        yield
    finally:
        for name in missing:
            del environment[name]


# Worker programs that were made here.
_ours: set[str] = set()

_SET_BY_SPARK = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")

# Sessions live as long as the process; who they are is all that is asked of them here.
_known: dict[int, SparkSession] = {}
_thread = threading.local()


# Spark puts its own copy of PySpark in front, in archives that every worker compiles anew when it starts: three quarters
# of a second, and on a busy machine more than the ten seconds after which Spark gives a worker up.
_WORKER = """#!/bin/sh
kept=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        */pyspark/python/lib/*.zip | */jars/*.jar) ;;
        *) kept=${{kept:+$kept:}}$entry ;;
    esac
done
unset IFS
export PYTHONPATH="$kept"
exec "{python}" "$@"
"""


def _prepare_environment(address: str) -> None:
    """What Spark reads from the environment when its Java begins; nothing that is set already is changed."""
    # Workers must have the packages that this process has.
    if "PYSPARK_PYTHON" not in os.environ:
        name = f"python-{zlib.crc32(sys.executable.encode()):08x}"
        local = address.startswith("local")
        worker = str(own_script(name, _WORKER.format(python=sys.executable))) if local else sys.executable
        os.environ["PYSPARK_PYTHON"] = worker
        _ours.add(worker)
    if _is_here(address):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if home := java_home(os.environ):
        os.environ["JAVA_HOME"] = home
    # They write every error that crosses between Python and Java to standard error, with its whole stack; ours say it
    # once, and with its cause first.
    from pyspark.logger import PySparkLogger

    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _is_here(address: str) -> bool:
    """Whether everything that talks to the session is on this machine."""
    host = address.partition("://")[2].rpartition(":")[0]
    return address.startswith("local") or host in ("127.0.0.1", "localhost")


def _by_place(address: str) -> dict[str, str]:
    """What depends on where Spark runs; an empty value takes a setting away."""
    # Each shuffle partition of a stateful flow is a task and a state store to commit in every batch: Spark's own 200 are
    # for tables, not for batches of a second.
    size = max(2, min(8, len(os.sched_getaffinity(0)))) if address.startswith("local") else 16
    partitions = {"spark.sql.shuffle.partitions": str(size)}
    # The executors of a cluster must find the driver, by the address that it has among them.
    return partitions | ({} if _is_here(address) else {"spark.driver.bindAddress": "", "spark.driver.host": ""})


def _spark_defaults() -> dict[str, str]:
    """What the user's own spark-defaults.conf says; Spark would let our settings win over it."""
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    path = Path(folder) / "spark-defaults.conf"
    if not path.is_file():
        return {}
    lines = [line.strip().replace("=", " ", 1).split(None, 1) for line in path.read_text().splitlines()]
    return {line[0]: line[1].strip() for line in lines if len(line) == 2 and line[0].startswith("spark.")}
