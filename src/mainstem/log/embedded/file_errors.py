"""What the operating system says about a partition's files, as errors of ours."""

from __future__ import annotations

import errno
import os
import resource

from mainstem.errors import DiskFull, Invalid, MainstemError, Unavailable

# The process, or the machine, has no file handle left.
NO_HANDLE = (errno.EMFILE, errno.ENFILE)


def no_handle_left(error: OSError) -> Unavailable:
    """The error of who needs a file handle where there is none: still an `OSError` with that number."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    whose = f"This process has as many files open as it may: {limit} (ulimit -n)."
    raised = "ulimit -n 65536, or LimitNOFILE= of a service"
    if error.errno == errno.ENFILE:
        whose = "This machine has as many files open as it may (sysctl fs.file-max)."
        raised = "sysctl -w fs.file-max=1000000"
    ours = Unavailable(
        f'no file handle left to open "{error.filename}"' if error.filename else "no file handle left",
        detail=f"{whose} What was under way is not acknowledged and may be tried again.",
        hint=f"Raise the limit ({raised}), or close files that the program does not need.",
    )
    ours.errno = error.errno
    return ours


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


def closed(what: str) -> Invalid:
    """The error of who goes on after `close()`: handles are numbers, and may mean other files by then."""
    return Invalid(
        f"{what} is closed",
        detail="close(), or the end of the with block, has let go of all files.",
        hint="Open the home again, and the topic, group or queue from it.",
    )
