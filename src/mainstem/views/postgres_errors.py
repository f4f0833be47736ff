"""PostgreSQL's errors in our own words: the only place that has both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import Error, InterfaceError, OperationalError, errors

from mainstem.errors import Conflict, DatabaseUnavailable, DiskFull, Invalid, LockHeld, Unavailable, ViewNotFound
from mainstem.views.postgres_address import PostgresAddress

__all__ = ["is_lost", "may_pass", "rolled_back_by_server", "translated", "unreachable"]

# Rolled back whole, through no fault of the one who asked: the same again may well succeed.
_AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)
_NO_SUCH = (errors.UndefinedTable, errors.InvalidSchemaName)
# A replica, before or after a failover.
_ELSEWHERE = (errors.ReadOnlySqlTransaction,)
_REFUSED = (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.ProgramLimitExceeded)


def rolled_back_by_server(error: BaseException) -> bool:
    """Whether the server undid the transaction so that others could go on."""
    return isinstance(error, _AGAIN)


def is_lost(error: BaseException) -> bool:
    """Whether the connection ended, and with it all knowledge of what became of a COMMIT on its way."""
    gone = (errors.AdminShutdown, errors.CrashShutdown, errors.IdleInTransactionSessionTimeout, InterfaceError)
    return isinstance(error, gone) or (isinstance(error, OperationalError) and error.sqlstate is None)


# A server that says no has its reasons; one that comes up or goes down says that.
_SAID_NO = re.compile(r"FATAL:\s+(?!.*(?:starting up|shutting down|recovery mode|too many))")


def may_pass(error: BaseException) -> bool:
    """Whether a database that could not be had may be there a little later."""
    return isinstance(error, DatabaseUnavailable) and not _SAID_NO.search(error.detail)


def unreachable(address: PostgresAddress, error: BaseException) -> DatabaseUnavailable:
    """The database cannot be had now; the runner tries again by itself."""
    return DatabaseUnavailable(
        f'the database "{address.shown}" cannot be reached',
        detail=f"PostgreSQL's client says: {address.safe(error)}.",
        hint="Check that it runs, that this machine may connect to it, and the user's password (~/.pgpass, PGPASSWORD, or "
        "the address). Nothing is lost: a batch that is not in is written again.",
        address=address.shown,
    )


@contextmanager
def translated(address: PostgresAddress, view: str) -> Iterator[None]:
    """Turns what PostgreSQL says inside into our own errors."""
    try:
        yield
    except _NO_SUCH as error:
        raise ViewNotFound(
            f'view "{view}" has no such version in the database any more',
            detail=f"PostgreSQL says: {address.safe(error)}. The view, or this version of it, was dropped meanwhile.",
            hint="Ask again; if it was dropped, run the flow that makes it.",
            view=view,
        ) from error
    except errors.LockNotAvailable as error:
        raise LockHeld(
            f'view "{view}" is held by another session of the database',
            detail=f"PostgreSQL says: {address.safe(error)}.",
            hint="Find who holds it (SELECT * FROM pg_stat_activity), and let it go on or end it. Nothing is lost: what was "
            "not committed is written again.",
            path=address.shown,
        ) from error
    except (errors.DiskFull, errors.OutOfMemory) as error:
        raise DiskFull(
            f'no space left for view "{view}"',
            detail=f'PostgreSQL says "{address.safe(error)}". Nothing of the batch was written.',
            hint="Free space on the database's disk; the batch is written again when the flow goes on.",
            path=address.shown,
        ) from error
    except errors.DependentObjectsStillExist as error:
        raise Conflict(
            f'something of the database depends on view "{view}"',
            detail=f"PostgreSQL says: {address.safe(error)}. {error.diag.message_detail or ''}".strip(),
            hint="Drop what depends on it first, and make it again afterwards.",
        ) from error
    except errors.DuplicateTable as error:
        raise Conflict(
            f'the database has something else of the name "{view}"',
            detail=f"PostgreSQL says: {address.safe(error)}.",
            hint="Give the view another name, or its home a schema of its own: "
            "postgresql://host/database?options=-csearch_path%3Dshop",
        ) from error
    except _REFUSED as error:
        raise Invalid(
            f'the database does not allow it for view "{view}"',
            detail=f"PostgreSQL says: {address.safe(error)}.",
            hint="The user needs CREATE on the database and on the schema that its views are in: "
            "GRANT CREATE ON DATABASE ... TO ...; GRANT CREATE, USAGE ON SCHEMA ... TO ...",
        ) from error
    except (*_AGAIN, errors.QueryCanceled) as error:
        raise Unavailable(
            f'the database undid what was asked of view "{view}"',
            detail=f"PostgreSQL says: {address.safe(error)}.",
            hint="See who else locks its tables (SELECT * FROM pg_locks), and whether the server sets a statement_timeout. "
            "Nothing is lost: a batch that is not in is written again.",
        ) from error
    except Error as error:
        if is_lost(error) or isinstance(error, (OperationalError, *_ELSEWHERE)):
            raise unreachable(address, error) from error
        raise
