"""Words that the commands about views share: the view's name, and the view itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mainstem.stem import Mainstem
    from mainstem.views.view import View

__all__ = ["AsOfOption", "ViewArgument", "opened_view"]

ViewArgument = Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.", show_default=False)]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME|TOKEN",
        help="What it was: at a time with a zone, or right after an append.",
        show_default=False,
    ),
]


@contextmanager
def opened_view(stem: Mainstem, name: str) -> Iterator[View]:
    """A view that is there; no command makes one."""
    from mainstem.names import check_own_name

    check_own_name(name, "view")
    view = stem.view(name)
    try:
        # Raises, with the views there are, if there is none of that name.
        view.describe()
        yield view
    finally:
        view.close()
