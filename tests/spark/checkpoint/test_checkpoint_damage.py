"""S3 with Spark: a flow with state is run on from checkpoints that are damaged, each a copy of the same one."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import mainstem
from mainstem import Mainstem
from mainstem.errors import FlowFailed
from mainstem.flows.flow import Flow
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch


def flows(stem: Mainstem) -> Iterator[Flow]:
    totals = stem.topic("orders").stream().groupBy("store").agg(F.sum("amount").alias("amount"))
    yield Flow(totals, into=stem.view("totals", key="store"))


def rows(first: int) -> list[dict]:
    return [{"store": "ABC"[n % 3], "amount": n} for n in range(first, first + 30)]


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the flow has done three batches."""
    home = tmp_path_factory.mktemp("ran") / "home"
    with mainstem.open(home, upkeep="manual", spark=spark) as stem:
        orders = stem.create_topic("orders", schema="store STRING, amount BIGINT", partitions=2)
        with stem.start(flows) as running:
            for batch in range(3):
                orders.append(rows(batch * 30))
                running.wait_until_idle()
    return home


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def halve(path: Path) -> None:
    """As a writer leaves it that was cut short, with the checksums of the whole."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def halve_alone(path: Path) -> None:
    """The same where no checksums were written."""
    halve(path)
    path.with_name(f".{path.name}.crc").unlink()


def half_planned(checkpoint: Path) -> None:
    """A batch behind the last one, of which half the entry was written."""
    last = last_of(checkpoint, "offsets")
    content = last.read_bytes()
    last.with_name(str(int(last.name) + 1)).write_bytes(content[: len(content) // 2])


def last_of(checkpoint: Path, log: str) -> Path:
    return checkpoint / log / str(last_batch(str(checkpoint), log))


def last_states(checkpoint: Path) -> list[Path]:
    number = (last_batch(str(checkpoint)) or 0) + 1
    return sorted(checkpoint.glob(f"state/0/*/{number}.*"))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "last offsets deleted": (lambda c: remove(last_of(c, "offsets")), "refused"),
    "last offsets flipped": (lambda c: flip(last_of(c, "offsets")), "refused"),
    "last offsets half written": (lambda c: halve(last_of(c, "offsets")), "refused"),
    "last offsets half written, without checksums": (lambda c: halve_alone(last_of(c, "offsets")), "refused"),
    "next offsets half written": (half_planned, "recovered"),
    "all offsets deleted": (lambda c: shutil.rmtree(c / "offsets"), "refused"),
    "checkpoint deleted": (shutil.rmtree, "refused"),
    "state flipped": (lambda c: [flip(path) for path in last_states(c)], "refused"),
    "state deleted": (lambda c: [remove(path) for path in last_states(c)], "refused"),
    "all state deleted": (lambda c: shutil.rmtree(c / "state"), "refused"),
    "view deleted": (lambda c: shutil.rmtree(c.parent.parent.parent / "views"), "refused"),
    "last commit deleted": (lambda c: remove(last_of(c, "commits")), "recovered"),
    "last commit emptied": (lambda c: last_of(c, "commits").write_bytes(b""), "recovered"),
    "last commit half written": (lambda c: halve(last_of(c, "commits")), "recovered"),
    "last commit half written, without checksums": (lambda c: halve_alone(last_of(c, "commits")), "recovered"),
    "last commit and next offsets half written": (
        lambda c: [halve(last_of(c, "commits")), half_planned(c)],
        "recovered",
    ),
    "all commits deleted": (lambda c: shutil.rmtree(c / "commits"), "recovered"),
    "metadata deleted": (lambda c: remove(c / "metadata"), "refused"),
    "checkpoint and view deleted": (
        lambda c: [shutil.rmtree(c), shutil.rmtree(c.parent.parent.parent / "views")],
        "recovered",
    ),
}


def test_a_damaged_checkpoint_is_refused_or_recovered_from(
    spark: SparkSession, ran: Path, tmp_path: Path, fault_report: Callable[..., None]
) -> None:
    outcomes, violations = {}, []
    for number, (name, (damage, _)) in enumerate(DAMAGES.items()):
        home = tmp_path / str(number) / "home"
        shutil.copytree(ran, home)
        damage(home / "flows" / "totals" / "v1")
        with mainstem.open(home, upkeep="manual", spark=spark) as stem:
            stem.topic("orders").append(rows(90))
            try:
                with stem.start(flows) as running:
                    running.wait_until_idle()
                outcomes[name] = "recovered"
            except FlowFailed:
                outcomes[name] = "refused"
                continue
            expected = stem.query(
                "SELECT store, sum(amount)::BIGINT AS amount FROM orders GROUP BY store ORDER BY store"
            )
            found = stem.view("totals").to_arrow().select(["store", "amount"]).sort_by("store")
            if found.to_pylist() != expected.to_pylist():
                violations.append(f"{name}: {found.to_pylist()} instead of {expected.to_pylist()}")
    fault_report("S3 with Spark", points=len(DAMAGES), compared=len(DAMAGES), violations=violations)
    assert outcomes == {name: outcome for name, (_, outcome) in DAMAGES.items()}
