"""What the operating system says about a partition's files, as errors of ours."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from mainstem.errors import DiskFull, Invalid, MainstemError, Unavailable


def as_ours(error: Exception, title: str, folder: str) -> Exception:
    """The error to raise: an `OSError` that is not one of ours yet becomes one."""
    if isinstance(error, MainstemError) or not isinstance(error, OSError):
        return error
    ours: Unavailable
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        ours = DiskFull(
            f"no space left to append to {title}",
            detail=f'Nothing was acknowledged, what was written of it in "{folder}" was taken back, and reading goes on.',
            hint="Free space or shorten what the topics keep; appends go on by themselves then.",
            path=folder,
        )
    else:
        ours = Unavailable(
            f"could not use the files of {title}: {os.strerror(error.errno or 0)}",
            detail=f'Nothing was acknowledged. Folder: "{folder}".',
            hint="Check the disk; the same may be tried again.",
        )
    ours.__cause__ = error
    return ours


@contextmanager
def translated(title: str, folder: str) -> Iterator[None]:
    """Inside, what the operating system says is raised as an error of ours."""
    try:
        yield
    except OSError as error:
        ours = as_ours(error, title, folder)
        if ours is error:
            raise
        raise ours from error


def closed(what: str) -> Invalid:
    """The error of who goes on after `close()`: handles are numbers, and may mean other files by then."""
    return Invalid(
        f"{what} is closed",
        detail="close(), or the end of the with block, has let go of all files.",
        hint="Open the home again, and the topic, group or queue from it.",
    )
