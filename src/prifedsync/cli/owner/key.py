"""`prifedsync owner key`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import PolicyFile


def key(
    policy: PolicyFile,
    new: Annotated[bool, typer.Option("--new", help="Replace the key; the old one stays beside it.")] = False,
) -> None:
    """Make this owner's key, or print its public half."""
    from ...config.toml import toml
    from ...owner.policy import read

    found = read(policy)
    from ...local.masks import public_identity
    from ...owner.keys import make_identity, read_identity

    path = found.path("identity")
    known = path is not None and path.exists() and not new
    public = public_identity(read_identity(found)) if known else make_identity(found, new=new)
    print(f'{toml(found.client)} = "{public.hex()}"')
