"""Local files get the modes that Hadoop would give them, and no process is started for it."""

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def hadoop(spark: SparkSession) -> Any:
    return spark._jvm.org.apache.hadoop.fs


def mode(path: Path) -> str:
    return oct(path.stat().st_mode)


def local_files(spark: SparkSession) -> Any:
    """The file system that Spark's checkpoints are written with."""
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return spark._jvm.org.apache.hadoop.fs.Path("file:///").getFileSystem(configuration)


def test_every_mode_is_as_hadoop_sets_it(spark: SparkSession, hadoop: Any, tmp_path: Path) -> None:
    ours = local_files(spark)
    assert ours.getRaw().getClass().getName() == "mainstem.LocalFiles"
    theirs = hadoop.LocalFileSystem()
    theirs.initialize(spark._jvm.java.net.URI("file:///"), spark.sparkContext._jsc.hadoopConfiguration())
    for number in (0o600, 0o644, 0o755, 0o777, 0o421, 0o1770):
        permission = hadoop.permission.FsPermission(number)
        for files, name in ((ours, "ours"), (theirs, "theirs")):
            folder = tmp_path / f"{name}-{number}" / "inner"
            assert files.mkdirs(hadoop.Path(str(folder)), permission)
            files.create(hadoop.Path(f"{folder}/file"), True).close()
            files.setPermission(hadoop.Path(f"{folder}/file"), permission)
        for place in (".", "inner", "inner/file"):
            assert mode(tmp_path / f"ours-{number}" / place) == mode(tmp_path / f"theirs-{number}" / place)


def test_a_file_is_made_without_a_process(spark: SparkSession, hadoop: Any, tmp_path: Path) -> None:
    made = tmp_path / "made"
    theirs = hadoop.RawLocalFileSystem()
    theirs.initialize(spark._jvm.java.net.URI("file:///"), spark.sparkContext._jsc.hadoopConfiguration())
    java = spark._jvm.java.lang.ProcessHandle.current().pid()

    def waited_for() -> int:
        """The processor time of all processes that Java has started and waited for, in ticks of the kernel."""
        fields = Path(f"/proc/{java}/stat").read_text().rpartition(")")[2].split()
        return int(fields[13]) + int(fields[14])

    def used(files: Any) -> int:
        before = waited_for()
        for _ in range(40):
            files.create(hadoop.Path(str(made)), True).close()
            os.remove(made)
        return waited_for() - before

    assert used(theirs) > 0
    # A worker of Spark's may end at any time, but not each time.
    assert min(used(local_files(spark)) for _ in range(3)) == 0
