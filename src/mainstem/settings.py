"""Settings from the environment and from a home's files: the one module that reads environment variables."""

from __future__ import annotations

import json
import os
import tomllib
import uuid
from contextlib import suppress

from mainstem.errors import Invalid

__all__ = ["environment_with", "read_address", "remember"]


# An address stored in a home: a file with one line of TOML, which users may write and edit.


def read_address(home: str, file: str, *, example: str, without: str) -> str | None:
    """The address stored in a file of a home; None without the file. `without`: what applies then, for the error."""
    path = os.path.join(home, file)
    try:
        with open(path, "rb") as opened:
            found = tomllib.load(opened)
    except FileNotFoundError:
        return None
    except (ValueError, OSError):
        # Without its message, which may quote the line with a password.
        found = {}
    if set(found) != {"url"} or not isinstance(found["url"], str):
        raise Invalid(
            f'"{path}" cannot be read',
            detail=f'It should be TOML with one line: url = "{example}".',
            hint=f"Correct it, or remove it: then {without}.",
        )
    return found["url"]


def remember(home: str, file: str, address: str, *, about: str) -> None:
    """Store an address atomically, unless one is stored already."""
    path = os.path.join(home, file)
    beside = f"{path}.{uuid.uuid4().hex}"
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(f"{about}url = {json.dumps(address)}\n")
        with suppress(FileExistsError):
            os.link(beside, path)
    finally:
        os.remove(beside)


def environment_with(prefix: str) -> dict[str, str]:
    """The variables whose names begin with `prefix`, by the rest of their names in lower case.

    >>> environment_with("MAINSTEM_NOTHING_IS_CALLED_THIS_")
    {}
    """
    return {name.removeprefix(prefix).lower(): value for name, value in os.environ.items() if name.startswith(prefix)}
