"""A search index keeps the contract of a store; words are found, and are words and nothing else."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import signal
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import tantivy

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.crash_points import reach
from mainstem.errors import Conflict, Fenced, Invalid, LockHeld, NotFound, Unavailable
from mainstem.log.record import RECORD
from mainstem.sinks.search_index import SearchFolder, SearchIndex
from mainstem.sinks.search_snapshot import damaged_files, fence_document
from mainstem.testing.store_contract import StoreContract
from mainstem.testing.store_trial import ODD, StoreTrial, batch_of, changes, rows_after
from tests.sinks.arrow_file_writer import killed_at

pytestmark = pytest.mark.forks

SCHEMA = pa.schema(
    [("id", pa.int64()), ("title", pa.string()), ("tags", pa.list_(pa.string())), ("price", pa.float64()), ("record", RECORD)]
)  # fmt: skip


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: tantivy syncs about 16 files in each commit, and a killed process loses nothing that it has written."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


class TestSearchIndex(StoreContract):
    points: ClassVar[tuple[str, ...]] = (*StoreContract.points, "sink_rows_written", "store_switch_begun")

    @pytest.fixture(autouse=True)
    def _text(self, request: pytest.FixtureRequest) -> None:
        # These have other columns each time.
        without = ("odd_names_of_columns", "values_of_every_type")
        self.text = [] if any(part in request.node.name for part in without) else ["title"]

    def opens_with(self, folder: Path) -> tuple[str, dict[str, Any]]:
        return "mainstem.sinks.search_index:SearchFolder", {"path": str(index_of(folder)), "text": self.text}

    def save(self, folder: Path) -> Path | None:
        number = len(list(folder.glob("saved*")))
        return Path(shutil.copytree(index_of(folder), folder / f"saved{number}")) if index_of(folder).exists() else None

    def restore(self, folder: Path, saved: Path | None) -> None:
        shutil.rmtree(index_of(folder), ignore_errors=True)
        if saved is not None:
            shutil.copytree(saved, index_of(folder))

    def put_foreign(self, folder: Path) -> bool:
        index_of(folder).mkdir(parents=True)
        (index_of(folder) / "mine.txt").write_text("mine")
        return True


def index_of(folder: Path) -> Path:
    return folder / "home/search/tried"


def trial_in(folder: Path) -> StoreTrial:
    return StoreTrial(
        folder, "mainstem.sinks.search_index:SearchFolder", {"path": str(index_of(folder)), "text": ["title"]}
    )


# Searching


class Shop:
    """An index of products, written by a flow without Spark."""

    def __init__(self, folder: Path, text: tuple[str, ...] = ("title", "tags")) -> None:
        self.stem = mainstem.open(folder / "home", upkeep="manual")
        self.index = self.stem.search_index("products", key="id", text=text)
        self.writer = self.index.table_writer(FlowRun("products", 1), SCHEMA)
        self.batch = -1

    def write(self, *rows: tuple[Any, ...]) -> int:
        """Rows are (id, title, tags, price); with an id alone it is deleted. The number of rejected rows."""
        given = [(*row, "insert") if len(row) > 1 else (*row, None, None, None, "delete") for row in rows]
        self.batch += 1
        prepared = self.writer.prepare(changes(given, SCHEMA, first=self.batch * 1000))
        self.writer.commit(prepared, Batch(self.batch, FlowRun("products", 1), {"orders": {0: self.batch}}))
        return len(prepared.rejections)

    def found(self, words: str, **settings: int) -> list[int]:
        return [row["id"] for row in self.index.search(words, **settings)]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.stem.close()


def test_every_word_must_be_in_some_text_column(shop: Shop) -> None:
    shop.write((1, "Red Shoes", ["leather"], 9.5), (2, "red hat", None, None), (3, None, ["red", "shoes, old"], 1.0))
    assert sorted(shop.found("red shoes")) == [1, 3]
    assert shop.found("SHOES leather") == [1]
    assert shop.found("red shoes hat") == []
    (row,) = shop.index.search("leather")
    assert row.pop("score") > 0
    assert row == {"id": 1, "title": "Red Shoes", "tags": ["leather"], "price": 9.5}


def test_a_search_without_words_finds_nothing(shop: Shop) -> None:
    shop.write((1, "a", None, None))
    assert [shop.found(text) for text in ("", "  ", '()+-*"', "\ud800")] == [[], [], [], []]


def test_the_better_match_is_first(shop: Shop) -> None:
    shop.write(
        (1, "a red thing among many other things", None, None), (2, "red", None, None), (3, "red red", None, None)
    )
    scores = [row["score"] for row in shop.index.search("red")]
    assert shop.found("red") == [3, 2, 1]
    assert scores == sorted(scores, reverse=True)


def test_updates_and_deletes_are_seen_by_the_next_search(shop: Shop) -> None:
    shop.write((1, "red shoes", None, None), (2, "red hat", None, None))
    shop.write((1, "green shoes", None, None), (2,))
    assert shop.found("red") == []
    assert shop.found("shoes") == [1]


def test_unicode_is_found_in_every_form(shop: Shop) -> None:
    shop.write((1, "Größe Füße", None, None), (2, "Cafe\u0301 ＡＢＣ", ["日本語"], None), (3, "Ωμέγα", None, None))
    for words, expected in (
        ("grösse", []), ("GRÖßE", [1]), ("fu\u0308ße", [1]), ("café", [2]), ("abc", [2]), ("日本語", [2]), ("ΩΜΈΓΑ", [3]),
    ):  # fmt: skip
        assert shop.found(words) == expected, words


def test_equal_scores_are_sorted_by_key_whatever_was_merged(shop: Shop) -> None:
    ids = list(range(10, 70))
    random.Random(5).shuffle(ids)
    for start in range(0, len(ids), 6):
        shop.write(*((number, "red shoes", None, None) for number in ids[start : start + 6]))
    assert shop.found("red", limit=100) == sorted(ids)
    pages = [shop.found("red", limit=7, offset=offset) for offset in range(0, 70, 7)]
    assert [number for page in pages for number in page] == sorted(ids)
    shop.write((5, "red", None, None))
    assert shop.found("red", limit=3) == [5, 10, 11]
    assert shop.found("red", offset=61) == []


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": "3"}, {"offset": -1}, {"limit": 1 << 62}, {"limit": 5_000, "offset": 5_001}]
)
def test_limits_are_checked(shop: Shop, wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as raised:
        shop.index.search("red", **wrong)
    assert raised.value.detail
    assert raised.value.hint


def test_long_words_are_not_found_and_do_no_harm(shop: Shop) -> None:
    shop.write((1, "x" * 70_000 + " red", None, None))
    assert shop.found("red") == [1]
    assert shop.found("red " + "x" * 70_000) == []


def test_a_key_too_long_for_a_term_is_rejected_with_the_reason(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("title", pa.string()), ("record", RECORD)])
    trial = trial_in(tmp_path)
    writer = trial.begin(1, schema=schema)
    rows = changes([("x" * size, "red", "insert") for size in (10, 65_526, 65_527, 100_000)], schema)
    reasons = [rejection.reason for rejection in writer.prepare(rows).rejections]
    assert [reason.partition(";")[0] for reason in reasons] == [
        f'column "id" is in the key, and has {size + 2} bytes as JSON' for size in (65_527, 100_000)
    ]
    trial.write(writer, 0, rows)
    assert sorted(map(len, trial.rows())) == [10, 65_526]
    trial.write(writer, 1, changes([("x" * 65_526, None, "delete")], schema, 9))
    assert sorted(map(len, trial.rows())) == [10]
    trial.close()


# What it accepts


@pytest.mark.parametrize(
    ("text", "schema", "reason"),
    [
        (["titel"], SCHEMA, 'has the text column "titel", which the rows lack'),
        (["price"], SCHEMA, 'column "price" cannot be searched for words: it is DOUBLE'),
        (["title"], SCHEMA.append(pa.field("score", pa.int64())), 'cannot have a column "score"'),
    ],
)
def test_rows_that_do_not_fit_are_refused_at_once(
    tmp_path: Path, text: list[str], schema: pa.Schema, reason: str
) -> None:
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem:
        with pytest.raises(Invalid, match=re.escape(reason)) as raised:
            stem.search_index("products", key="id", text=text).accept(schema)
        assert raised.value.detail
        assert raised.value.hint
        assert not (tmp_path / "home/search").exists()


def test_an_index_that_exists_needs_neither_key_nor_text(shop: Shop) -> None:
    shop.write((1, "red shoes", None, None))
    again = shop.stem.search_index("products")
    assert (again.name, again.key) == ("search.products", ("id",))
    assert again.search("red")[0]["id"] == 1
    with pytest.raises(NotFound) as raised:
        shop.stem.search_index("product")
    assert "products" in raised.value.detail
    assert "Did you mean" in raised.value.hint
    with pytest.raises(Invalid, match="no text columns"):
        shop.stem.search_index("other", key="id")
    with pytest.raises(Invalid, match="no key"):
        shop.stem.search_index("other", text="title")
    with pytest.raises(Invalid):
        shop.stem.search_index("../other", key="id", text="title")


def test_other_text_columns_need_a_rebuild(shop: Shop) -> None:
    shop.write((1, "red shoes", ["leather"], None))
    other = shop.stem.search_index("products", key="id", text="title")
    with pytest.raises(Conflict, match="title, tags") as raised:
        other.table_writer(FlowRun("products", 2), SCHEMA)
    assert "mainstem store rebuild search.products" in raised.value.hint
    rebuilt = other.at_version(2)
    assert isinstance(rebuilt, SearchIndex)
    writer = rebuilt.table_writer(FlowRun("products", 2, 2), SCHEMA)
    rows = changes([(1, "red shoes", ["leather"], None, "insert")], SCHEMA)
    writer.commit(writer.prepare(rows), Batch(0, FlowRun("products", 2, 2), {"orders": {0: 9}}))
    assert shop.found("leather") == [1]
    assert writer.finish()
    assert shop.found("leather") == []
    assert shop.found("shoes") == [1]


# What lies there


def test_a_missing_or_damaged_index_is_empty_and_is_filled_again(tmp_path: Path) -> None:
    chance = random.Random(11)
    (tmp_path / "sound").mkdir()
    trial_in(tmp_path / "sound").go_on(1, 6)
    names = sorted(path.name for path in (index_of(tmp_path / "sound") / "v1").iterdir() if path.stat().st_size)
    for number in range(60):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "sound", folder)
        path = index_of(folder) / chance.choice(["live", *(f"v1/{name}" for name in names)])
        data = path.read_bytes()
        kind = chance.choice(["removed", "cut", "emptied", "changed"])
        if kind == "removed":
            path.unlink()
        else:
            place = chance.randrange(len(data))
            changed = data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
            path.write_bytes({"cut": data[:place], "emptied": b"", "changed": changed}[kind])
        trial = trial_in(folder)
        try:
            writer = trial.begin(2)
        except Unavailable:
            # What the fence did not show, a run does; the next one begins with an empty index.
            writer = trial.begin(3)
        if writer.committed_batch >= 0:
            assert trial.rows() == rows_after(6), f"{path.name} {kind}"
        for batch in range(writer.committed_batch + 1, 8):
            trial.write(writer, batch, batch_of(batch))
        assert trial.rows() == rows_after(7), f"{path.name} {kind}"
        trial.close()


def test_every_file_of_an_index_has_the_checksum_that_is_verified(tmp_path: Path) -> None:
    trial_in(tmp_path).go_on(1, 3)
    folder = index_of(tmp_path) / "v1"
    assert damaged_files(str(folder)) == []
    for path in [path for path in folder.iterdir() if re.fullmatch(r"[0-9a-f]{32}\..*", path.name)]:
        data = path.read_bytes()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        assert damaged_files(str(folder)) == [path.name]
        path.write_bytes(data)


def test_a_folder_with_other_files_is_a_conflict_and_left_alone(tmp_path: Path) -> None:
    index_of(tmp_path).mkdir(parents=True)
    (index_of(tmp_path) / "thesis.txt").write_text("mine")
    with pytest.raises(Conflict, match="not of a search index") as raised:
        trial_in(tmp_path).begin(1)
    assert "thesis.txt" in raised.value.detail
    assert [path.name for path in index_of(tmp_path).iterdir()] == ["thesis.txt"]


def test_what_a_search_has_opened_stays_readable_while_the_index_is_replaced(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)
    trial.go_on(1, 0)
    batches = trial.store.batches()
    first = next(batches)
    following = trial.begin(2, version=2)
    trial.write(following, 0, changes([(99, "new", "insert")]))
    assert following.finish()
    assert first.num_rows + sum(batch.num_rows for batch in batches) == len(rows_after(0))
    assert trial.rows() == {99: "new"}
    assert sorted(path.name for path in index_of(tmp_path).iterdir()) == [".lock", "live", "v2"]
    trial.close()


def test_what_a_killed_commit_left_does_not_stop_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    trial_in(tmp_path / "one").go_on(1, 3)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    trial_in(tmp_path / "other").begin(2)
    # As if that commit had ended before it replaced meta.json: tantivy gives the next one the same numbers.
    killed, following = (index_of(tmp_path / name) / "v1" for name in ("other", "one"))
    left = [path for path in killed.glob("*.del") if not (following / path.name).exists()]
    assert left
    for path in (*left, killed / ".managed.json"):
        shutil.copy(path, following / path.name)
    trial_in(tmp_path / "one").go_on(2, 5)
    assert trial_in(tmp_path / "one").rows() == rows_after(5)


# One writer


def test_a_stopped_writer_is_named_and_its_death_frees_the_index(tmp_path: Path) -> None:
    in_child(lambda: trial_in(tmp_path).go_on(1, 0))
    if (pid := os.fork()) == 0:
        try:
            with trial_in(tmp_path).backend._locked():
                os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    trial = trial_in(tmp_path)
    try:
        with pytest.raises(LockHeld) as raised:
            trial.begin(2)
        assert raised.value.pid == pid
        # Readers need no lock.
        assert trial.rows() == rows_after(0)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    trial.go_on(2, 1)
    assert trial.rows() == rows_after(1)
    trial.close()


def test_a_run_that_is_idle_in_another_process_is_fenced(tmp_path: Path) -> None:
    ready, go = os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        status = 1
        try:
            trial = trial_in(tmp_path)
            writer = trial.begin(1)
            trial.write(writer, 0, batch_of(0))
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            try:
                trial.write(writer, 1, batch_of(5))
            except Fenced:
                status = 0
        finally:
            os._exit(status)
    os.read(ready[0], 1)
    trial_in(tmp_path).go_on(2, 1)
    os.write(go[1], b"x")
    assert os.waitpid(pid, 0)[1] == 0
    assert trial_in(tmp_path).rows() == rows_after(1)
    for end in (*ready, *go):
        os.close(end)


# S6: who writes is killed at any point

SEED = 4_106
BATCHES = 4
POINTS = ["before_sink_commit", "sink_rows_written", "sink_committed"]


class FenceAfterRows(SearchFolder):
    """A broken build: the fence is in a commit of its own."""

    def _write(self, path, fence, change=None):
        writer = tantivy.Index.open(path).writer(15_000_000, 1)
        if change is not None:
            self._write_rows(writer, change)
        writer.commit()
        reach("before_sink_commit")
        writer.delete_documents_by_term("key", "fence")
        writer.add_document(fence_document(fence, self._text))
        writer.commit()
        writer.wait_merging_threads()


def killed_within(seconds: float, work: Callable[[], None]) -> None:
    """Do it in a process of its own, which the system kills after this time, wherever it is."""
    if (pid := os.fork()) == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def in_child(work: Callable[[], Any]) -> Any:
    """What it returns, from a process of its own. A thread of tantivy may hold a lock of the index, which a process that is
    forked then would inherit and wait for: so the test itself opens no index that its children write."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writer, pickle.dumps(work()))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        found = answer.read()
    os.waitpid(pid, 0)
    return pickle.loads(found)


