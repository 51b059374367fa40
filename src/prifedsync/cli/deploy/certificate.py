"""`prifedsync deploy certificate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def certificate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the project, with its authority.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server; repeatable; default: as before.")
    ] = None,
) -> None:
    """Issue a new certificate of the server."""
    from ...deploy.authority import ends, hosts_of, read_authority, write_server_certificate
    from ...deploy.hosts import checked_host
    from ...deploy.places import ProjectPlaces

    places = ProjectPlaces(folder)
    authority = read_authority(places)
    hosts = [checked_host(each) for each in host] if host else hosts_of(places.server.certificate)
    write_server_certificate(places, authority, hosts)
    named = ", ".join(hosts_of(places.server.certificate))
    print(f"{places.server.certificate} is for {named}, until {ends(places.server.certificate):%Y-%m-%d}")
    print(f"copy {places.server.key.parent} to the server, and restart it")
