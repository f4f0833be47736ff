"""Masks: values replaced by a keyed hash, so that equal values stay equal and none can be read."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path

from mainstem.durable_files import RealFiles, replace_file

__all__ = ["mask_of"]


def mask_of(home: str, capture: str) -> Callable[[bytes], bytes]:
    """Replaces a value by a keyed hash. The secret is in the home, so equal values stay equal over restarts."""
    path = Path(home, "captures", capture, "mask_secret")
    secret: list[bytes] = []

    def mask(value: bytes) -> bytes:
        if not secret:
            if not path.exists():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                replace_file(RealFiles(), str(path), secrets.token_hex(32).encode())
            secret.append(path.read_bytes())
        return hmac.new(secret[0], value, hashlib.sha256).hexdigest()[:32].encode()

    return mask
