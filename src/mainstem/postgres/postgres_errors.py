"""Translation of PostgreSQL's errors, all in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import Error, OperationalError, errors

from mainstem.errors import Conflict, DiskFull, Invalid, LockHeld, Unavailable
from mainstem.postgres.postgres_address import PostgresAddress, is_lost, unreachable

__all__ = ["translate_errors"]

# The server is a replica, before or after a failover.
_ELSEWHERE = (errors.ReadOnlySqlTransaction,)
_REFUSED = (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.ProgramLimitExceeded)
_AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)


@contextmanager
def translate_errors(address: PostgresAddress, title: str) -> Iterator[None]:
    """Raises PostgreSQL's errors as our own; `title` is what they concern, such as 'view "revenue"'."""
    try:
        yield
    except errors.LockNotAvailable as error:
        raise LockHeld(
            f"{title} is locked by another session of the database",
            detail=f"PostgreSQL says: {address.safe(error)}.",
            hint="Find that session (SELECT * FROM pg_stat_activity), and let it finish or end it. Nothing is lost: what was "
            "not committed is written again.",
            path=address.shown,
        ) from error
    except (errors.DiskFull, errors.OutOfMemory) as error:
        raise DiskFull(
            f"no space left for {title}",
            detail=f'PostgreSQL says "{address.safe(error)}". Nothing of the batch was written.',
            hint="Free space on the database's disk; the batch is written again when the flow continues.",
            path=address.shown,
        ) from error
    except errors.DependentObjectsStillExist as error:
        raise Conflict(
            f"another object of the database depends on {title}",
            detail=f"PostgreSQL says: {address.safe(error)}. {error.diag.message_detail or ''}".strip(),
            hint="Drop that object first, and create it again afterwards.",
        ) from error
    except errors.DuplicateTable as error:
        raise Conflict(
            f"the database already has another object with the name of {title}",
            detail=f"PostgreSQL says: {address.safe(error)}.",
            hint="Give it another name, or use a schema of its own: "
            "postgresql://host/database?options=-csearch_path%3Dshop",
        ) from error
    except _REFUSED as error:
        raise Invalid(
            f"the database user lacks a privilege for {title}",
            detail=f"PostgreSQL says: {address.safe(error)}.",
            hint="The user needs CREATE on the database and on the schema: "
            "GRANT CREATE ON DATABASE ... TO ...; GRANT CREATE, USAGE ON SCHEMA ... TO ...",
        ) from error
    except (*_AGAIN, errors.QueryCanceled) as error:
        raise Unavailable(
            f"the database rolled back an operation on {title}",
            detail=f"PostgreSQL says: {address.safe(error)}.",
            hint="Check who else locks its tables (SELECT * FROM pg_locks), and whether the server sets a statement_timeout. "
            "Nothing is lost: a batch that was not committed is written again.",
        ) from error
    except Error as error:
        if is_lost(error) or isinstance(error, (OperationalError, *_ELSEWHERE)):
            raise unreachable(address, error) from error
        raise
