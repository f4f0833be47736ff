"""Names of topics, groups, queues and producers, and names in SQL.

A name is also the name of a directory, a part of a topic's name, and a word in a command line. So it is made of ASCII
letters, digits, `_`, `.` and `-` alone: no path can be hidden in it, no two names look alike, and every file system and
shell takes it as it is.
"""

from __future__ import annotations

import re
import unicodedata

from mainstem.errors import InvalidName

__all__ = ["NAME_BYTES_MAX", "check_name", "check_own_name", "quote_name"]

# File systems allow 255 bytes; the rest is left for what is put behind a name.
NAME_BYTES_MAX = 200

_OWN_PREFIX = "mainstem."
_ALLOWED = "A name is made of the letters A-Z and a-z, digits, and the characters _ . - only."
_EXAMPLE = 'For example: "orders", "orders_per_store", "eu.payments-2".'
_REFUSED_CHARACTER = re.compile(r"[^A-Za-z0-9_.-]")
# Windows takes these for devices, whatever follows the first dot. A home may be copied there.
_DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))])


def check_name(name: str, kind: str = "topic") -> str:
    """`name` itself if users may give it to a `kind` of thing; else `InvalidName`.

    >>> check_name("orders")
    'orders'
    >>> try:
    ...     check_name("../orders")
    ... except InvalidName as error:
    ...     print(error.summary)
    topic name "../orders" holds "/"
    """
    check_own_name(name, kind)
    if name.lower().startswith(_OWN_PREFIX):
        raise _refusal(name, kind, f'begins with "{_OWN_PREFIX}"', "Such names are reserved for Mainstem's own topics.")
    return name


def check_own_name(name: str, kind: str = "topic") -> str:
    """As `check_name`, but names that begin with "mainstem." pass: for what Mainstem itself makes.

    >>> check_own_name("mainstem.metrics")
    'mainstem.metrics'
    """
    if not isinstance(name, str):
        what = f"{kind} name {_escape_name(repr(name))} is {type(name).__name__}, not text"
        raise InvalidName(what, detail=_ALLOWED, hint=_EXAMPLE, name=name)
    if not name:
        raise _refusal(name, kind, "is empty", _ALLOWED)
    # First, because everything below would look at each character of it.
    if (length := len(name.encode("utf-8", "surrogatepass"))) > NAME_BYTES_MAX:
        raise _refusal(name, kind, f"is {length} bytes long", f"The longest name allowed has {NAME_BYTES_MAX} bytes.")
    if found := _REFUSED_CHARACTER.search(name):
        raise _refusal(name, kind, f"holds {_character(found[0])}", _ALLOWED)
    if name[0] in ".-":
        hides = "It would be a hidden file." if name[0] == "." else "It would be taken for an option of a command."
        raise _refusal(name, kind, f'begins with "{name[0]}"', hides)
    if name[-1] == ".":
        raise _refusal(name, kind, 'ends with "."', "Some file systems drop it, so that two names become the same.")
    if ".." in name:
        raise _refusal(name, kind, 'holds ".."', "In a path that means the directory above.")
    if (device := name.partition(".")[0]).lower() in _DEVICES:
        raise _refusal(name, kind, f'is the device "{device}" to Windows', "A home could not be copied there.")
    return name


def _refusal(name: str, kind: str, complaint: str, detail: str) -> InvalidName:
    likely = _likely(name)
    hint = f'Perhaps "{likely}".' if likely else _EXAMPLE
    return InvalidName(f'{kind} name "{_escape_name(name)}" {complaint}', detail=detail, hint=hint, name=name)


def _escape_name(name: str) -> str:
    """`name` so that it can do no harm on a terminal: control characters escaped, cut to a line."""
    visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name[:60])
    return visible if len(name) <= 60 else f"{visible}..."


def _character(character: str) -> str:
    if character == " ":
        return "a space"
    code = f"U+{ord(character):04X}"
    title = unicodedata.name(character, "")
    if character.isascii() and character.isprintable():
        return f'"{character}"'
    return f'"{character}" ({code} {title})' if title and character.isprintable() else f"the character {code}"


def _likely(name: str) -> str:
    """The nearest name that would be allowed; empty if there is none worth proposing."""
    letters = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    if len(letters) > NAME_BYTES_MAX or not letters.isascii() or not letters.isprintable():
        return ""
    plain = re.sub(r"\.\.+", ".", _REFUSED_CHARACTER.sub("_", letters)).strip("._-")
    reserved = plain.lower().startswith(_OWN_PREFIX) or plain.partition(".")[0].lower() in _DEVICES
    return "" if reserved or len(plain) < len(name) / 2 else plain


def quote_name(name: str) -> str:
    """A name quoted for SQL.

    >>> quote_name("unit price")
    '"unit price"'
    """
    return '"' + name.replace('"', '""') + '"'
