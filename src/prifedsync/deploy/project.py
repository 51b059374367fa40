"""Writes a whole project: the server's folder, one for each client, and the authority's. All is checked before that.

It is written beside its place and then renamed, so that there is a whole project or none.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

from .. import __version__
from ..asking.frames import MOST_HEADER, PREFIX
from ..asking.vectors import ITEM
from ..asking.vectors import MOST_HEADER as MOST_VECTOR_HEADER
from ..config import Config, load, to_toml
from ..events import Event, Note
from ..files import write_file
from ..limits import RECORD
from ..owner.checkup import LONGEST_SOCKET
from ..owner.keys import make_identity
from ..owner.policy import Policy
from ..run import prepare
from ..run.prepare import Prepared
from ..values import BadValue, counted, number
from .example import Tables, example
from .filling import filled
from .hosts import Reached
from .places import ClientPlaces, ProjectPlaces, SitePlaces
from .policies import SOCKET, pinning, policies_of
from .schema import Schema, schema_of
from .settings import MOST_QUESTION, ListenConfig, ServerSettings, SiteSettings, WaitingConfig, waiting_for

HOME = "/srv/prifedsync"  # where a party puts its folder; units and container files name it
SECRET_BYTES = 32
FIRST_FREE_PORT = 1024  # lower ones are for the superuser, and for whoever has this capability
LOW_PORTS = "CAP_NET_BIND_SERVICE"
MOST_LISTED = 8  # clients that the first README lists by name
INSECURE = """
**This project is insecure: it has no TLS and no keys of servers and clients. It is for trying out on one machine, and the
steps about such keys do not apply.**
"""


@dataclass(frozen=True)
class Written:
    """A project that was written."""

    folder: Path
    place: str  # where clients reach the server
    policies: Mapping[str, Policy]
    records: bool  # whether each client's records were copied
    insecure: bool
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """What `deploy init --json` prints."""
        clients = {
            name: {
                "folder": str(ProjectPlaces(self.folder).client(folder_name(name)).folder),
                "records": policy.source.records,
                "mu": policy.budget.mu,
            }
            for name, policy in self.policies.items()
        }
        return {
            "project": str(self.folder),
            "server": self.place,
            "insecure": self.insecure,
            "records_copied": self.records,
            "clients": clients,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class _Project:
    """All that is written, and where."""

    places: ProjectPlaces
    schema: Schema
    prepared: Prepared
    unpinned: Mapping[str, Policy]  # they pin identities that are still to be made
    reached: Reached
    tables: Tables | None  # those of the example

    @property
    def waiting(self) -> WaitingConfig:
        """How long the server waits for owners of these policies."""
        return waiting_for(max(policy.replies.seconds for policy in self.unpinned.values()))


def folder_name(client: str) -> str:
    """A client's name as the name of a file or folder."""
    return quote(client, safe="")


def init(
    folder: Path, source: str | None, overrides: Sequence[str], reached: Reached, reply_seconds: float = 10.0
) -> Written:
    """Write a project into this folder: for the run of a config, or without one for the example."""
    _check_free(folder)
    number("reply-seconds", reply_seconds, 0, 86400)
    if source is not None:
        return _written(folder, load(source, overrides), reached, reply_seconds)
    with example(overrides) as (config, tables):
        return _written(folder, config, reached, reply_seconds, tables)


