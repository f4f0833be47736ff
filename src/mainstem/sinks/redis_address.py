"""The address of a Redis: parsed, shown without its password, connected to with timeouts; and what Redis's errors mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import redis
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, parse_url
from redis.retry import Retry

from mainstem.errors import Conflict, DatabaseUnavailable, DiskFull, Invalid, MainstemError

__all__ = ["RedisAddress"]

# The address may override these.
_DEFAULTS: dict[str, Any] = {
    "socket_connect_timeout": 10.0,
    # Redis answers nothing while it moves the keys of a large store to its next version.
    "socket_timeout": 60.0,
    "socket_keepalive": True,
    "client_name": "mainstem",
}
# Keys and values are bytes. RESP 2 is spoken by every Redis, and by what others build in its place.
_FIXED: dict[str, Any] = {"decode_responses": False, "protocol": 2}
_OPTIONS = ("client_name", "db", "health_check_interval", "password", "socket_connect_timeout", "socket_keepalive",
            "socket_timeout", "username")  # fmt: skip
_SECRETS = ("password", "ssl_password")


@dataclass(frozen=True)
class RedisAddress:
    """An address that is safe to show. `options`, which open connections, are never in a message."""

    shown: str
    options: dict[str, Any] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Parses `redis://user@host:port/database`, with `rediss://` for TLS, or `unix:///path?db=0`.

        >>> RedisAddress.parse("redis://shop:geheim@cache.local/2").shown
        'redis://shop@cache.local:6379/2'
        """
        if not isinstance(url, str) or not url.isprintable():
            raise _refusal("It is not a text of printable characters.")
        if not url.startswith(("redis://", "rediss://", "unix://")):
            raise _refusal(f"It begins with {url.partition(':')[0][:12]!r}." if "://" in url else "It has no scheme.")
        try:
            parts = urlsplit(url)
            options = parse_url(url)
            named = parse_qs(parts.query, keep_blank_values=True)
        except ValueError:
            # Without its message, which may quote a part of the password.
            raise _refusal("It cannot be parsed.") from None
        _check(url, options, named)
        user = f"{options['username']}@" if options.get("username") else ""
        if parts.scheme == "unix":
            shown = f"unix://{user}{options.get('path', '')}?db={options.get('db', 0)}"
        else:
            host, port = options.get("host", "localhost"), options.get("port", 6379)
            shown = f"{parts.scheme}://{user}{host}:{port}/{options.get('db', 0)}"
        made = cls(shown, {**_DEFAULTS, **options, **_FIXED})
        made._pool_options()
        return made

    def connect(self) -> redis.Redis:
        """A client that opens connections as it needs them; a forked process opens its own."""
        connection_class, options = self._pool_options()
        # A command is sent again once, if its connection was closed in the meantime; never what is inside WATCH.
        pool = ConnectionPool(connection_class=connection_class, retry=Retry(NoBackoff(), 1), **options)
        return redis.Redis(connection_pool=pool)

    def _pool_options(self) -> tuple[type[Connection], dict[str, Any]]:
        options = dict(self.options)
        connection_class = options.pop("connection_class", Connection)
        if "path" in options:
            # Of TCP alone.
            options.pop("socket_keepalive")
        try:
            connection_class(**options)
        except (TypeError, ValueError, errors.RedisError):
            raise _refusal("One of its options is not valid.") from None
        return connection_class, options

    def safe(self, said: object) -> str:
        """A text on one line, without the password in case a library included it, and without the rows of a command."""
        found = " ".join(str(said).rpartition("caused error: ")[2].split()).rstrip(".")
        for name in _SECRETS:
            if secret := self.options.get(name):
                for form in (secret, quote(secret, safe=""), quote(secret)):
                    found = found.replace(form, "***")
        return found

    # What Redis's errors mean

    @contextmanager
    def translate_errors(self, title: str) -> Iterator[None]:
        """Raises Redis's errors as our own; `title` is what they concern, such as 'keys "shop:*"'."""
        try:
            yield
        except errors.RedisError as error:
            # As the cause only if it is safe to show.
            cause = error if all(str(self.options.get(name) or "\0") not in str(error) for name in _SECRETS) else None
            raise self._meaning(error, title) from cause

    def _meaning(self, error: errors.RedisError, title: str) -> MainstemError:
        if isinstance(error, errors.WatchError) and isinstance(error.__context__, errors.RedisError):
            # The client says this of any connection that ends inside WATCH.
            error = error.__context__
        said = self.safe(error)
        code = said.partition(" ")[0]
        refused = (errors.AuthenticationError, errors.AuthenticationWrongNumberOfArgsError, errors.AuthorizationError)
        if isinstance(error, refused):
            return Invalid(
                f'Redis refuses the user of "{self.shown}"',
                detail=f"Redis says: {said}.",
                hint="Check user and password: redis://user@host:6379/0. In a password, write / as %2F, @ as %40, "
                ": as %3A, ? as %3F, # as %23 and % as %25.",
            )
        if isinstance(error, errors.NoPermissionError):
            return Invalid(
                f"the Redis user lacks a permission for {title}",
                detail=f"Redis says: {said}. It is {self.shown}.",
                hint='Allow it the keys of the store and "mainstem.*": ACL SETUSER ... ~PREFIX* ~mainstem.* +@all -@admin',
            )
        if isinstance(error, (errors.MovedError, errors.AskError, errors.ClusterCrossSlotError)):
            return Invalid(
                f'"{self.shown}" is a Redis Cluster',
                detail=f"Redis says: {said}. A cluster has no transactions over several of its nodes.",
                hint="Give a Redis that is no cluster (with replicas, if it has to survive a machine).",
            )
        if isinstance(error, errors.OutOfMemoryError):
            return DiskFull(
                f"no memory left for {title}",
                detail=f"Redis says: {said}. Nothing of the batch was written. It is {self.shown}.",
                hint="Raise maxmemory, or remove keys; the batch is written again when the flow continues.",
                path=self.shown,
            )
        if isinstance(error, errors.ReadOnlyError):
            return self._unavailable(said, "cannot be written", "It is a replica: give the address of the primary.")
        if code in ("MISCONF", "NOREPLICAS"):
            return self._unavailable(said, "takes no writes now", "Check its disk, its log and its replicas.")
        if code == "WRONGTYPE":
            return Conflict(
                f"{title} have a value of another type",
                detail=f"Redis says: {said}. Another program has written it in {self.shown}.",
                hint="Give another prefix, or delete what the other program wrote.",
            )
        passing = (errors.ConnectionError, errors.TimeoutError, errors.ClusterDownError, errors.TryAgainError,
                   errors.WatchError, errors.ExecAbortError, errors.InvalidResponse)  # fmt: skip
        if isinstance(error, passing) or code in ("BUSY", "UNBLOCKED"):
            hint = "Check that it runs, and that this machine may connect to it."
            return self._unavailable(said or type(error).__name__, "cannot be reached", hint)
        return Invalid(
            f"Redis refuses a command for {title}",
            detail=f"Redis says: {said}. It is {self.shown}.",
            hint="Redis 4 or newer is needed, with all of its commands for keys, strings, hashes and transactions.",
        )

    def _unavailable(self, said: str, what: str, hint: str) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f'the Redis "{self.shown}" {what}',
            detail=f"Redis or its client says: {said}.",
            hint=f"{hint} Nothing is lost: a batch that was not committed is written again.",
            address=self.shown,
        )


