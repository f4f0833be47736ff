"""Where the views of a home are stored: in the home itself, or in a PostgreSQL database.

In this order: the program's setting (`mainstem.open(home, views="postgresql://...")`), MAINSTEM_VIEWS in the environment,
`views.toml` in the home, the home itself.

    # views.toml
    url = "postgresql://shop@db.example:5432/shop"

A home remembers the first address that a program gave, without the password, so that commands find its views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mainstem.clock import Clock
from mainstem.errors import DatabaseUnavailable, Unavailable
from mainstem.log.backoff import call_with_retries
from mainstem.settings import environment_with, read_address, remember
from mainstem.views.sqlite.sqlite_backend import SqliteBackend
from mainstem.views.view_store import ViewBackend

__all__ = ["ADDRESS", "backend_at", "backend_of_home", "wait_for_views"]

T = TypeVar("T")

FILE = "views.toml"
# The option of a Spark source. Spark redacts the values of options whose names contain "url".
ADDRESS = "views_url"
_ABOUT = """# Where the views of this home are. Passwords are found in ~/.pgpass or PGPASSWORD; should one stand here, keep this file
# from others (chmod 600).
"""


def backend_of_home(home: str, address: str | None = None) -> ViewBackend:
    """Where the views of a home are stored; the first address that a program gives is stored in the home."""
    if not home:
        # A log without a home has no place for an address.
        return SqliteBackend(home)
    if address is None:
        return backend_at(home, environment_with("MAINSTEM_").get("views") or _read_address(home))
    backend = backend_at(home, address)
    _remember(home, address)
    return backend


def backend_at(home: str, address: str | None) -> ViewBackend:
    """The backend with this address; without one, the home itself."""
    if address is None:
        return SqliteBackend(home)
    from mainstem.views.postgres.postgres_backend import PostgresBackend

    return PostgresBackend(address)


def wait_for_views(ask: Callable[[], T], clock: Clock) -> T:
    """The result of `ask`, which needs the views; a database that may be about to start is waited for."""
    return call_with_retries(ask, worth_it=_may_pass, clock=clock)


def _may_pass(error: Unavailable) -> bool:
    if not isinstance(error, DatabaseUnavailable):
        return False
    from mainstem.postgres.postgres_address import may_pass  # the error came from its client library

    return may_pass(error)


def _read_address(home: str) -> str | None:
    return read_address(
        home, FILE, example="postgresql://user@host:5432/database", without="the views are in the home itself"
    )


def _remember(home: str, address: str) -> None:
    from mainstem.postgres.postgres_address import PostgresAddress

    remember(home, FILE, PostgresAddress.parse(address).without_password, about=_ABOUT)