def kill_writers(folder: Path, kills: int, kind: type[SearchFolder] = SearchFolder) -> tuple[int, int, list[str]]:
    chance, compared, violations, before = random.Random(SEED), 0, [], -1

    def opened() -> StoreTrial:
        trial = trial_in(folder)
        trial.store.backend = trial.backend = kind(str(index_of(folder)), ["title"])
        return trial

    def look() -> tuple[int, dict[int, str], dict[int, str]]:
        trial = opened()
        if trial.backend.fences().live is None:
            return -1, {}, {}
        assert isinstance(trial.backend, SearchFolder)
        searched = trial.backend.search("batch", limit=1000).to_pylist()
        return trial.store.reached(1), trial.rows(), {row["id"]: row["title"] for row in searched}

    # What is imported here, no child has to import: so it is killed while it writes. In another folder, see `in_child`.
    trial_in(folder / "warm").go_on(1, 0)
    for kill in range(kills):
        if violations and kind is not SearchFolder:
            break  # One is enough.

        def work(kill: int = kill, last: int = before + BATCHES) -> None:
            opened().go_on(kill + 1, last)

        if kill % 2:
            point = f"{chance.choice(POINTS)}:{chance.randint(1, BATCHES)}"
            assert killed_at(point, work), f"{point} was not reached"
        else:
            seconds = chance.uniform(0.002, 0.15)
            point = f"{seconds:.3f} seconds"
            killed_within(seconds, work)
        reached, rows, searched = in_child(look)
        expected = rows_after(reached) if reached >= 0 else {}
        for reader, found in (("read", rows), ("search", searched)):
            compared += len(expected)
            if found != expected or reached < before:
                violations.append(f"kill {kill} at {point}: {reader} shows {len(found)} rows, not {len(expected)}")
        before = reached
    return kills, compared, violations


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [50, pytest.param(200, marks=pytest.mark.long)])
def test_an_index_written_by_killed_runs_has_whole_batches(
    tmp_path: Path, kills: int, fault_report: Callable[..., None]
) -> None:
    tried, compared, violations = kill_writers(tmp_path, kills)
    fault_report("S6 search index", points=tried, compared=compared, violations=violations, seed=SEED)


