"""`mainstem store`: the stores that flows of this home keep current."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainstem.errors import NotFound, did_you_mean
from mainstem.workbench.cli.command_arguments import HomeOption, SparkOption, open_home
from mainstem.workbench.cli.command_tree import new_noun
from mainstem.workbench.cli.json_output import JsonOption, print_json, print_outcome
from mainstem.workbench.cli.program_file import load_program
from mainstem.workbench.cli.terminal_table import Column, moment, show_count, show_facts, show_progress, show_table

if TYPE_CHECKING:
    from mainstem.sinks.store import StoreStatus

__all__ = ["app"]

app = new_noun()

StoreArgument = Annotated[str, typer.Argument(metavar="STORE", help="The store's name.")]
ProgramOption = Annotated[
    str, typer.Option("--program", metavar="PROGRAM.py", help="The program that has the store's flow.")
]


@app.command("list")
def list_stores(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the stores that flows of this home have written, with the place of each.

    Example: mainstem store list
    """
    from mainstem.sinks.store_record import StoreRecord, store_names

    with open_home(home) as stem:
        found = [(name, StoreRecord(stem.home, name).read()) for name in store_names(stem.home)]
    if as_json:
        print_json([{"store": name, "version": facts.version, "location": facts.location} for name, facts in found])
        return
    columns = [Column("store", style="bold"), Column("version", align="right"), Column("location")]
    show_table(columns, [[name, str(facts.version), facts.location] for name, facts in found], empty="no stores")


@app.command()
def describe(
    store: StoreArgument, *, program: ProgramOption, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Show how far a store is, and whether it is being filled. The program says how it is reached.

    Example: mainstem store describe postgres.products --program shop.py
    """
    from mainstem.workbench.cli.before_spark import sinks_of

    file = load_program(program)
    with open_home(home) as stem:
        stores = {sink.name: sink for sink in sinks_of(stem, file) if sink.kind == "store"}
        if store not in stores:
            raise NotFound(
                f'no flow of the program writes into store "{store}"',
                detail=f"Its flows write into the stores: {', '.join(stores) or 'none'}.",
                hint=did_you_mean(store, stores) or "Name one of these.",
            )
        found: Any = stores[store]
        status: StoreStatus = found.status
    if as_json:
        print_json(_json(status))
        return
    facts = [
        ("location", status.location),
        ("state", status.state),
        ("version", str(status.version)),
        ("next version", "none" if status.next_version is None else f"{status.next_version}, being filled"),
        ("flow", status.flow or "none"),
        ("last batch", "none" if status.batch < 0 else str(status.batch)),
        ("applied at", "never" if status.applied_at is None else moment(status.applied_at)),
    ]
    facts += [
        (f"applied of {topic}", ", ".join(f"{number}: {end}" for number, end in sorted(ends.items())))
        for topic, ends in status.offsets.items()
    ]
    show_facts(facts)


def _json(status: StoreStatus) -> dict[str, Any]:
    return {
        "store": status.name,
        "location": status.location,
        "state": status.state,
        "version": status.version,
        "next_version": status.next_version,
        "flow": status.flow,
        "batch": status.batch,
        "applied_at": None if status.applied_at is None else status.applied_at.isoformat(),
        "offsets": status.offsets,
    }


@app.command()
def rebuild(
    store: StoreArgument,
    *,
    program: ProgramOption,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Also if retention has removed records: rows may be missing.")
    ] = False,
    spark: SparkOption = "local[*]",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Fill a store again from the log beside what readers see, then switch in one step.

    The store's flow may run meanwhile. Keys that the log no longer has are gone afterwards.

    Example: mainstem store rebuild postgres.products --program shop.py
    """
    from mainstem.workbench.cli.before_spark import check_writable

    file = load_program(program)
    with open_home(home, upkeep="background", spark=spark) as stem:
        check_writable(stem.home)
        with show_progress("start Spark"):
            _ = stem.spark
        with show_progress(f"rebuild {store}", total=100) as shown, file.locate_errors():

            def show_filled(done: int, total: int) -> None:
                shown.advance_to(100 * done // max(1, total), f"{show_count(done)} of {show_count(total, 'row')}")

            status = stem.rebuild_store(store, file.flows, incomplete=incomplete, tell=show_filled)
        print_outcome("rebuilt", f"version {status.version} of {store} is live", as_json=as_json, **_json(status))
