"""The address of a PostgreSQL database: parsed, shown without its password, and completed with keepalive settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from psycopg import InterfaceError, OperationalError, errors

from mainstem.errors import DatabaseUnavailable, Invalid

__all__ = ["PostgresAddress", "is_lost", "may_pass", "rolled_back_by_server", "unreachable"]

# The address may override these.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": "10",
    # A dead server is detected within half a minute, instead of two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}


@dataclass(frozen=True)
class PostgresAddress:
    """An address that is safe to show. `parameters`, which opens connections, is never in a message."""

    shown: str
    parameters: dict[str, Any] = field(repr=False, compare=False)
    # As given, for other processes of the same program; equal addresses share their connections.
    url: str = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> PostgresAddress:
        """Parses `postgresql://user@host:port/database`, with all options of libpq.

        >>> PostgresAddress.parse("postgresql://shop:geheim@db.local/shop").shown
        'postgresql://shop@db.local:5432/shop'
        """
        if not url.startswith(("postgresql://", "postgres://")):
            raise _refusal(f"It begins with {url.partition(':')[0][:12]!r}." if "://" in url else "It has no scheme.")
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise Invalid(
                "PostgreSQL needs the package psycopg",
                detail=f"It cannot be imported: {error}.",
                hint='Install it: pip install "mainstem[postgres]"',
            ) from error
        try:
            parameters = conninfo_to_dict(url)
        except ProgrammingError:
            # Without its message, which quotes the address and possibly a part of the password.
            raise _refusal("libpq cannot read it.") from None
        _check(parameters)
        host, port = parameters.get("host") or "localhost", parameters.get("port") or "5432"
        user = f"{parameters['user']}@" if parameters.get("user") else ""
        shown = f"postgresql://{user}{host}:{port}/{parameters.get('dbname') or ''}"
        return cls(shown, {**_DEFAULTS, **parameters}, url)

    @property
    def without_password(self) -> str:
        """The address as it may be stored: passwords then come from ~/.pgpass or PGPASSWORD."""
        without = re.sub(r"^(\w+://[^:@/?]*):[^@]*@", r"\1@", self.url)
        return re.sub(r"([?&])(password|sslpassword)=[^&]*&?", r"\1", without).rstrip("?&")

    def safe(self, text: object) -> str:
        """A text on one line, without the password in case a library included it."""
        found = " ".join(str(text).split()).rstrip(".")
        for name in ("password", "sslpassword"):
            if secret := self.parameters.get(name):
                found = found.replace(str(secret), "***")
        return found


def _check(parameters: dict[str, Any]) -> None:
    """The characters / @ : ? # and % of a password must be percent-encoded; otherwise it is parsed wrongly."""
    for name in ("host", "port", "dbname", "user"):
        value = str(parameters.get(name) or "")
        strange = "@" in value or (name == "port" and not all(part.isdigit() for part in value.split(",") if part))
        if strange:
            raise _refusal(f"Its {name} is not valid.")


def _refusal(facts: str) -> Invalid:
    return Invalid(
        "this is not a valid address of a PostgreSQL database",
        detail=f"{facts} The address is not shown because it may contain a password.",
        hint="For example: postgresql://user@host:5432/database. In a password, write / as %2F, @ as %40, : as %3A, "
        "? as %3F, # as %23 and % as %25; better, keep it in ~/.pgpass or PGPASSWORD.",
    )


# What PostgreSQL's errors mean.


# The transaction was rolled back because of others: a retry may succeed.
_AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)


def rolled_back_by_server(error: BaseException) -> bool:
    """Whether the server rolled back the transaction in favour of others."""
    return isinstance(error, _AGAIN)


def is_lost(error: BaseException) -> bool:
    """Whether the connection ended, so that the outcome of a COMMIT is unknown."""
    gone = (errors.AdminShutdown, errors.CrashShutdown, errors.IdleInTransactionSessionTimeout, InterfaceError)
    return isinstance(error, gone) or (isinstance(error, OperationalError) and error.sqlstate is None)


# The server refuses for good, unless it is starting up or shutting down.
_SAID_NO = re.compile(r"FATAL:\s+(?!.*(?:starting up|shutting down|recovery mode|too many))")


def may_pass(error: BaseException) -> bool:
    """Whether an unavailable database may become available soon."""
    return isinstance(error, DatabaseUnavailable) and not _SAID_NO.search(error.detail)


# The login is rejected, or there is no such database; the client's own words are always English, the server's mostly.
_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|not permitted to log in|permission denied for database|"
    r"FATAL:\s+(?:role|database) \"[^\"]*\" does not exist"
)
_BATCHES = "Nothing is lost: a batch that was not committed is written again."


def unreachable(address: PostgresAddress, error: BaseException, safety: str = _BATCHES) -> DatabaseUnavailable:
    """The database is unavailable; the runner retries. `safety`: what becomes of the work."""
    said = address.safe(error)
    return DatabaseUnavailable(
        f'the database "{address.shown}" cannot be reached',
        detail=f"PostgreSQL's client says: {said}.",
        hint="Check that it runs, that this machine may connect to it, and the user's password (~/.pgpass, PGPASSWORD, or "
        f"the address). {safety}",
        address=address.shown,
        refused=_REFUSED.search(said) is not None,
    )
