"""Access tokens of a home: who may read it, or act on it, over the network. Only their hashes are kept.

    console/tokens.json     mode 0600: {"format": 1, "tokens": [{"id": "5f2a91c0", "scope": "read", "hash": "...", ...}]}

A token is `mst_<id>_<secret>`, the secret 256 random bits: a plain hash of it cannot be guessed. Replaced atomically and
synced, under a lock; a token that was revoked is refused at once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

from mainstem.clock import Clock, SystemClock, as_datetime
from mainstem.durable_files import REAL_FILES, decode_checked, encode_checked
from mainstem.errors import CorruptHome, Invalid, NewerFormat, NotFound, did_you_mean
from mainstem.file_locks import lock_folder

__all__ = ["AccessToken", "AccessTokens", "Scope"]

FORMAT = 1
PREFIX = "mst"
Scope = Literal["read", "act"]


@dataclass(frozen=True)
class AccessToken:
    """A token as it is kept; times in microseconds. `act` includes `read`."""

    id: str
    scope: Scope
    hash: str
    created_at: int
    expires_at: int

    @property
    def expires(self) -> datetime:
        return as_datetime(self.expires_at)

    @property
    def created(self) -> datetime:
        return as_datetime(self.created_at)


class AccessTokens:
    """The tokens of one home. Any process may use it. Thread-safe.

    >>> import tempfile
    >>> tokens = AccessTokens(tempfile.mkdtemp())
    >>> text = tokens.create("read", lasts_us=60_000_000)
    >>> tokens.find(text).scope, tokens.find(text + "x")
    ('read', None)
    """

    def __init__(self, home: str, clock: Clock | None = None) -> None:
        self._folder = f"{home}/console"
        self._path = f"{self._folder}/tokens.json"
        self._clock = clock or SystemClock()

    def all(self) -> list[AccessToken]:
        """Every token, oldest first, with those that are expired."""
        try:
            with open(self._path, "rb") as file:
                content = decode_checked(file.read(), since=1, known=FORMAT)
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise CorruptHome(
                f'"{self._path}" is damaged',
                detail=f"Its content is invalid: {error}.",
                hint="Delete it, and create the tokens again: mainstem token create",
                path=self._path,
            ) from error
        if (found := content.get("format", 1)) > FORMAT:
            raise NewerFormat.of("the list of tokens", found, FORMAT, where=f'"{self._path}"')
        return [AccessToken(**token) for token in content["tokens"]]

    def create(self, scope: Scope, *, lasts_us: int) -> str:
        """A new token; its text is known to nobody afterwards."""
        if lasts_us <= 0:
            raise Invalid(
                "a token must be valid for some time",
                detail="It would be expired when it is created.",
                hint='For example: --expires "30 days"',
            )
        made, secret, now = secrets.token_hex(4), secrets.token_urlsafe(32), self._clock.now()
        token = AccessToken(made, scope, _hash(secret), now, now + lasts_us)
        self._change(lambda tokens: [*tokens, token])
        return f"{PREFIX}_{made}_{secret}"

    def revoke(self, made: str) -> None:
        """Remove a token, by its id."""
        known = [token.id for token in self.all()]
        if made not in known:
            raise NotFound(
                f'token "{made[:60]}" does not exist',
                detail=f"The home has the tokens: {', '.join(known)}." if known else "The home has no tokens.",
                hint=did_you_mean(made, known) or "List them: mainstem token list",
            )
        self._change(lambda tokens: [token for token in tokens if token.id != made])

    def find(self, text: str) -> AccessToken | None:
        """The token with this text, if it is valid now."""
        prefix, _, rest = text.partition("_")
        made, _, secret = rest.partition("_")
        if prefix != PREFIX:
            return None
        now = self._clock.now()
        for token in self.all():
            if token.id == made and hmac.compare_digest(token.hash, _hash(secret)) and now < token.expires_at:
                return token
        return None

    def _change(self, edit: Callable[[list[AccessToken]], list[AccessToken]]) -> None:
        with lock_folder(self._folder):
            content = {"format": FORMAT, "tokens": [asdict(token) for token in edit(self.all())]}
            beside = f"{self._path}.new"
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as file:
                os.fchmod(handle, 0o600)
                file.write(encode_checked(content, indent=1))
                file.flush()
                os.fsync(handle)
            os.replace(beside, self._path)
            # A token that was revoked stays so, also after a power cut.
            REAL_FILES.sync_directory(self._folder)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
