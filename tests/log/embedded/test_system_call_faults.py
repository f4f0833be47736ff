"""L8 on a real process: the system calls of a process fail from outside, by strace and by libfiu.

What it says is held against what is there afterwards: nothing is acknowledged once an fsync has failed, a full disk
refuses one append and takes the next, and all that was acknowledged can be read.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mainstem
from mainstem.errors import Unavailable
from tests.log.embedded.forked_writers import TOPIC, create
from tests.needs import needs

APPENDS = 14
SECONDS_MAX = 300

# The two libraries of libfiu, without its control thread; and what makes pyarrow start no thread while it is loaded.
FIU = "/usr/lib/fiu/fiu_run_preload.so /usr/lib/fiu/fiu_posix_preload.so"
FIU_ENVIRONMENT = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}

# Which call of the main thread fails, and with what.
BY_STRACE = [
    *(("fdatasync", "EIO", when) for when in range(1, 10)),
    ("fdatasync", "ENOSPC", 4),
    ("fsync", "EIO", 1),
    *(("pwritev", "ENOSPC", when) for when in (1, 5)),
    ("pwritev", "EIO", 7),
]
BY_FIU = ["posix/io/sync/fdatasync"] * 4 + ["posix/io/rw/pwritev"] * 2


def program(repository: Path, home: Path, *mutant: str) -> list[str]:
    return [sys.executable, "-m", "tests.log.embedded.appending_program", str(home), str(APPENDS), *mutant]


def run(command: list[str], repository: Path, **environment: str) -> list[list[str]]:
    """The words of each line that the program said."""
    path = os.pathsep.join([str(repository / "src"), str(repository)])
    finished = subprocess.run(
        command,
        cwd=repository,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    said = [line.split(maxsplit=3) for line in finished.stdout.splitlines()]
    assert len(said) == APPENDS, finished.stdout + finished.stderr
    return said


def judge(home: Path, said: list[list[str]], call: str, *, failed: bool) -> list[str]:
    """What is wrong with what the program said, and with what it left."""
    wrong: list[str] = []
    refused = [number for number, line in enumerate(said) if line[0] == "refused"]
    acknowledged = {int(line[1]): int(line[2]) for line in said if line[0] == "acknowledged"}
    synced = call.endswith("sync")
    if failed and not refused:
        wrong.append(f"{call} failed, and every append was acknowledged")
    if not failed and refused:
        wrong.append(f"{call} did not fail, and {said[refused[0]]} was said")
    if failed and synced and refused and refused != list(range(refused[0], APPENDS)):
        wrong.append(f"an append was acknowledged after a failed {call}: {said}")
    with mainstem.open(home) as stem:
        topic = stem.topic(TOPIC)
        if failed and synced:
            try:
                topic.append([{"id": -1, "what": "fenced"}], partition=0)
                wrong.append(f"{call} failed, and another process could append")
            except Unavailable:
                topic.take_over()
        topic.append([{"id": APPENDS, "what": "after"}], partition=0)
        ids = topic.to_arrow(columns=["id"]).column("id").to_pylist()
    if ids[-1] != APPENDS:
        wrong.append(f"what was appended last is not there: {ids}")
    for offset, number in acknowledged.items():
        if offset >= len(ids) or ids[offset] != number:
            wrong.append(f"{number} was acknowledged at {offset}, and {ids} is there")
    return wrong


def by_strace(repository: Path, folder: Path, call: str, error: str, when: int, *mutant: str) -> list[str]:
    home, trace = folder / f"{call}-{error}-{when}", folder / "trace"
    # A roll, which syncs directories, after some appends.
    create(str(home), partitions=1, segment_bytes_max="3 KiB")
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"]
    said = run(["strace", "-f", "-o", str(trace), *inject, *program(repository, home, *mutant)], repository)
    main_thread = trace.read_text().split(maxsplit=1)[0]
    injected = [line for line in trace.read_text().splitlines() if "INJECTED" in line and line.startswith(main_thread)]
    return [f"{call} {error} {when}: {wrong}" for wrong in judge(home, said, call, failed=bool(injected))]


@pytest.mark.thorough
@needs("strace", command="strace")
def test_calls_that_strace_makes_fail(tmp_path, repository, fault_report):
    violations: list[str] = []
    for call, error, when in BY_STRACE:
        violations += by_strace(repository, tmp_path, call, error, when)
    fault_report("L8 by strace", points=len(BY_STRACE), compared=len(BY_STRACE) * APPENDS, violations=violations)


@needs("strace", command="strace")
def test_a_build_that_tries_an_fsync_again_is_caught(tmp_path, repository):
    assert by_strace(repository, tmp_path, "fdatasync", "EIO", 3, "retry fsync")


@pytest.mark.thorough
@needs("fiu-utils", command="fiu-run")
def test_calls_that_libfiu_makes_fail(tmp_path, repository, fault_report):
    violations: list[str] = []
    for number, name in enumerate(BY_FIU):
        home = tmp_path / str(number)
        create(str(home), partitions=1)
        said = run(
            program(repository, home),
            repository,
            LD_PRELOAD=FIU,
            # With the same chance at each call, so now and then nothing fails at all.
            FIU_ENABLE=f"enable_random name={name},probability=0.25,failinfo=5",
            **FIU_ENVIRONMENT,
        )
        failed = any(line[0] == "refused" for line in said)
        violations += [f"{name} {number}: {wrong}" for wrong in judge(home, said, name, failed=failed)]
    fault_report("L8 by libfiu", points=len(BY_FIU), compared=len(BY_FIU) * APPENDS, violations=violations)
