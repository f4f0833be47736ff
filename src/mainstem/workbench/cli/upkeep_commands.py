"""`mainstem topic seal`, `compact` and `verify`: the files of a topic."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from mainstem.errors import Invalid
from mainstem.workbench.cli.command_arguments import HomeOption, TakeOverOption, TopicArgument, open_home, take_over_if
from mainstem.workbench.cli.error_text import FAILED, visible
from mainstem.workbench.cli.row_output import JsonOption, print_json
from mainstem.workbench.cli.terminal_table import Column, about_size, counted, show_note, show_progress, show_table

if TYPE_CHECKING:
    from mainstem.log.upkeep_report import CompactionReport, Problem, RetentionReport, Verification

__all__ = ["compact", "seal", "verify"]


def seal(topic: TopicArgument, *, take_over: TakeOverOption = False, home: HomeOption = None) -> None:
    """Make Parquet files of everything appended so far; it happens by itself when a segment is large or old enough.

    Example: mainstem topic seal orders
    """
    with open_home(home) as stem:
        found = stem.topic(topic)
        take_over_if(found, asked=take_over)
        with show_progress(f"seal {topic}"):
            made = found.seal()
        typer.echo(f"sealed {counted(made, 'segment')} of {topic}" if made else f"nothing to seal in {topic}")


def compact(
    topic: TopicArgument, *, take_over: TakeOverOption = False, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Take out what a topic need not keep: of one that keeps the latest record per key, the others; else what is too old
    or too much. It happens by itself where a program has the home open.

    Of records per key, what is not sealed yet is left alone: seal first if all of it is to be looked at.

    Example: mainstem topic compact customers
    """
    from mainstem.log.keep_rule import Keep
    from mainstem.log.upkeep_report import CompactionReport

    with open_home(home) as stem:
        found = stem.topic(topic)
        keep = found.settings.keep
        if keep == Keep.forever():
            raise Invalid(
                f'topic "{topic}" keeps every record',
                detail="There is nothing to take out.",
                hint=f'Alter it first, for instance: mainstem topic alter {topic} --keep "7 days"',
            )
        take_over_if(found, asked=take_over)
        with show_progress(f"compact {topic}"):
            report = found.compact() if keep.compacted else found.drop_expired()
        if as_json:
            print_json({"topic": found.name, **dataclasses.asdict(report)})
        else:
            typer.echo(
                f"{found.name}: {_compacted(report) if isinstance(report, CompactionReport) else _dropped(report)}"
            )
        if report.clock_jump is not None:
            show_note(
                f"Warning: the time of day moved by {report.clock_jump} otherwise than the machine's own clock; "
                "nothing was dropped because of that."
            )


def _compacted(report: CompactionReport) -> str:
    return (
        f"of {counted(report.records_before, 'record')} {counted(report.records_after)} are left, "
        f"{counted(report.removed)} had a later one and {counted(report.tombstones)} told of a deletion long enough; "
        f"{about_size(report.bytes_before)} became {about_size(report.bytes_after)}"
    )


def _dropped(report: RetentionReport) -> str:
    if not report.segments:
        return "nothing is too old or too much"
    archived = f", {counted(report.archived)} of them archived" if report.archived else ""
    return (
        f"dropped {counted(report.segments, 'segment')} with {counted(report.records, 'record')} and "
        f"{about_size(report.bytes)}{archived}"
    )


def verify(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="The topic; else all.", show_default=False)
    ] = None,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Read every byte and say what is sound. The exit status is 1 if anything is not, and the range is named.

    Example: mainstem topic verify orders
    """
    with open_home(home) as stem:
        names = stem.topics() if topic is None else [topic]
        reports = []
        with show_progress("verify", total=len(names)) as progress:
            for number, name in enumerate(names):
                progress.reached(number, name)
                reports.append(stem.topic(name).verify())
        if as_json:
            print_json([{**dataclasses.asdict(report), "sound": report.sound} for report in reports])
        else:
            show_table(
                [
                    Column("topic", style="bold"), Column("sound"), Column("records", "right"), Column("size", "right"),
                    Column("sealed", "right"), Column("not sealed", "right"),
                ],
                (
                    [
                        report.topic, "yes" if report.sound else "NO", counted(report.records), about_size(report.bytes),
                        str(report.sealed_segments), str(report.block_segments),
                    ]
                    for report in reports
                ),
                empty="no topics yet",
            )  # fmt: skip
            _show_problems(reports)
        if not all(report.sound for report in reports):
            raise typer.Exit(FAILED)


def _show_problems(reports: list[Verification]) -> None:
    """Each in two lines: what it costs and why, then the file, whole, so that it can be copied."""
    for report in reports:
        for problem in report.problems:
            what = problem.what.replace(f' "{problem.file}"', "")
            typer.echo(f"\n{report.topic}, partition {problem.partition}{_span(problem)}: {visible(what)}")
            typer.echo(f"    {visible(problem.file)}")


def _span(problem: Problem) -> str:
    if problem.first_offset is None:
        return ""
    last = "the end" if problem.last_offset is None else str(problem.last_offset)
    return f", offsets {problem.first_offset} to {last}"
