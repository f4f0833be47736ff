"""Snapshot: one commit of a search index (tantivy): how rows and fence lie in it as documents, and how they are found.

    document    key             bucket      row                                 text_0, text_1, ...
    a row       [7,"shoes"]     0 to 255    {"id":7,...}                        its text columns, as words
    the fence   fence                       {"text":["title"],"fence":"..."}

The key is one term: a JSON array of the key columns. The row is stored and not indexed. The words of a search are looked
up as terms of text columns only, so no text can find the fence or ask for a key.
"""

from __future__ import annotations

import json
import os
import re
import struct
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
import tantivy
from tantivy import Occur, Query

from mainstem.errors import MainstemError, Unavailable
from mainstem.log.rows.nested_json import to_json
from mainstem.sinks.store_backend import Fence
from mainstem.sinks.store_texts import key_texts

__all__ = [
    "FENCE_KEY",
    "HITS_MAX",
    "Hit",
    "Snapshot",
    "damaged_files",
    "fence_document",
    "index_schema",
    "row_documents",
    "translate_errors",
]

# Not the form of a row's key.
FENCE_KEY = "fence"
# A search reads this many hits at most, and so many more with the same score to bring them into one order.
HITS_MAX = 10_000
# All rows are read bucket by bucket, so that memory does not grow with the index.
BUCKETS = 256
FOOTER_MAGIC = 1337
# Splits and lowers as the index does, but keeps words of 40 bytes or more, which the index leaves out: they are not found.
_WORDS = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.lowercase()).build()


# Documents


