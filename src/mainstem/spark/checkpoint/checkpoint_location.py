"""Where Spark stores its checkpoints: in the home, or on a Hadoop file system that all machines can access.

In this order: the program's setting (`mainstem.open(home, checkpoints="hdfs://...")`), MAINSTEM_CHECKPOINTS in the
environment, `checkpoints.toml` in the home, the home itself.

    # checkpoints.toml
    url = "s3a://shop/checkpoints"

A checkpoint stays where it was created: a file in the home records its address.

    flows/<name>/v<version>/elsewhere     {"format": 2, "url": "s3a://shop/checkpoints/<name>/v<version>-<random>", ...}
    flows/<name>/v<version>/metadata      copies of what Spark writes there, made when a run begins and with every batch
    flows/<name>/v<version>/offsets/
    flows/<name>/v<version>/commits/

The files there are authoritative; the copies are for readers without Spark: sources, commands, tokens. All other files of a
checkpoint (the state of stages, observed times, which batches had rows) are in the home, which a cluster must share anyway.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mainstem.durable_files import REAL_FILES, decode_checked, encode_checked, replace_file
from mainstem.errors import CorruptHome, Invalid, MainstemError, Unavailable
from mainstem.settings import environment_with, read_address, remember

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CheckpointLocation",
    "checkpoints_of_home",
    "damaged_note",
    "is_elsewhere",
    "read_pointer",
    "remove_checkpoint",
]

FILE = "checkpoints.toml"
POINTER = "elsewhere"
# 2: it has a checksum.
FORMAT = 2
LOGS = ("offsets", "commits")
# How many of the last entries a starting run reads.
LOOKED_AT = 2
_ABOUT = "# Where Spark keeps the checkpoints of this home's flows; those that are begun stay where they are.\n"
_UNKNOWN = ("UnsupportedFileSystemException", "ClassNotFoundException", "IllegalArgumentException")


def checkpoints_of_home(home: str, address: str | None = None) -> str | None:
    """Where new checkpoints of a home are created, None for the home itself; the first given address is stored in the home."""
    if not home:
        return None
    if address is not None:
        remember(home, FILE, _address_to_url(address), about=_ABOUT)
        return _address_to_url(address)
    found = environment_with("MAINSTEM_").get("checkpoints") or read_address(
        home, FILE, example="hdfs://namenode:8020/shop", without="checkpoints are in the home itself"
    )
    return None if found is None else _address_to_url(found)


def _address_to_url(address: str) -> str:
    """The address of a folder as a Hadoop URL: a path becomes one of the local file system, which may be a mount."""
    parts = urlsplit(address)
    if parts.password is not None:
        raise Invalid(
            "the address of checkpoints contains a password",
            detail="The address is stored beside every checkpoint, and Spark shows it.",
            hint="Pass the password to Spark in a setting of the file system, for example spark.hadoop.fs.s3a.secret.key.",
        )
    if not address.strip("/"):
        raise Invalid(
            "the address of checkpoints is empty",
            detail=f'The address is "{address}".',
            hint='For example: checkpoints="hdfs://namenode:8020/shop".',
        )
    return address.rstrip("/") if parts.scheme else f"file://{os.path.abspath(address)}"


def is_elsewhere(checkpoint: str) -> bool:
    """Whether Spark stores this checkpoint outside the home."""
    return os.path.exists(f"{checkpoint}/{POINTER}")


class CheckpointLocation:
    """The location of one checkpoint, by its folder in the home. Thread-safe."""

    def __init__(self, spark: SparkSession, checkpoint: str, url: str | None) -> None:
        self.folder = checkpoint
        # The location that Spark uses.
        self.address = checkpoint if url is None else url
        self._there = None if url is None else _HadoopFolder(spark, url)
        # The entries there when the run started.
        self._found: dict[str, set[str]] = {}

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str, root: str | None) -> CheckpointLocation:
        """The location of a checkpoint: a new one is below `root`, if that is given."""
        url = read_pointer(checkpoint)
        if url is None and root is not None and not os.path.exists(f"{checkpoint}/metadata"):
            flow, version = checkpoint.split(os.sep)[-2:]
            # An earlier flow of this name may have left one.
            url = f"{root}/{flow}/{version}-{uuid.uuid4().hex[:8]}"
            os.makedirs(checkpoint, exist_ok=True)
            replace_file(REAL_FILES, f"{checkpoint}/{POINTER}", encode_checked({"format": FORMAT, "url": url}))
        return cls(spark, checkpoint, url)

    def pull(self, *, begin: bool = False) -> None:
        """Copy its entries to the home. When a run starts, the entries that it reads are copied again: they may be damaged."""
        if self._there is None:
            return
        with _explain_errors(self.address):
            if not os.path.exists(f"{self.folder}/metadata") and "metadata" in self._there.names(""):
                self._copy("metadata")
            for log in LOGS:
                found = self._pull_log(log, LOOKED_AT if begin else 0)
                if begin:
                    self._found[log] = found

    def push_removals(self) -> None:
        """Remove there the damaged entries that were removed here. New entries there stay: a newer run may own them."""
        if self._there is None:
            return
        with _explain_errors(self.address):
            for log, found in self._found.items():
                for name in found - _numbers(f"{self.folder}/{log}"):
                    self._there.remove(f"{log}/{name}")

    def _pull_log(self, log: str, again: int) -> set[str]:
        assert self._there is not None
        folder = f"{self.folder}/{log}"
        # In this order, so that an entry that another run copies meanwhile is not taken for a removed one.
        here = _numbers(folder)
        there = self._there.numbers(log)
        if there:
            os.makedirs(folder, exist_ok=True)
        last = sorted(there, key=int)[-again:] if again else []
        for name in (there - here).union(last):
            self._copy(f"{log}/{name}")
        for name in here - there:
            with suppress(FileNotFoundError):
                os.remove(f"{folder}/{name}")
        return there

    def _copy(self, name: str) -> None:
        assert self._there is not None
        path = f"{self.folder}/{name}"
        beside = f"{path}.{uuid.uuid4().hex}"
        with open(beside, "w", encoding="utf-8") as file:
            file.write(self._there.read(name))
        os.replace(beside, path)


def remove_checkpoint(checkpoint: str) -> None:
    """Remove it, here and there. Without Spark in this process it stays there, and is never used again."""
    url = None
    with suppress(CorruptHome):
        url = read_pointer(checkpoint)
    if url is not None:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        if session is not None:
            with suppress(MainstemError), _explain_errors(url):
                _HadoopFolder(session, url).remove("")
    shutil.rmtree(checkpoint, ignore_errors=True)


class _HadoopFolder:
    """A folder on any file system that Spark supports, accessed through Java."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._url = url
        self._java: Any = spark._jvm
        context: Any = spark.sparkContext
        with _explain_errors(url):
            self._files = self._path("").getFileSystem(context._jsc.hadoopConfiguration())

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self._url}/{name}" if name else self._url)

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        return [str(it.getPath().getName()) for it in self._files.listStatus(path)] if self._files.exists(path) else []

    def numbers(self, folder: str) -> set[str]:
        return set(filter(str.isdigit, self.names(folder)))

    def read(self, name: str) -> str:
        stream = self._files.open(self._path(name))
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def remove(self, name: str) -> None:
        self._files.delete(self._path(name), True)


