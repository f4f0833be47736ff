"""Where the views of a home are stored: in the home itself, or in a PostgreSQL database.

In this order: the program's setting (`mainstem.open(home, views="postgresql://...")`), MAINSTEM_VIEWS in the environment,
`views.toml` in the home, the home itself.

    # views.toml
    url = "postgresql://shop@db.example:5432/shop"

A home remembers the first address that a program gave, without the password, so that commands find its views.
"""

from __future__ import annotations

from mainstem.settings import environment_with, remember, remembered
from mainstem.views.sqlite.sqlite_backend import SqliteBackend
from mainstem.views.view_store import ViewBackend

__all__ = ["ADDRESS", "backend_at", "backend_of_home"]

FILE = "views.toml"
# The option by which a source of Spark is told. Spark shows no values of options whose names hold "url".
ADDRESS = "views_url"
_ABOUT = """# Where the views of this home are. Passwords are found in ~/.pgpass or PGPASSWORD; should one stand here, keep this file
# from others (chmod 600).
"""


def backend_of_home(home: str, address: str | None = None) -> ViewBackend:
    """Where the views of a home are; the first address that a program gives is remembered."""
    if not home:
        # A log alone: nothing says where it would be looked up.
        return SqliteBackend(home)
    if address is None:
        return backend_at(home, environment_with("MAINSTEM_").get("views") or _remembered(home))
    backend = backend_at(home, address)
    _remember(home, address)
    return backend


def backend_at(home: str, address: str | None) -> ViewBackend:
    """The backend with this address; without one, the home itself."""
    if address is None:
        return SqliteBackend(home)
    from mainstem.views.postgres.postgres_backend import PostgresBackend

    return PostgresBackend(address)


def _remembered(home: str) -> str | None:
    return remembered(
        home, FILE, example="postgresql://user@host:5432/database", without="the views are in the home itself"
    )


def _remember(home: str, address: str) -> None:
    from mainstem.views.postgres.postgres_address import PostgresAddress

    remember(home, FILE, PostgresAddress.parse(address).without_password, about=_ABOUT)