def index_schema(texts: int) -> tantivy.Schema:
    """The fields of an index with this number of text columns."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("key", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_integer_field("bucket", indexed=True)
    builder.add_bytes_field("row", stored=True)
    for number in range(texts):
        # Without positions, which only phrases need.
        builder.add_text_field(f"text_{number}", index_option="freq")
    return builder.build()


def row_documents(rows: pa.Table, key: Sequence[str], text: Sequence[str]) -> Iterator[tuple[str, tantivy.Document]]:
    """The term and the document of each row."""
    batch = rows.combine_chunks().to_batches()[0]
    lines = to_json(pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))).cast(pa.binary()).to_pylist()
    texts = [_texts(batch.column(name)) for name in text]
    fields = [f"text_{number}" for number in range(len(texts))]
    for term, line, *words in zip(key_texts(rows, key), lines, *texts, strict=True):
        document = tantivy.Document()
        document.add_text("key", term)
        document.add_integer("bucket", zlib.crc32(term.encode()) % BUCKETS)
        document.add_bytes("row", line)
        for field, value in zip(fields, words, strict=True):
            if isinstance(value, str):
                document.add_text(field, value)
            elif value is not None:
                for element in value:
                    document.add_text(field, element)
        yield term, document


def _texts(column: pa.Array) -> list[Any]:
    """The text of each row, or several, with one form for what looks alike."""
    if kinds.is_string(column.type):
        plain = pc.all(pc.string_is_ascii(column)).as_py() in (True, None)
        return list((column if plain else pc.utf8_normalize(column, "NFKC")).to_pylist())
    return [
        None if value is None else [_normalize(part) for part in value if part is not None]
        for value in column.to_pylist()
    ]


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def fence_document(fence: Fence, text: Sequence[str]) -> tantivy.Document:
    """The document of the fence, which also names the text columns."""
    document = tantivy.Document()
    document.add_text("key", FENCE_KEY)
    document.add_bytes("row", json.dumps({"text": text, "fence": fence.to_json()}).encode())
    return document


# Reading


class Hit(NamedTuple):
    """A row that was found."""

    score: float
    term: str
    row: str


class Snapshot:
    """One commit, which stays readable as long as this object lives. Thread-safe."""

    def __init__(self, path: str, index: tantivy.Index) -> None:
        self.path = path
        self._schema = index.schema
        self._searcher = index.searcher()
        found = self.row(FENCE_KEY)
        if found is None:
            raise ValueError("it has no fence")
        facts = json.loads(found)
        self.fence = Fence.from_json(facts["fence"])
        self.text: tuple[str, ...] = tuple(facts["text"])

    @classmethod
    def open(cls, path: str) -> Snapshot | None:
        """The last commit of an index; None if it is incomplete, damaged or has no fence."""
        try:
            with translate_errors(path):
                return cls(path, tantivy.Index.open(path))
        except (Unavailable, KeyError, TypeError):
            return None

    def row(self, term: str) -> str | None:
        """The row with this key, as JSON."""
        hits = self._searcher.search(self._term("key", term, "basic"), 1, count=False).hits
        return self._stored(hits[0][1], "row").decode() if hits else None

    def rows(self) -> Iterator[str]:
        """All rows, as JSON."""
        for bucket in range(BUCKETS):
            if most := self._searcher.doc_freq("bucket", bucket):
                for _, address in self._searcher.search(self._term("bucket", bucket, "basic"), most, count=False).hits:
                    yield self._stored(address, "row").decode()

    def search(self, text: str, offset: int, end: int) -> list[Hit]:
        """The rows with every word of a text, in any text column: those from `offset` to `end`, best first.

        Tantivy orders equal scores by where rows lie, which changes when it merges files. So all hits with the score of
        the first or the last one are read, and sorted by key.
        """
        query = self._query(list(dict.fromkeys(_WORDS.analyze(_normalize(text)))))
        if query is None:
            return []
        asked = end + 100
        while True:
            hits = self._searcher.search(query, asked, count=False).hits
            if len(hits) < asked or asked >= end + HITS_MAX or hits[-1][0] < hits[end - 1][0]:
                break
            asked = end + HITS_MAX
        if offset >= len(hits):
            return []
        highest, lowest = hits[offset][0], hits[min(end, len(hits)) - 1][0]
        before = sum(score > highest for score, _ in hits)
        found = [
            Hit(float(score), self._stored(address, "key"), self._stored(address, "row").decode())
            for score, address in hits
            if lowest <= score <= highest
        ]
        found.sort(key=lambda hit: (-hit.score, hit.term))
        return found[offset - before : end - before]

    def _query(self, words: list[str]) -> Query | None:
        """None if nothing has all words."""
        fields = [f"text_{number}" for number in range(len(self.text))]
        parts = []
        for word in words:
            known = [field for field in fields if self._searcher.doc_freq(field, word)]
            if not known:
                return None
            parts.append(Query.boolean_query([(Occur.Should, self._term(field, word, "freq")) for field in known]))
        return Query.boolean_query([(Occur.Must, part) for part in parts]) if parts else None

    def _term(self, field: str, value: str | int, option: str) -> Query:
        return Query.term_query(self._schema, field, value, index_option=option)

    def _stored(self, address: tantivy.DocAddress, field: str) -> Any:
        return self._searcher.doc(address).get_first(field)


# Damage


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Errors of tantivy become ours; at some damaged files it panics."""
    try:
        yield
    except BaseException as error:
        of_tantivy = isinstance(error, ValueError) and not isinstance(error, MainstemError)
        if not of_tantivy and type(error).__name__ != "PanicException":
            raise
        raise Unavailable(
            f'the search index in "{path}" cannot be used',
            detail=f"Tantivy says: {error}.",
            hint="Check the disk. If files are damaged, delete the directory: its flow fills the index again from the log.",
        ) from error


def damaged_files(path: str) -> list[str]:
    """The files of an index that are not as they were written. Tantivy itself does not verify its checksums:

    content | {"version":{...},"crc":...} | its length u32 | 1337 u32

    A killed writer leaves files that no commit names; those are not looked at.
    """
    found = []
    for name in filter(_committed_names(path).fullmatch, os.listdir(path)):
        with open(f"{path}/{name}", "rb") as file, suppress(ValueError, KeyError, TypeError, OSError, struct.error):
            file.seek(-8, os.SEEK_END)
            length, magic = struct.unpack("<II", file.read(8))
            left = file.seek(-8 - length, os.SEEK_END)
            expected = json.loads(file.read(length))["crc"]
            file.seek(0)
            checksum = 0
            while left and (piece := file.read(min(left, 1 << 20))):
                checksum, left = zlib.crc32(piece, checksum), left - len(piece)
            if (checksum, magic) == (expected, FOOTER_MAGIC):
                continue
        found.append(name)
    return found


def _committed_names(path: str) -> re.Pattern[str]:
    """The names of the files of the last commit: the parts of each segment, and of its lists of deletes the last one."""
    with open(f"{path}/meta.json", "rb") as file:
        segments = json.load(file)["segments"]
    names = [
        f"{segment['segment_id'].replace('-', '')}\\.([a-z]+|{(segment['deletes'] or {}).get('opstamp', '')}\\.del)"
        for segment in segments
    ]
    return re.compile("|".join(names))
