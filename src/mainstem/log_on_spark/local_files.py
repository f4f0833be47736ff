"""Local files whose modes Java sets itself.

Hadoop's local file system, which Spark writes its checkpoints with, starts `chmod` for every file and directory it makes,
twice: a process each. A batch writes a handful of files, so a small one spends a third of its time on that. What stands here is
Hadoop's own file system, but for that one method; Java is compiled by the compiler that Spark brings for its queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["set_modes_in_java"]

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
