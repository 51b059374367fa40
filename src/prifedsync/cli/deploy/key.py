"""`prifedsync deploy key`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def key(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder of a client's network side.")],
    new: Annotated[bool, typer.Option("--new", help="Replace the key; the old one stays beside it.")] = False,
) -> None:
    """Make the key of a client's network side."""
    from urllib.parse import quote

    from ...deploy.nodes import node_key_of

    client, line = node_key_of(site, new=new)
    print(line)
    typer.echo(f"give this line to the server: nodes/{quote(client, safe='')}.pub in its folder", err=True)
