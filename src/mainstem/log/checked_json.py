"""Checked JSON: the small files of a home, with a checksum of what they say.

    {"format": 2, "id": "5f..", ..., "crc32c": 305419896}

The checksum is one field of the JSON itself, so that an older Mainstem finds the format and says that it is too old. It is
taken over the values (names sorted, no blanks), so a file that was written by hand or with other blanks can be sound, and
bytes that are not what was written are noticed unless they say the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c

__all__ = ["decode_checked", "encode_checked"]

CHECKSUM = "crc32c"


def encode_checked(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A file's bytes: the content and its checksum.

    >>> encode_checked({"format": 2, "id": "5f"})
    b'{"format": 2, "id": "5f", "crc32c": 2922450713}\\n'
    """
    # As it is read again: names are text then, and sort as text.
    plain = json.loads(json.dumps(content))
    return json.dumps({**plain, CHECKSUM: _checksum(plain)}, indent=indent).encode() + b"\n"


def decode_checked(data: bytes, *, since: int = 0, known: int = 0, version: str = "format") -> dict[str, Any]:
    """The content, without its checksum; `ValueError` says what is wrong with it.

    Files with a `version` from `since` up to the one that is `known` have a checksum; older ones do not, and of a newer one
    that has none it is not known what it looks like.
    """
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    found = content.pop(CHECKSUM, None)
    if found is None:
        number = content.get(version, 0)
        if not isinstance(number, int) or since <= number <= known:
            raise ValueError("it has no checksum")
    elif found != _checksum(content):
        raise ValueError("its checksum does not fit")
    return content


def _checksum(content: dict[str, Any]) -> int:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return int(google_crc32c.value(text.encode()))