def _check(url: str, options: dict[str, Any], named: dict[str, list[str]]) -> None:
    """The characters / @ : ? # and % of a password must be percent-encoded; otherwise it is parsed wrongly."""
    parts = urlsplit(url)
    if parts.fragment or "@" in parts.query or "@" in parts.path or parts.netloc.count("@") > 1:
        raise _refusal("A special character in it is not percent-encoded.")
    if any(not name.startswith("ssl_") and name not in _OPTIONS for name in named):
        raise _refusal(f"After the question mark it may have: {', '.join(_OPTIONS)}, and ssl_... options.")
    database = parts.path.removeprefix("/")
    if parts.scheme != "unix" and database and not (database.isascii() and database.isdigit()):
        raise _refusal("Its database is not a number.")
    for limit in ("socket_timeout", "socket_connect_timeout"):
        if limit in options and not 0 < options[limit] < float("inf"):
            raise _refusal(f"Its {limit} is not a positive number of seconds.")


def _refusal(facts: str) -> Invalid:
    return Invalid(
        "this is not a valid address of a Redis",
        detail=f"{facts} The address is not shown because it may contain a password.",
        hint="For example: redis://user@host:6379/0, or rediss:// with TLS. In a password, write / as %2F, @ as %40, "
        ": as %3A, ? as %3F, # as %23 and % as %25.",
    )
