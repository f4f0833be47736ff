"""A time is found among any number of segments, sealed or not, without looking into each of them."""

from datetime import timedelta
from pathlib import Path

from mainstem.clock import ManualClock, as_datetime
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.embedded.read import partition_reader
from mainstem.stem import Mainstem

TEXT = "x".join(str(number) for number in range(400))


def test_each_time_is_found_whatever_is_sealed(tmp_path: Path, monkeypatch) -> None:
    clock = ManualClock()
    opened: list[object] = []
    first_append = partition_reader.PartitionReader._first_append

    def counted(self, name):
        opened.append(name)
        return first_append(self, name)

    monkeypatch.setattr(partition_reader.PartitionReader, "_first_append", counted)
    with Mainstem(EmbeddedLog(tmp_path, upkeep="manual", clock=clock), home=str(tmp_path)) as stem:
        topic = stem.create_topic("notes", schema="note STRING, n INT", segment_bytes_max="4 KiB")
        appended = []
        for number in range(40):
            clock.advance("1 second" if number % 3 else "0 seconds")
            topic.append([{"note": f"{number}{TEXT}", "n": number}])
            appended.append(as_datetime(clock.now()))
        segments = len(list(tmp_path.glob("**/notes/**/*.blocks")))
        assert segments > 10
        step = timedelta(microseconds=1)
        for sealing in range(2):
            for at in {*appended, *(at + step for at in appended), appended[0] - step}:
                opened.clear()
                found = [row["n"] for row in topic.to_arrow(start=at).to_pylist()]
                assert found == [number for number, when in enumerate(appended) if when >= at]
                assert len(opened) <= segments.bit_length()
            if not sealing:
                topic.seal()