def test_a_fence_in_a_second_commit_is_caught(tmp_path: Path) -> None:
    assert kill_writers(tmp_path, 40, FenceAfterRows)[2]


# G11: words are words

PIECES = [
    *ODD, "key:fence", "fence", "row:*", "bucket:[0 TO 300]", "text_0:red", "title:red", "+red", "-red", "NOT red", "red AND", "OR shoes",
    '"red shoes"', '"red', "red*", "r?d", "red~2", "red^9", "/r.*/", "IN [red shoes]", "*:*", "\\", "key:\\[1\\]", "[1]", "{red TO zoo}",
    ">=red", "red || shoes", "&&", "!", "(((", ")))", "\0", "' OR 1=1 --", "<script>", "${x}", "red", "shoes", "hat", "Red",
]  # fmt: skip
TEXTS = [
    "red shoes",
    "red hat",
    "green shoes",
    "title red",
    "text_0 row bucket key",
    "not and or in to",
    "1 fence 9",
    "",
]


def payloads(count: int) -> Iterator[str]:
    chance = random.Random(4_111)
    for _ in range(count):
        parts = chance.choices(PIECES, k=chance.randint(1, 4))
        yield chance.choice([" ", "", ":", "\t"]).join(parts)


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).lower()))


def try_payloads(folder: Path, count: int, search: Callable[[SearchFolder, str], list[int]]) -> tuple[int, list[str]]:
    """Each payload against a search that looks through every text."""
    trial = trial_in(folder)
    trial.write(trial.begin(1), 0, changes([(number, title, "insert") for number, title in enumerate(TEXTS)]))
    assert isinstance(trial.backend, SearchFolder)
    compared, violations = 0, []
    for payload in payloads(count):
        words = words_of(payload)
        expected = [number for number, title in enumerate(TEXTS) if words and words <= words_of(title)]
        try:
            found: object = search(trial.backend, payload)
        except Exception as error:  # noqa: BLE001 - any one is a finding
            found = error
        compared += 1
        if found != expected:
            violations.append(f"{payload!r}: {found!r}, not {expected}")
    trial.close()
    return compared, violations


