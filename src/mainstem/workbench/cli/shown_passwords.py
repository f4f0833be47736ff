"""Passwords in texts that are shown: blanked in messages; a line of a program that may have one is not quoted."""

from __future__ import annotations

import re

__all__ = ["blank_passwords", "may_have_password"]

# `user:secret@` of an address, up to the last @: a password may have any character. Not `host:port`.
_IN_ADDRESS = re.compile(r"(://[^\s:@/]*:)(?!\d{1,5}(?:[^\w@]|$)).*@")
_NAMED = re.compile(r"\b(\w*password\s*=\s*)(\"[^\"]*\"|'[^']*'|[^\s&\"']+)", re.IGNORECASE)
# In a program an address may be put together from parts, on several lines.
_HINTS = re.compile(r"://[^\s:@/]*:(?!\d{1,5}(?:[^\w@]|$))|passw|passphrase|\bpwd|secret|api_?key", re.IGNORECASE)


def blank_passwords(text: str) -> str:
    """A text without the passwords of addresses and settings.

    >>> blank_passwords("at postgresql://shop:a b@c@db/shop?sslpassword=geheim&x=1")
    'at postgresql://shop:***@db/shop?sslpassword=***&x=1'
    >>> blank_passwords("host=db password=geheim"), blank_passwords("http://db:8080/a@b")
    ('host=db password=***', 'http://db:8080/a@b')
    """
    return _NAMED.sub(r"\1***", _IN_ADDRESS.sub(r"\1***@", text))


def may_have_password(line: str) -> bool:
    """Whether a line of a program may have a password, or a part of one.

    >>> may_have_password('postgres("postgresql://shop:" + word)'), may_have_password('connect(password=word)')
    (True, True)
    >>> may_have_password('postgres("postgresql://shop@db:5432/shop")')
    False
    """
    return _HINTS.search(line) is not None
