"""Who is at the other end of a connection on this machine: the user id of the client's socket, from /proc/net."""

from __future__ import annotations

import ipaddress
import os
import pwd
import struct
from functools import cached_property

__all__ = ["ConnectionOwner", "user_name"]

Address = tuple[str, int]

# Only of an established connection does the kernel know the owner: a closed one has the user id 0.
ESTABLISHED = "01"
LOCAL, REMOTE, STATE, OWNER = 1, 2, 3, 7


class ConnectionOwner:
    """The owner of the client's end of one connection; looked up once."""

    def __init__(self, client: Address | None, server: Address | None, tables: str = "/proc/net") -> None:
        self._client = client
        self._server = server
        self._tables = tables

    @cached_property
    def uid(self) -> int | None:
        """Its user id; None if the client is not on this machine, or is gone."""
        if self._client is None or self._server is None:
            return None
        if not (_is_loopback(self._client[0]) and _is_loopback(self._server[0])):
            return None
        for table, wide in (("tcp", False), ("tcp6", True)):
            found = self._look(f"{self._tables}/{table}", wide=wide)
            if found is not None:
                return found
        return None

    def _look(self, path: str, *, wide: bool) -> int | None:
        assert self._client is not None
        assert self._server is not None
        client, server = (_kernel_text(address, wide=wide) for address in (self._client, self._server))
        if client is None or server is None:
            return None
        try:
            with open(path, encoding="ascii") as lines:
                next(lines, None)
                for line in lines:
                    fields = line.split()
                    if fields[LOCAL] == client and fields[REMOTE] == server and fields[STATE] == ESTABLISHED:
                        return int(fields[OWNER])
        except OSError:
            return None
        return None

    @property
    def is_this_user(self) -> bool:
        """Whether it is the user who runs this process."""
        return self.uid == os.getuid()


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return address is not None and (
        address.is_loopback or bool(address.ipv4_mapped and address.ipv4_mapped.is_loopback)
    )


def _address(host: str) -> ipaddress.IPv6Address | None:
    """The address as IPv6; an IPv4 one is mapped."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return ipaddress.IPv6Address(f"::ffff:{found}") if isinstance(found, ipaddress.IPv4Address) else found


def _kernel_text(address: Address, *, wide: bool) -> str | None:
    """An address as the kernel writes it: words of four bytes, each in the machine's order.

    >>> _kernel_text(("127.0.0.1", 8765), wide=False), _kernel_text(("::1", 80), wide=True)
    ('0100007F:223D', '00000000000000000000000001000000:0050')
    """
    host, port = address
    found = _address(host)
    if found is None:
        return None
    packed = found.packed
    if not wide:
        if found.ipv4_mapped is None:
            return None
        packed = found.ipv4_mapped.packed
    words = struct.unpack(f">{len(packed) // 4}I", packed)
    return "".join(f"{struct.unpack('=I', struct.pack('>I', word))[0]:08X}" for word in words) + f":{port:04X}"


def user_name(uid: int) -> str:
    """The name of a user; the id if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
