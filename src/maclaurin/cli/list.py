"""``maclaurin list``: the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from maclaurin.cli.output import Column, hint, integer, print_json, print_table

if TYPE_CHECKING:
    from maclaurin.algebra import Recipe

#: Head size at which the states are compared.
HEAD_DIM = 16


def list_mechanisms(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """List every mechanism of the catalogue.

    The state is how many numbers one key/value head keeps at key and value dim 16, at any length; '-' where there is
    no finite state and the cache grows with every token.

    \b
    Examples:
      maclaurin list
      maclaurin list --json
    """
    from maclaurin.algebra import CATALOGUE

    rows = [describe(each) for each in CATALOGUE.values()]
    if as_json:
        print_json({"mechanisms": rows})
        return
    print_table(
        [
            Column("name"),
            Column("state", is_number=True),
            Column("mechanism"),
            Column("summary", is_note=True),
        ],
        [
            (
                row["name"],
                integer(row["state_size"]) if row["is_finite_state"] else "-",
                row["mechanism"],
                row["summary"],
            )
            for row in rows
        ],
    )
    hint(f"'maclaurin show NAME' explains one; state: numbers per head at K = V = {HEAD_DIM}.")


def describe(recipe: Recipe) -> dict[str, Any]:
    """One row of the catalogue; ``state_size`` is None for a mechanism without a finite state."""
    mechanism = recipe.mechanism
    return {
        "name": recipe.name,
        "mechanism": str(mechanism),
        "positivity": mechanism.positivity,
        "is_finite_state": mechanism.is_finite_state,
        "key_dim": HEAD_DIM,
        "value_dim": HEAD_DIM,
        "state_size": mechanism.state_size(HEAD_DIM, HEAD_DIM) if mechanism.is_finite_state else None,
        "summary": recipe.summary,
        "literature": list(recipe.literature),
        "aliases": list(recipe.aliases),
    }
