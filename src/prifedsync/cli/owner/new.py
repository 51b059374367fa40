"""`prifedsync owner new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Policy file to write; it must not exist.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a field of the policy; repeatable.")
    ] = None,
) -> None:
    """Write a policy with all fields, each explained."""
    from ...files import write_file
    from ...owner.policy import example
    from ...values import BadValue

    if path.exists():
        raise BadValue("policy", path, "exists already", "name a new file, or edit this one")
    if not path.parent.is_dir():
        raise BadValue("policy", path, "lies in a folder that does not exist", f"make {path.parent} first")
    write_file(path, example(overrides or ()).encode(), private=True)
    print(f"{path} is written; edit it, then run: prifedsync owner check {path}")
