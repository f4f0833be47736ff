"""Translation of PostgreSQL's errors on a view."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import errors

from mainstem.errors import ViewNotFound
from mainstem.postgres.postgres_address import PostgresAddress
from mainstem.postgres.postgres_errors import translate_errors

__all__ = ["translate_view_errors"]


@contextmanager
def translate_view_errors(address: PostgresAddress, view: str) -> Iterator[None]:
    """Raises PostgreSQL's errors as our own; a missing table is a dropped version."""
    try:
        with translate_errors(address, f'view "{view}"'):
            yield
    except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
        raise ViewNotFound(
            f'this version of view "{view}" no longer exists in the database',
            detail=f"PostgreSQL says: {address.safe(error)}. The view, or this version of it, was dropped meanwhile.",
            hint="Retry; if the view was dropped, run the flow that writes it.",
            view=view,
        ) from error
