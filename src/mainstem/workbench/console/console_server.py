"""The server of the console: uvicorn on one socket, in this process, until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

from mainstem.errors import Unavailable
from mainstem.stem import Mainstem
from mainstem.workbench.console.console_app import console_app
from mainstem.workbench.console.console_protocol import ConsoleProtocol
from mainstem.workbench.console.stream_feed import StreamHub
from mainstem.workbench.console.watched_home import WatchedHome

__all__ = ["ConsoleSettings", "serve_console"]

PORT = 8765


@dataclass(frozen=True)
class ConsoleSettings:
    """Where a console listens."""

    host: str = "127.0.0.1"
    port: int = PORT


def serve_console(stem: Mainstem, settings: ConsoleSettings, tell: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `tell` is called with the address as soon as it answers."""
    listener = _listen(settings)
    hub = StreamHub(WatchedHome(stem))
    config = uvicorn.Config(
        console_app(hub), http=ConsoleProtocol, ws="none", lifespan="off", log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    host, port = listener.getsockname()[:2]
    tell(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
    with listener:
        _Server(config, hub).run(sockets=[listener])


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
        raise Unavailable(
            f"the console cannot listen on {settings.host}:{settings.port}: {getattr(error, 'strerror', None) or error}",
            detail="Most likely another program, or another console, has that port.",
            hint="Give another one, or 0 for any that is free: --port 0",
        ) from error
    listener.listen(128)
    return listener
