"""Blocks of a sealed file: their checksums give the whole file's, and what is read is checked, no more than that."""

from __future__ import annotations

import os

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mainstem
from mainstem.durable_files import RealFiles
from mainstem.errors import CorruptSegment
from mainstem.log.embedded.read.sealed_check import BLOCK_BYTES, BLOCKS, BlockChecksums, _checked

ROWS = 40_000


@given(st.integers(0, 5 * BLOCK_BYTES + 7), st.binary(max_size=300), st.integers(0, 2**32))
def test_the_checksum_of_a_file_follows_from_those_of_its_blocks(tmp_path_factory, length, rest, seed):
    path = str(tmp_path_factory.getbasetemp() / "body")
    body = np.random.default_rng(seed).bytes(length)
    with open(path, "wb") as file:
        file.write(body)
    files = RealFiles()
    handle = files.open(path)
    blocks = BlockChecksums.of(files, handle, length)
    files.close(handle)
    assert blocks.with_rest(rest) == google_crc32c.value(body + rest)
    again = BlockChecksums.from_text(blocks.to_text(), length)
    assert again is not None
    assert again.with_rest(rest) == google_crc32c.value(body + rest)
    assert BlockChecksums.from_text(blocks.to_text(), length + BLOCK_BYTES) is None


@pytest.fixture
def sealed(tmp_path):
    """A topic with one sealed segment, and the path of its file."""
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        topic = stem.create_topic("readings", schema="id BIGINT, text STRING", partitions=1)
        texts = [np.random.default_rng(row).bytes(30).hex() for row in range(ROWS)]
        topic.append(pa.table({"id": range(ROWS), "text": texts}))
        topic.seal()
        folder = tmp_path / "home" / "topics" / "readings" / "0"
        [path] = [str(folder / name) for name in os.listdir(folder) if name.endswith(".parquet")]
        _checked.clear()
        yield stem, topic, path
    _checked.clear()


def column_range(path: str, name: str) -> tuple[int, int]:
    group = pq.read_metadata(path).row_group(0)
    [chunk] = [group.column(at) for at in range(group.num_columns) if group.column(at).path_in_schema == name]
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return start, start + chunk.total_compressed_size


def flip(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def read(topic, columns) -> int:
    return int(topic.to_arrow(columns=columns).num_rows)


def test_two_columns_are_read_without_the_others(sealed):
    stem, topic, path = sealed
    text = column_range(path, "text")
    flip(path, sum(text) // 2)
    assert text[1] - text[0] > os.path.getsize(path) / 2, "the other column is most of the file"
    assert read(topic, ["id"]) == ROWS
    with pytest.raises(CorruptSegment):
        read(topic, ["text"])
    with pytest.raises(CorruptSegment):
        stem.query("SELECT sum(id) FROM readings")  # DuckDB checks nothing, so the whole file is checked for it


@pytest.mark.parametrize("place", ["page header", "page", "footer", "list of blocks", "length of the footer"])
def test_no_damage_to_what_is_read_goes_unseen(sealed, place):
    _, topic, path = sealed
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        content = file.read()
    start, end = column_range(path, "id")
    places = {
        "page header": [start + at for at in range(12)],
        "page": [(start + end) // 2, end - 1],
        "footer": [size - 9 - at for at in range(0, size - content.rindex(BLOCKS), 97)],
        "list of blocks": [content.rindex(BLOCKS) + len(BLOCKS) + at for at in range(1, 40, 3)],
        "length of the footer": [size - 8, size - 7, size - 1],
    }[place]
    for position in places:
        flip(path, position)
        _checked.clear()
        with pytest.raises(CorruptSegment):
            read(topic, ["id"])
        flip(path, position)
    _checked.clear()
    assert read(topic, ["id"]) == ROWS


def test_a_file_without_checksums_of_blocks_is_checked_as_a_whole(sealed, monkeypatch):
    _, topic, path = sealed
    flip(path, sum(column_range(path, "text")) // 2)
    monkeypatch.setattr("mainstem.log.embedded.read.sealed_check.BLOCKS", b"another.name")
    with pytest.raises(CorruptSegment):
        read(topic, ["id"])
