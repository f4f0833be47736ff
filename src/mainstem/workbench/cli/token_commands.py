"""`mainstem token`: who may see a console over the network, and act through it."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

import typer

from mainstem.clock import SystemClock
from mainstem.durations import duration_us
from mainstem.workbench.access_tokens import AccessToken, AccessTokens
from mainstem.workbench.cli.command_arguments import HomeOption, find_home
from mainstem.workbench.cli.command_tree import new_noun
from mainstem.workbench.cli.json_output import JsonOption, print_json, print_outcome
from mainstem.workbench.cli.terminal_table import Column, moment, show_note, show_table

__all__ = ["app"]

app = new_noun()

_DAYS = re.compile(r"(\d{1,6})\s*d")


class TokenScope(StrEnum):
    """What a token permits."""

    READ = "read"
    ACT = "act"


@app.command()
def create(
    *,
    scope: Annotated[TokenScope, typer.Option(help="read; or act, which may also stop flows and settle messages.")] = (
        TokenScope.READ
    ),
    expires: Annotated[str, typer.Option(help='How long it is valid: "30 days", or 30d.')] = "30 days",
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Create a token, and print it. It is printed once: the home keeps only its hash.

    Example: mainstem token create --scope read --expires "30 days"
    """
    days = _DAYS.fullmatch(expires.strip())
    lasts = duration_us(f"{days[1]} days" if days else expires, setting="--expires")
    tokens = AccessTokens(find_home(home, "refuse"))
    text = tokens.create(scope.value, lasts_us=lasts)
    if as_json:
        print_outcome("created", text, as_json=True, token=text, **_json(tokens.all()[-1]))
        return
    typer.echo(text)
    show_note("It is not shown again. In a browser it is asked for once; a program sends it as Authorization: Bearer.")


@app.command("list")
def list_tokens(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the tokens: id, scope, and until when each is valid.

    Example: mainstem token list
    """
    found = AccessTokens(find_home(home, "refuse")).all()
    if as_json:
        print_json([_json(token) for token in found])
        return
    columns = [
        Column("token", style="bold"),
        Column("scope"),
        Column("created", firm=True),
        Column("valid until", firm=True),
    ]
    show_table(
        columns,
        ([token.id, token.scope, moment(token.created), moment(token.expires)] for token in found),
        empty="no tokens",
    )


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="The id of the token, as the list has it.")],
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Revoke a token: from now on it is refused.

    Example: mainstem token revoke 5f2a91c0
    """
    AccessTokens(find_home(home, "refuse")).revoke(token)
    print_outcome("revoked", f"revoked token {token}", as_json=as_json, id=token)


def _json(token: AccessToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "scope": token.scope,
        "created_at": token.created,
        "expires_at": token.expires,
        "expired": token.expires_at <= SystemClock().now(),
    }
