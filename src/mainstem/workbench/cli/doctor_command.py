"""`mainstem doctor`: whether this machine, this home and what they are connected with can do their work."""

from __future__ import annotations

import os
from dataclasses import asdict

import typer

from mainstem.errors import MainstemError
from mainstem.workbench.cli.amounts import counted
from mainstem.workbench.cli.home_option import HomeOption, find_home
from mainstem.workbench.cli.json_output import JsonOption, print_json
from mainstem.workbench.cli.terminal_table import show_facts, show_note
from mainstem.workbench.examination import Examination

__all__ = ["doctor"]

MARKS = {"well": "ok", "doubtful": "look", "ill": "BAD"}


def doctor(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Look at what a setup needs: Java, Spark, the home's disk, rights and clock, the log and the views.

    Of a home whose log is on Kafka or whose views are in PostgreSQL, whether they can be reached. Without a home, only the
    machine. The exit status is 1 if something is bad, with what to do.

    Example: mainstem doctor --home data/shop
    """
    try:
        path: str | None = find_home(home, "refuse")
    except MainstemError:
        if home is not None:
            raise
        path = None
    findings = list(Examination(path, os.environ).findings())
    ill = [finding for finding in findings if finding.state == "ill"]
    if as_json:
        print_json({"home": path, "findings": [asdict(finding) for finding in findings]})
    else:
        show_facts((f"{MARKS[finding.state]:4}  {finding.subject}", finding.detail) for finding in findings)
        for finding in findings:
            if finding.advice:
                show_note(f"{finding.subject}: {finding.advice}")
        if path is None:
            show_note("Only the machine was looked at; name a home with --home DIR.")
        elif not ill:
            typer.echo(f"{counted(len(findings), 'thing')} looked at, nothing is bad")
    if ill:
        raise typer.Exit(1)