def _check_free(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        rule = "is not empty" if folder.is_dir() else "is a file"
        raise BadValue("project", folder, rule, "name a new folder: a project has keys that must not be mixed with others")
    if not folder.resolve().parent.is_dir():
        remedy = f"make {folder.resolve().parent} first"
        raise BadValue("project", folder, "lies in a folder that does not exist", remedy)


def _written(folder: Path, config: Config, reached: Reached, reply_seconds: float, tables: Tables | None = None) -> Written:
    notes: list[str] = []
    schema = schema_of(config, notes.append)
    prepared = prepare(schema.config, schema.description, watch=_noting(notes.append))
    unpinned = policies_of(prepared, schema, reply_seconds)
    temporary = _beside(folder.resolve())
    try:
        policies = _write(_Project(ProjectPlaces(temporary), schema, prepared, unpinned, reached, tables))
        _put(temporary, folder.resolve())
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Written(folder, reached.place, policies, bool(schema.shares), reached.insecure, tuple(notes))


def _beside(folder: Path) -> Path:
    """A new folder beside that one, for this user alone."""
    try:
        return Path(mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    except OSError as error:
        remedy = "name a folder where this user may write"
        raise BadValue("project", folder, f"cannot be made: {error.strerror}", remedy) from None


def _put(temporary: Path, folder: Path) -> None:
    """Rename the folder, or fill the empty one that is there: a shell may stand in it."""
    if not folder.exists():
        temporary.rename(folder)
        return
    folder.chmod(0o700)
    for path in sorted(temporary.iterdir()):
        path.rename(folder / path.name)
    temporary.rmdir()


def _noting(note: Callable[[str], None]) -> Callable[[Event], None]:
    def watch(event: Event) -> None:
        if isinstance(event, Note):
            note(event.text)

    return watch


def _write(project: _Project) -> dict[str, Policy]:
    places = project.places
    for name in project.schema.description.sizes:
        _make_folders(places.client(folder_name(name)))
    _folder(places.server.folder, 0o700)
    _write_server(project)
    if not project.reached.insecure:
        _write_keys(project)
    policies = _write_owners(project)
    for name, policy in policies.items():
        _write_client(project, name, policy)
    if project.tables is not None:
        _write_example(project.tables, places.folder)
    write_file(places.folder / "README.md", _first_page(project).encode())
    return policies


def _folder(path: Path, mode: int) -> None:
    """A new folder of this mode, whatever the umask."""
    path.mkdir(parents=True)
    path.chmod(mode)


def _make_folders(client: ClientPlaces) -> None:
    _folder(client.folder, 0o755)
    _folder(client.owner, 0o700)
    _folder(client.door, 0o700)
    _folder(client.site, 0o700)


# ---------------------------------------------------------------------- the server


def _write_server(project: _Project) -> None:
    server = project.places.server
    reached = project.reached
    rules = project.schema.rules.as_json()
    listen = ListenConfig(host=reached.listen, port=reached.port)
    settings = ServerSettings(insecure=reached.insecure, listen=listen, waiting=project.waiting)
    write_file(server.config, to_toml(project.prepared.config).encode())
    write_file(server.preprocessing, json.dumps(rules, indent=1, allow_nan=False).encode())
    write_file(server.settings, to_toml(settings, documented=True).encode())
    write_file(server.secret, secrets.token_bytes(SECRET_BYTES), private=True)
    texts = {
        "README.md": filled("server.md", place=reached.place, port=reached.port, warning=_warning(reached)),
        "prifedsync-server.service": filled(
            "server.service", capabilities=LOW_PORTS if reached.port < FIRST_FREE_PORT else ""
        ),
        "Containerfile": filled("server.Containerfile", version=__version__),
    }
    for name, text in texts.items():
        write_file(server.folder / name, text.encode())


def _write_keys(project: _Project) -> None:
    """The authority, the server's certificate, and the keys of the clients' network sides."""
    from .authority import new_authority, write_server_certificate
    from .nodes import make_node_key

    places = project.places
    authority = new_authority()
    _folder(places.authority, 0o700)
    write_file(places.authority / "ca.key", authority.secret_pem, private=True)
    write_file(places.authority / "ca.crt", authority.pem)
    _folder(places.server.key.parent, 0o700)
    write_server_certificate(places, authority, project.reached.hosts)
    _folder(places.server.nodes, 0o700)
    for name in project.schema.description.sizes:
        site = SitePlaces(places.client(folder_name(name)).site)
        line = make_node_key(site)
        write_file(site.authority, authority.pem)
        write_file(places.server.nodes / f"{folder_name(name)}.pub", f"{line}\n".encode())


# ---------------------------------------------------------------------- the clients


def _write_owners(project: _Project) -> dict[str, Policy]:
    """The identities first: each policy pins those of all others."""
    identities = {}
    for name, policy in project.unpinned.items():
        owner = project.places.client(folder_name(name)).owner
        identities[name] = make_identity(replace(policy, folder=owner)).hex()
    return {name: pinning(policy, identities) for name, policy in project.unpinned.items()}


def _question_bytes(policy: Policy) -> int:
    """The longest question of a run that the policy allows."""
    return PREFIX.size + MOST_HEADER + MOST_VECTOR_HEADER + ITEM["F64"] * policy.limits.parameters


def _write_client(project: _Project, name: str, policy: Policy) -> None:
    client = project.places.client(folder_name(name))
    site = SitePlaces(client.site)
    settings = SiteSettings(
        client=name,
        server=project.reached.place,
        insecure=project.reached.insecure,
        wait=project.waiting.round,
        question=max(MOST_QUESTION, _question_bytes(policy)),
    )
    write_file(client.policy, to_toml(policy, documented=True).encode(), private=True)
    write_file(site.settings, to_toml(settings, documented=True).encode())
    write_file(site.secret, secrets.token_bytes(SECRET_BYTES), private=True)
    share = project.schema.shares.get(name)
    if share is not None:
        content = share.read_bytes() if isinstance(share, Path) else share
        write_file(client.owner / policy.data.path, content, private=True)
    folder = _home_of(name)
    values = {"client": name, "folder": folder, "unit_folder": folder.replace("%", "%%"), "version": __version__}
    texts = {
        "README.md": _client_page(project, policy, folder, copied=share is not None),
        "prifedsync-owner.service": filled("owner.service", **values),
        "prifedsync-site.service": filled("site.service", **values),
        "Containerfile": filled("client.Containerfile", **values),
    }
    for file, text in texts.items():
        write_file(client.folder / file, text.encode())


def _home_of(client: str) -> str:
    """Where the units look for a client's folder: under its name, unless the path of its socket were too long."""
    folder = f"{HOME}/{folder_name(client)}"
    return folder if len(f"{folder}/owner/{SOCKET}") <= LONGEST_SOCKET else f"{HOME}/client"


# ---------------------------------------------------------------------- the pages


def _client_page(project: _Project, policy: Policy, folder: str, copied: bool) -> str:
    limits = policy.limits
    file = policy.data.path
    here = f"The records are in `owner/{file}`. Check that they are yours."
    elsewhere = (
        f"Put the {counted(policy.source.records, policy.source.unit)} into `owner/{file}`, in mode 0600, "
        f"with the columns that `[data]` of the policy names."
    )
    return filled(
        "client.md",
        client=policy.client,
        file=folder_name(policy.client),
        warning=_warning(project.reached),
        folder=folder,
        place=project.reached.place,
        rounds=limits.rounds,
        model=limits.models[0],
        rule=limits.rules[0],
        records=policy.source.records,
        units="records" if policy.source.unit == RECORD else "persons",
        noise=f"{limits.least_noise:g}",
        clip=f"{limits.clip_norm:g}",
        budget=f"mu = {policy.budget.mu:g}",
        seconds=f"{policy.replies.seconds:g}",
        records_step=here if copied else elsewhere,
    )


def _first_page(project: _Project) -> str:
    names = list(project.schema.description.sizes)
    rows = [f"| `clients/{folder_name(name)}/` | {name} |" for name in names[:MOST_LISTED]]
    rows += [f"| … | {len(names) - MOST_LISTED} more, each its own |"] if len(names) > MOST_LISTED else []
    authority = "| `authority/` | nobody: it signs certificates of the server. Keep it offline |"
    rows += [] if project.reached.insecure else [authority]
    roster = "Each owner's policy has the public keys of all others." if len(names) > 1 else ""
    return filled(
        "project.md",
        warning=_warning(project.reached),
        client_rows="\n".join(rows),
        place=project.reached.place,
        roster=roster,
        example="" if project.tables is None else filled("example.md"),
    )


def _warning(reached: Reached) -> str:
    return INSECURE if reached.insecure else ""


def _write_example(tables: Tables, folder: Path) -> None:
    place = folder / "example"
    _folder(place, 0o755)
    write_file(place / "rows.csv", tables.rows)
    write_file(place / "test.csv", tables.test)