@contextmanager
def _explain_errors(url: str) -> Iterator[None]:
    """Raises Java's errors of a file system as ours."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("py4j"):
            raise
        said = str(getattr(error, "java_exception", error)).partition("\n")[0]
        lasting = any(name in said for name in _UNKNOWN)
        raise (Invalid if lasting else Unavailable)(
            f'checkpoints at "{url}" cannot be used',
            detail=f"Spark says: {said}",
            hint="Check the address, and that Spark has the jars and settings of its file system "
            "(spark.jars.packages, spark.hadoop.*).",
        ) from error


def read_pointer(checkpoint: str) -> str | None:
    """The address of a checkpoint that is stored elsewhere; None if it is in the home."""
    path = f"{checkpoint}/{POINTER}"
    try:
        with open(path, "rb") as file:
            return str(decode_checked(file.read(), since=2, known=FORMAT)["url"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        raise damaged_note(path, error) from error


def damaged_note(path: str, error: Exception) -> CorruptHome:
    """The error for a small file of a checkpoint that is damaged."""
    return CorruptHome(
        f'"{path}" is damaged',
        detail=f"Its content is invalid: {error}.",
        hint="Restore it from a copy. Or start over: delete the checkpoint together with what the flow has written; the next "
        "run rebuilds both from the log.",
        path=path,
    )


def _numbers(folder: str) -> set[str]:
    with suppress(FileNotFoundError):
        return set(filter(str.isdigit, os.listdir(folder)))
    return set()
