"""Sinks: what flows write, each batch once. The public names are those of stores, each resolved on first use.

>>> from mainstem.sinks import Fence
>>> Fence("home", "products", 1, 7, ("id",), "id BIGINT").batch
-1
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mainstem.errors import NotFound

if TYPE_CHECKING:
    # For type checkers and editors only.
    from mainstem.sinks.search_index import SearchIndex
    from mainstem.sinks.store import Store, StoreStatus
    from mainstem.sinks.store_backend import Fence, FenceMoved, Fences, StoreBackend, StoreChange, unavailable_when

__all__ = [
    "Fence",
    "FenceMoved",
    "Fences",
    "SearchIndex",
    "Store",
    "StoreBackend",
    "StoreChange",
    "StoreStatus",
    "unavailable_when",
]

_DEFINED_IN = {
    "Fence": "mainstem.sinks.store_backend",
    "FenceMoved": "mainstem.sinks.store_backend",
    "Fences": "mainstem.sinks.store_backend",
    "SearchIndex": "mainstem.sinks.search_index",
    "Store": "mainstem.sinks.store",
    "StoreBackend": "mainstem.sinks.store_backend",
    "StoreChange": "mainstem.sinks.store_backend",
    "StoreStatus": "mainstem.sinks.store",
    "unavailable_when": "mainstem.sinks.store_backend",
}


def __getattr__(name: str) -> object:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found: object = getattr(importlib.import_module(_DEFINED_IN[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "tantivy":
            raise
        raise NotFound(
            "the library of search indexes is not installed",
            detail=f"{error}.",
            hint='Install it: pip install "mainstem[search]".',
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
