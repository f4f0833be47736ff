"""Where the views of a home are kept: in the home itself, or in a PostgreSQL database.

In this order: what the program says (`mainstem.open(home, views="postgresql://...")`), MAINSTEM_VIEWS in the environment,
`views.toml` in the home, the home itself.

    # views.toml
    url = "postgresql://shop@db.example:5432/shop"

A home remembers the first address that a program gave, without the password, so that commands find its views.
"""

from __future__ import annotations

from mainstem.settings import environment_with, remember, remembered
from mainstem.views.sqlite.sqlite_store import SqlitePlace
from mainstem.views.view_store import ViewPlace

__all__ = ["ADDRESS", "place_at", "place_of_home"]

FILE = "views.toml"
# The option by which a source of Spark is told. Spark shows no values of options whose names hold "url".
ADDRESS = "views_url"
_ABOUT = """# Where the views of this home are. Passwords are found in ~/.pgpass or PGPASSWORD; should one stand here, keep this file
# from others (chmod 600).
"""


def place_of_home(home: str, address: str | None = None) -> ViewPlace:
    """Where the views of a home are; the first address that a program gives is remembered."""
    if not home:
        # A log alone: nothing says where it would be looked up.
        return SqlitePlace(home)
    if address is None:
        return place_at(home, environment_with("MAINSTEM_").get("views") or _remembered(home))
    place = place_at(home, address)
    _remember(home, address)
    return place


def place_at(home: str, address: str | None) -> ViewPlace:
    """The place with this address; without one, in the home itself."""
    if address is None:
        return SqlitePlace(home)
    from mainstem.views.postgres.postgres_store import PostgresPlace

    return PostgresPlace(address)


def _remembered(home: str) -> str | None:
    return remembered(
        home, FILE, example="postgresql://user@host:5432/database", without="the views are in the home itself"
    )


def _remember(home: str, address: str) -> None:
    from mainstem.views.postgres.postgres_address import PostgresAddress

    remember(home, FILE, PostgresAddress.parse(address).without_password, about=_ABOUT)
