"""The server of the console: uvicorn on one socket, in this process, until it is interrupted."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn

from mainstem.errors import Invalid, Unavailable
from mainstem.stem import Mainstem
from mainstem.workbench.access_tokens import AccessTokens
from mainstem.workbench.console.console_access import AccessRules
from mainstem.workbench.console.console_actions import ACTIONS
from mainstem.workbench.console.console_app import console_app
from mainstem.workbench.console.console_protocol import ConsoleProtocol
from mainstem.workbench.console.guided_walk import Walk
from mainstem.workbench.console.stream_feed import StreamHub
from mainstem.workbench.console.watched_home import WatchedHome

__all__ = ["ConsoleSettings", "serve_console"]

PORT = 8765
CONNECTIONS_MAX = 1_000


@dataclass(frozen=True)
class ConsoleSettings:
    """Where a console listens, and who may come. `names`: further names by which it is reached."""

    host: str = "127.0.0.1"
    port: int = PORT
    names: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    behind_proxy: bool = False
    actions: frozenset[str] = frozenset()
    walk: Walk = field(default_factory=Walk)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def rules(self, port: int) -> AccessRules:
        """What the gate checks, with the port that it has."""
        own, given = {"127.0.0.1", "localhost", "::1", self.host.lower()}, {name.lower() for name in self.names}
        return AccessRules(
            frozenset(own | given), port, frozenset(given), any_address=not self.is_local, same_user=self.is_local and not self.behind_proxy,
            secure=self.tls_cert is not None or self.behind_proxy,
        )  # fmt: skip

    def check(self, tokens: AccessTokens) -> None:
        """Raise if it would be open to others, or if nobody could come in."""
        if unknown := sorted(self.actions - set(ACTIONS)):
            raise Invalid(
                f'"{unknown[0]}" is no action of the console',
                detail=f"There are: {', '.join(ACTIONS)}.",
                hint=f"For example: --actions {','.join(ACTIONS[:3])}",
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Invalid(
                "TLS needs a certificate and its key",
                detail="One of --tls-cert and --tls-key is missing.",
                hint="Give both, as files in PEM.",
            )
        if not self.is_local and self.tls_cert is None and not self.behind_proxy:
            raise Invalid(
                f"the console may not be reached on {self.host} without TLS",
                detail="Tokens and rows would be readable on the network.",
                hint="Give --tls-cert and --tls-key; or, if a proxy in front of it has TLS, --behind-proxy.",
            )
        if not (self.is_local and not self.behind_proxy) and not tokens.all():
            raise Invalid(
                "the home has no token, so nobody could use the console",
                detail="Over the network every request needs one.",
                hint="Create one: mainstem token create --scope read",
            )


def serve_console(stem: Mainstem, settings: ConsoleSettings, tell: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `tell` is called with the address as soon as it answers."""
    tokens = AccessTokens(stem.home, stem.log.clock)
    settings.check(tokens)
    listener = _listen(settings)
    host, port = listener.getsockname()[:2]
    hub = StreamHub(WatchedHome(stem))
    config = uvicorn.Config(
        console_app(hub, settings.rules(port), tokens, settings.actions, settings.walk), http=ConsoleProtocol, ws="none", lifespan="off",
        log_level="warning", access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=1,
        limit_concurrency=CONNECTIONS_MAX, ssl_certfile=settings.tls_cert, ssl_keyfile=settings.tls_key,
    )  # fmt: skip
    with listener:
        with _tls_errors(settings):
            config.load()
        scheme = "http" if settings.tls_cert is None else "https"
        hub.home.warm()
        tell(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/")
        _Server(config, hub).run(sockets=[listener])


@contextmanager
def _tls_errors(settings: ConsoleSettings) -> Iterator[None]:
    try:
        yield
    except (ssl.SSLError, FileNotFoundError) as error:
        raise Invalid(
            f"the certificate cannot be used: {error}",
            detail=f"It is read from {settings.tls_cert!r}, its key from {settings.tls_key!r}.",
            hint="Give files in PEM, the certificate with those that signed it.",
        ) from error


class _Server(uvicorn.Server):
    """Ends the streams before it waits for requests."""

    def __init__(self, config: uvicorn.Config, hub: StreamHub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        await super().shutdown(sockets)


def _listen(settings: ConsoleSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        listener.close()
        elsewhere = getattr(error, "errno", None) == errno.EADDRNOTAVAIL
        raise Unavailable(
            f"the console cannot listen on {settings.host}:{settings.port}: {getattr(error, 'strerror', None) or error}",
            detail="The address is not one of this machine's."
            if elsewhere
            else "Most likely another program, or another console, has that port.",
            hint="Give one of its addresses, or 0.0.0.0 for all: --host 0.0.0.0"
            if elsewhere
            else "Give another one, or 0 for any that is free: --port 0",
        ) from error
    listener.listen(128)
    return listener
