"""How two versions of a view differ, for a page: the counts, and some rows of each kind."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from mainstem.views.view import View
from mainstem.workbench.console.row_cells import column_facts
from mainstem.workbench.console.view_keys import one_row

__all__ = ["version_difference"]


def version_difference(view: View, before: int, after: int, limit: int, skip: int) -> dict[str, Any]:
    """Up to `limit` rows of each kind after the first `skip`; a changed row has both sides. `next` is the `skip` of the next
    answer, None if none follows."""
    found = view.difference(before, after, limit=limit, skip=skip)
    with view.snapshot(before) as old, view.snapshot(after) as new:
        schemas = {"before": old.schema, "after": new.schema}
    most = max(found.changed, found.added, found.removed)
    return {
        "view": view.name,
        "key": list(view.key),
        "before": before,
        "after": after,
        "columns": column_facts(pa.unify_schemas(list(schemas.values()), promote_options="permissive")),
        "counts": {name: getattr(found, name) for name in ("same", "changed", "added", "removed")},
        "changed": [
            {"before": one_row(was, schemas["before"])[0], "after": one_row(became, schemas["after"])[0]}
            for was, became in found.changed_rows
        ],
        "added": [one_row(row, schemas["after"])[0] for row in found.added_rows],
        "removed": [one_row(row, schemas["before"])[0] for row in found.removed_rows],
        "next": skip + limit if skip + limit < most else None,
    }