def own_search(backend: SearchFolder, payload: str) -> list[int]:
    rows = backend.search(payload, limit=100).to_pylist()
    assert all(row.keys() == {"id", "title", "score"} for row in rows)
    return sorted(row["id"] for row in rows)


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.long)])
def test_query_syntax_in_a_search_has_no_effect(tmp_path: Path, count: int, fault_report: Callable[..., None]) -> None:
    compared, violations = try_payloads(tmp_path, count, own_search)
    fault_report("G11 search payloads", points=count, compared=compared, violations=violations, seed=4_111)


def test_a_search_that_parses_the_text_is_caught(tmp_path: Path) -> None:
    def parsed(backend: SearchFolder, payload: str) -> list[int]:
        snapshot = backend._open("live")
        assert snapshot is not None
        query, _ = tantivy.Index.open(snapshot.path).parse_query_lenient(
            payload, ["text_0"], conjunction_by_default=True
        )
        hits = snapshot._searcher.search(query, 100).hits
        return sorted(json.loads(snapshot._stored(address, "row"))["id"] for _, address in hits)

    _, violations = try_payloads(tmp_path, 500, parsed)
    assert any("KeyError" in violation for violation in violations), "no payload has found the fence"


@pytest.mark.long
class TestKilledSearchIndex(TestSearchIndex):
    kills = 20
