"""Made-up schemas, and values for them."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as kinds
from hypothesis import strategies as st

from mainstem.log.rows import column_types

SCALARS = st.sampled_from(list(column_types.SCALARS.values()))
DECIMALS = st.integers(1, 38).flatmap(lambda digits: st.builds(pa.decimal128, st.just(digits), st.integers(0, digits)))
WORDS = st.sampled_from(["order", "for", "show", "not", "date", "comment", "struct", "a b", "x`y", "1st", "größe", "-"])
LETTERS = st.characters(exclude_categories=["Cc", "Zl", "Zp", "Cs"])
INNER_NAMES = WORDS | st.text(LETTERS, min_size=1, max_size=8)
NAMES = INNER_NAMES.filter(lambda name: not name.startswith("_") and name.casefold() != "record")
COMMENTS = st.just("") | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def fields(names: st.SearchStrategy[str], types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    field = st.builds(
        lambda name, data_type, nullable, comment: pa.field(
            name, data_type, nullable=nullable, metadata={"comment": comment} if comment else None
        ),
        names,
        types,
        st.booleans(),
        COMMENTS,
    )
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda field: field.name.casefold())


TYPES = st.recursive(
    SCALARS | DECIMALS,
    lambda inner: (
        inner.map(lambda data_type: pa.list_(pa.field("element", data_type)))
        | st.builds(pa.map_, SCALARS, inner)
        | fields(INNER_NAMES, inner).map(pa.struct)
    ),
    max_leaves=6,
)
SCHEMAS = fields(NAMES, TYPES).map(pa.schema)

_BOUNDS = {width: ((-1 << (width - 1)), (1 << (width - 1)) - 1) for width in (8, 16, 32, 64)}


def values(data_type: pa.DataType) -> st.SearchStrategy[object]:
    """Python values that a column of this type takes; nulls wherever one may stand."""
    if kinds.is_struct(data_type):
        return st.fixed_dictionaries({field.name: field_values(field) for field in data_type})
    if kinds.is_map(data_type):
        keys = values(data_type.key_type).filter(lambda key: key == key)
        pairs = st.tuples(keys, st.none() | values(data_type.item_type))
        return st.lists(pairs, max_size=2, unique_by=lambda pair: pair[0])
    if kinds.is_list(data_type):
        return st.lists(st.none() | values(data_type.value_type), max_size=3)
    if kinds.is_integer(data_type):
        return st.integers(*_BOUNDS[data_type.bit_width])
    if kinds.is_floating(data_type):
        return st.floats(width=data_type.bit_width, allow_nan=False)
    if kinds.is_decimal(data_type):
        largest = 10**data_type.precision - 1
        # Not scaleb: that rounds to the 28 digits of Python's default context.
        return st.integers(-largest, largest).map(lambda number: Decimal(f"{number}E-{data_type.scale}"))
    if kinds.is_timestamp(data_type):
        return st.datetimes(timezones=st.just(dt.UTC) if data_type.tz else st.none())
    return {
        pa.bool_(): st.booleans(),
        pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        pa.binary(): st.binary(max_size=6),
        pa.date32(): st.dates(),
        pa.time64("us"): st.times(),
    }[data_type]


def field_values(field: pa.Field) -> st.SearchStrategy[object]:
    return st.none() | values(field.type) if field.nullable else values(field.type)


def rows_of(schema: pa.Schema) -> st.SearchStrategy[list[dict[str, object]]]:
    return st.lists(st.fixed_dictionaries({field.name: field_values(field) for field in schema}), max_size=4)
