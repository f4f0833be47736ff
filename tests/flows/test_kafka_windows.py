"""Windows, triggers and corrections on Kafka: generated cases against the naive engines, with faults, as embedded.

The naive engines are handed the batches that were. Of a row's own watermark Kafka knows nothing: it is what the batch knew
that read the row, and stands in the batch's offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from mainstem import Mainstem
from mainstem.clock import as_us
from mainstem.flows.staged_batches import StagedBatches, clock_of
from mainstem.operators.stage.engine import NO_TIME
from mainstem.spark.checkpoint.checkpoint_offsets import last_batch, source_offsets
from tests.operators.naive_windows import Asked, Row
from tests.operators.test_window_engine_properties import TRIGGERS
from tests.operators.test_windowed_naive import CASES, late_rows, ran
from tests.operators.window_programs import TOPIC, WindowFlow, WindowProgram, asked_at_random
from tests.operators.window_scripts import Batch

SEED = 29
ROWS = 160
# One of each engine: windows that are fixed, that begin with a row, that grow together.
CHOSEN = ("hopping", "sliding", "sessions")
# What is left out has no other way on Kafka than embedded.
CHOSEN_FAULTS = ["stage_runs_written", "sink", "batch_written", "stage_manifest_written", "batch_begun"]
EVERY_RUN = ["stage_runs_written", "batch_written", "stage_manifest_written"]

pytestmark = pytest.mark.usefixtures("one_bucket")


class KafkaWindowFlow(WindowFlow):
    """The same flow over a topic on Kafka."""

    def batches_by_program(self) -> dict[WindowProgram, list[Batch]]:
        """Each program has a source of its own, in their order; one may have seen a record that another has not yet."""
        log = [
            Row(
                row["key"], as_us(row["at"]), NO_TIME, row["value"], row["record"]["partition"],
                row["record"]["offset"], row["gap"] or 0,
            )
            for row in self.stem.topic(TOPIC).to_arrow().to_pylist()
        ]  # fmt: skip
        found: dict[WindowProgram, list[Batch]] = {program: [] for program in self.programs}
        ends: dict[WindowProgram, dict[int, int]] = {program: {} for program in self.programs}
        for number in range((last_batch(self.checkpoint) or 0) + 1):
            clock = clock_of(self.checkpoint, number)
            for program, offset in zip(self.programs, source_offsets(self.checkpoint, number), strict=True):
                known = NO_TIME if offset["known"] is None else offset["known"]
                before, after = ends[program], {int(place): end for place, end in offset["offsets"].items()}
                rows = [
                    replace(row, watermark=known)
                    for row in log
                    if before.get(row.partition, 0) <= row.offset < after[row.partition]
                ]
                ends[program] = after
                found[program].append((rows, clock))
        return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    "faults", [pytest.param(EVERY_RUN, id="some"), pytest.param(CHOSEN_FAULTS, marks=pytest.mark.long, id="all")]
)
def test_windows_on_kafka_give_the_panes_of_the_naive_engine_whatever_fails(
    on_kafka: Mainstem, tmp_path: Path, fault_report: Callable[..., None], faults: list[str]
) -> None:
    random = Random(SEED)
    programs = [WindowProgram(kind, asked_at_random(random, TRIGGERS)) for kind in CHOSEN]
    flow, struck = ran(on_kafka, tmp_path, programs, faults, ROWS, KafkaWindowFlow)

    assert struck == faults
    compared, differences = flow.differences(late_rows(on_kafka))
    fault_report(
        "S10 windows on Kafka", points=CASES * len(programs), compared=compared, violations=differences, seed=SEED,
        faults=len(struck),
    )  # fmt: skip
    # Something was late, shown early, and corrected.
    timings = {pane["timing"] for row in flow.sink.rows() for pane in [row["pane"]]}
    assert timings == {"early", "on_time", "late"}
    assert late_rows(on_kafka) is not None
    assert any(row["record"]["change"] == "delete" for row in flow.sink.rows())


def state_of_the_batch_itself(patch: pytest.MonkeyPatch) -> None:
    """A batch that is done again begins with the state that it left."""
    right = StagedBatches._before

    def wrong(self: StagedBatches, number: int) -> dict:
        last = self._manifests.last()
        return right(self, number) if last is None else last["stages"]

    patch.setattr(StagedBatches, "_before", wrong)


def test_a_mutant_is_found(on_kafka: Mainstem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state_of_the_batch_itself(monkeypatch)
    programs = [WindowProgram("tumbling", Asked(lateness=15, results="retract"))]
    flow, _ = ran(on_kafka, tmp_path, programs, ["", "stage_manifest_written"], ROWS, KafkaWindowFlow)
    _, differences = flow.differences(late_rows(on_kafka))
    assert differences
