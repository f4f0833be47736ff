"""The address of a PostgreSQL database: read, shown without its password, and completed with what a long life needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from mainstem.errors import Invalid

__all__ = ["PostgresAddress"]

# Whoever names another one in the address gets it.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": "10",
    # A server that is gone without a word is noticed within half a minute, instead of two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}


@dataclass(frozen=True)
class PostgresAddress:
    """An address that can be shown to anyone. What opens a connection is in `parameters`, which no message has."""

    shown: str
    parameters: dict[str, Any] = field(repr=False, compare=False)
    # As it was given, for other processes of the same program; equal addresses share their connections.
    url: str = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> PostgresAddress:
        """Reads `postgresql://user@host:port/database`, with whatever options libpq knows.

        >>> PostgresAddress.parse("postgresql://shop:geheim@db.local/shop").shown
        'postgresql://shop@db.local:5432/shop'
        """
        if not url.startswith(("postgresql://", "postgres://")):
            raise _refused(f"It begins with {url.partition(':')[0][:12]!r}." if "://" in url else "It has no scheme.")
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise Invalid(
                "views in PostgreSQL need the package psycopg",
                detail=f"It cannot be imported: {error}.",
                hint='Install it: pip install "mainstem[postgres]"',
            ) from error
        try:
            parameters = conninfo_to_dict(url)
        except ProgrammingError:
            # Not its words: they quote the address, and with it what may be a part of the password.
            raise _refused("libpq cannot read it.") from None
        _check(parameters)
        host, port = parameters.get("host") or "localhost", parameters.get("port") or "5432"
        user = f"{parameters['user']}@" if parameters.get("user") else ""
        shown = f"postgresql://{user}{host}:{port}/{parameters.get('dbname') or ''}"
        return cls(shown, {**_DEFAULTS, **parameters}, url)

    @property
    def without_password(self) -> str:
        """The address as it may be written down: passwords come from ~/.pgpass or PGPASSWORD then."""
        without = re.sub(r"^(\w+://[^:@/?]*):[^@]*@", r"\1@", self.url)
        return re.sub(r"([?&])(password|sslpassword)=[^&]*&?", r"\1", without).rstrip("?&")

    def safe(self, text: object) -> str:
        """A text on one line, without the password, should a library have put it there."""
        found = " ".join(str(text).split()).rstrip(".")
        for name in ("password", "sslpassword"):
            if secret := self.parameters.get(name):
                found = found.replace(str(secret), "***")
        return found


def _check(parameters: dict[str, Any]) -> None:
    """A password with / @ : ? # or % in it must be written with %; else a part of it is taken for something else."""
    for name in ("host", "port", "dbname", "user"):
        value = str(parameters.get(name) or "")
        strange = "@" in value or (name == "port" and not all(part.isdigit() for part in value.split(",") if part))
        if strange:
            raise _refused(f"What would be its {name} is not one.")


def _refused(facts: str) -> Invalid:
    return Invalid(
        "this is no address that views can be kept at",
        detail=f"{facts} The address itself is not shown, for it may hold a password.",
        hint="For example: postgresql://user@host:5432/database. In a password, write / as %2F, @ as %40, : as %3A, "
        "? as %3F, # as %23 and % as %25; better, keep it in ~/.pgpass or PGPASSWORD.",
    )
