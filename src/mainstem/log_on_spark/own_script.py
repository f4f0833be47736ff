"""A small script of this user's own, in the directory for temporary files: what Spark is told to start."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from mainstem.errors import Unavailable

__all__ = ["own_script"]


def own_script(path: str, text: str) -> Path:
    """The script, made or made anew if it is not there with this text; nobody else can have written it."""
    home = Path(tempfile.gettempdir()) / f"mainstem-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    about = home.stat()
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o022:
        raise Unavailable(
            f'"{home}" can be written by somebody else',
            detail="What Spark starts would lie in it.",
            hint="Remove it, or name another place with TMPDIR.",
        )
    script = home / path
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = script.with_name(f"{script.name}.{os.getpid()}")
        beside.write_text(text)
        beside.chmod(stat.S_IRWXU)
        beside.replace(script)
    return script
