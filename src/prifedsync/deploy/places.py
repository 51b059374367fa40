"""Where the files of a project lie. `prifedsync deploy init` makes the folders; each party gets its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerPlaces:
    """Files of the server's folder."""

    folder: Path

    @property
    def settings(self) -> Path:
        return self.folder / "server.toml"

    @property
    def config(self) -> Path:
        """What is trained, as `train` reads it. [clients] has each client's number of records."""
        return self.folder / "config.toml"

    @property
    def preprocessing(self) -> Path:
        """The public rules of raw rows: shape and task of a record."""
        return self.folder / "preprocessing.json"

    @property
    def nodes(self) -> Path:
        """The roster: NAME.pub is the public key of the SuperNode of client NAME."""
        return self.folder / "nodes"

    @property
    def secret(self) -> Path:
        """Whoever has it may take tasks of the SuperLink."""
        return self.folder / "tasks.secret"

    @property
    def authority(self) -> Path:
        return self.folder / "tls" / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "tls" / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls" / "server.key"

    @property
    def flower(self) -> Path:
        """Flower's own files: its home, its database, its log."""
        return self.folder / "flower"

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    @property
    def begun(self) -> Path:
        """The name of the run, which all that is asked carries."""
        return self.folder / "run.json"

    @property
    def status(self) -> Path:
        """What `deploy status` shows."""
        return self.folder / "status.json"


@dataclass(frozen=True)
class SitePlaces:
    """Files of a client's network side."""

    folder: Path

    @property
    def settings(self) -> Path:
        return self.folder / "site.toml"

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        """The secret key of this client's SuperNode, in OpenSSH's format; its public half has ".pub" appended."""
        return self.folder / "node.key"

    @property
    def public(self) -> Path:
        return self.folder / "node.key.pub"

    @property
    def secret(self) -> Path:
        """Whoever has it may take tasks of the SuperNode."""
        return self.folder / "tasks.secret"

    @property
    def flower(self) -> Path:
        """Flower's own files, and what the SuperNode shows to prove that it is ours."""
        return self.folder / "flower"

    @property
    def task_key(self) -> Path:
        return self.flower / "tasks.key"

    @property
    def task_certificate(self) -> Path:
        return self.flower / "tasks.crt"

    @property
    def task_authority(self) -> Path:
        return self.flower / "tasks-ca.crt"


@dataclass(frozen=True)
class ClientPlaces:
    """The folders of one client: the owner's, which nobody else may enter, its socket's, and the network side's."""

    folder: Path

    @property
    def owner(self) -> Path:
        return self.folder / "owner"

    @property
    def policy(self) -> Path:
        return self.owner / "policy.toml"

    @property
    def door(self) -> Path:
        return self.folder / "door"

    @property
    def site(self) -> Path:
        return self.folder / "site"


@dataclass(frozen=True)
class ProjectPlaces:
    """A whole project, as `deploy init` writes it."""

    folder: Path

    @property
    def server(self) -> ServerPlaces:
        return ServerPlaces(self.folder / "server")

    @property
    def authority(self) -> Path:
        """The certificate authority: its secret key signs certificates of servers, and belongs on no server."""
        return self.folder / "authority"

    @property
    def clients(self) -> Path:
        return self.folder / "clients"

    def client(self, name: str) -> ClientPlaces:
        return ClientPlaces(self.clients / name)
