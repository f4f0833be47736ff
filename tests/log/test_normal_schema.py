"""Every Arrow type has one form in a topic, or is refused with the list of what has."""

import pyarrow as pa
import pytest

from mainstem.errors import Invalid
from mainstem.log.rows.normal_schema import ALLOWED_TYPES, DEPTH_MAX, normal_schema, normal_type, nullable_schema


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.run_end_encoded(pa.int32(), pa.int16()), pa.int16()),
        (pa.json_(), pa.string()),
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.date64(), pa.date32()),
        (pa.time32("s"), pa.time64("us")),
        (pa.time64("ns"), pa.time64("us")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.timestamp("ns", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        (pa.decimal256(38, 38), pa.decimal128(38, 38)),
        (pa.large_list(pa.uint8()), pa.list_(pa.int16())),
        (pa.list_(pa.int32(), 3), pa.list_(pa.int32())),
        (pa.list_view(pa.int32()), pa.list_(pa.int32())),
        (pa.large_list_view(pa.int32()), pa.list_(pa.int32())),
        (pa.list_(pa.field("item", pa.int32(), nullable=False)), pa.list_(pa.int32())),
        (pa.map_(pa.large_string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
        (pa.struct({"a": pa.float16()}), pa.struct({"a": pa.float32()})),
    ],
    ids=str,
)
def test_a_type_becomes_the_one_that_is_kept(given: pa.DataType, kept: pa.DataType) -> None:
    assert normal_type(given) == kept
    assert normal_type(kept) == kept


@pytest.mark.parametrize(
    "given",
    [
        pa.uint64(),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.null(),
        pa.uuid(),
        pa.decimal256(39, 2),
        pa.decimal128(5, -2),
        pa.decimal128(3, 5),
        pa.struct([]),
        pa.dense_union([pa.field("a", pa.int32())]),
        pa.list_(pa.duration("s")),
    ],
    ids=str,
)
def test_a_type_without_a_place_is_refused_with_the_list(given: pa.DataType) -> None:
    with pytest.raises(Invalid, match="which a topic cannot store") as caught:
        normal_schema(pa.schema({"wait": given}))
    assert ALLOWED_TYPES in caught.value.detail
    assert caught.value.hint


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ([], "at least one column"),
        ([""], "has no name"),
        (["_hidden"], 'column "_hidden" begins with an underscore'),
        (["Record"], 'column "Record" has a reserved name'),
        (["id", "record.offset"], 'column "record.offset" has a reserved name'),
        (["a", "A"], 'column "A" appears twice'),
        (["straße", "STRASSE"], "appears twice"),
        (["a\nb"], "control character"),
        (["a\x7f"], "control character"),
        (["a\u2028b"], "control character"),
    ],
)
def test_a_name_that_cannot_be_told_apart_or_shown_is_refused(names: list[str], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint) as caught:
        normal_schema(pa.schema([pa.field(name, pa.int32()) for name in names]))
    assert caught.value.detail
    assert caught.value.hint


def test_inside_a_struct_an_underscore_and_record_are_free_but_twins_are_not() -> None:
    inside = pa.struct({"_a": pa.int32(), "record": pa.int32()})
    assert normal_schema(pa.schema({"s": inside})).field("s").type == inside
    with pytest.raises(Invalid, match='column "A" in "s" appears twice'):
        normal_schema(pa.schema({"s": pa.struct({"a": pa.int32(), "A": pa.int32()})}))


def test_too_many_levels_are_refused() -> None:
    deep = pa.int32()
    for _ in range(DEPTH_MAX):
        deep = pa.list_(deep)
    with pytest.raises(Invalid, match="nested too deeply"):
        normal_schema(pa.schema({"deep": deep}))


def test_of_the_metadata_only_the_comment_stays() -> None:
    field = pa.field("a", pa.int32(), metadata={"comment": "of the day", "PARQUET:field_id": "7"})
    kept = normal_schema(pa.schema([field], metadata={"pandas": "{}"}))
    assert kept.metadata is None
    assert kept.field("a").metadata == {b"comment": b"of the day"}


def test_a_nullable_schema_is_nullable_all_the_way_down() -> None:
    inside = pa.struct([pa.field("zip", pa.string(), nullable=False)])
    required = pa.schema([pa.field("a", pa.list_(pa.field("element", inside)), nullable=False)])
    assert nullable_schema(required) == pa.schema({"a": pa.list_(pa.struct({"zip": pa.string()}))})
