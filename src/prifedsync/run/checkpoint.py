"""A run on disk, whole at every moment: what changed is written first, then a manifest is renamed into place.

The folder holds clients.safetensors and, where models stay with clients, kept.safetensors; where the server remembers
uploads or helpers, uploads.safetensors and helpers.safetensors (all of them `store.py`); besides them
server-N.safetensors, manifest.json, and for secret draws secret.key, which only its owner may read and which is deleted
with the folder when the run is over.

The manifest holds checksums of all of it: of the server's file, of every client's state, of the log as far as it is saved,
and of the manifest itself. What does not match is refused when the run is resumed.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load as tensors_of
from safetensors.torch import save
from torch import Tensor

from ..files import checksum, damaged, write_file
from ..local.draws import KEY_BYTES
from ..rules import Server
from ..server import Aggregator
from ..sync import Engine
from ..values import BadValue

MANIFEST = "manifest.json"
SECRET = "secret.key"
SERVER_VECTORS = ("mean", "momentum", "square")  # what the server may have besides its weights


@dataclass(frozen=True)
class Checkpoint:
    """The folder of one run's checkpoints."""

    folder: Path

    def exists(self) -> bool:
        return (self.folder / MANIFEST).is_file()

    def save(self, server: Server, engine: Engine, aggregator: Aggregator, progress: dict[str, Any]) -> None:
        """Everything needed to go on; if anything fails on the way, the last checkpoint still stands."""
        clients = engine.save()
        remembered = aggregator.save()
        name = f"server-{server.round}.safetensors"
        tensors = {"weights": server.weights.cpu().contiguous()}
        for kept in SERVER_VECTORS:
            if (vector := getattr(server, kept)) is not None:
                tensors[kept] = vector.cpu().contiguous()
        content = save(tensors)
        write_file(self.folder / name, content)
        manifest: dict[str, Any] = {
            "engine": clients,
            "aggregator": remembered,
            "server": name,
            "server_checksum": checksum(content),
            "round": server.round,
            "averaged": server.averaged,
            "merges": server.merges,
            "progress": progress,
        }
        manifest["checksum"] = checksum(_canonical(manifest))
        write_file(self.folder / MANIFEST, _canonical(manifest), private=True)
        engine.saved()
        aggregator.saved()
        for old in self.folder.glob("server-*.safetensors"):
            if old.name != name:
                old.unlink()

    def load(self, engine: Engine, aggregator: Aggregator) -> tuple[Server, dict[str, Any]]:
        """Give both sides back what they carried; returns the server and what the run noted."""
        manifest = self._manifest()
        tensors = self._server(manifest)
        engine.load(manifest["engine"])
        aggregator.load(manifest["aggregator"])
        device = aggregator.start.device
        server = Server(
            weights=tensors["weights"].to(device),
            round=manifest["round"],
            averaged=manifest["averaged"],
            merges=manifest["merges"],
            **{name: tensors[name].to(device) for name in SERVER_VECTORS if name in tensors},
        )
        return server, manifest["progress"]

    def _manifest(self) -> dict[str, Any]:
        """The manifest, if it is as it was written."""
        path = self.folder / MANIFEST
        try:
            manifest = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            raise damaged(path) from None
        if not isinstance(manifest, dict):
            raise damaged(path)
        if not {"checksum", "engine", "aggregator"} <= manifest.keys():
            raise BadValue("resume", self.folder.parent, "was begun by another version", "resume with that one")
        saved = manifest.pop("checksum")
        if checksum(_canonical(manifest)) != saved:
            raise damaged(path)
        return manifest

    def _server(self, manifest: dict[str, Any]) -> dict[str, Tensor]:
        """The server's tensors, if they are as they were written."""
        path = self.folder / manifest["server"]
        if not path.is_file():
            raise BadValue("checkpoint", path, "is not there", "start the run again")
        content = path.read_bytes()
        if checksum(content) != manifest["server_checksum"]:
            raise damaged(path)
        return tensors_of(content)

    def secret(self, begun: bool) -> bytes:
        """The key of this run's secret draws, in a folder that only this process works in.

        A key is of use only with the manifest that says what it was used for. Until there is one nothing was drawn, and a
        new key is made, unless the run has begun all the same (`begun`: it has logged rounds): then its manifest is lost.
        """
        path = self.folder / SECRET
        if not self.exists():
            if begun:
                raise BadValue(
                    "resume", self.folder.parent, f"has rounds but no {MANIFEST}: its checkpoint is lost", "train anew"
                )
            _write_secret(path, os.urandom(KEY_BYTES))
        if not path.is_file():
            raise BadValue("resume", self.folder.parent, f"has no {SECRET}: its noise cannot be repeated", "train anew")
        if path.stat().st_mode & 0o077:
            raise BadValue("secret key", path, "can be read by others", "make a new run: its noise may be known")
        return path.read_bytes()

    def remove(self) -> None:
        """The run is over: first what must not stay, then what makes it resumable, then the rest."""
        (self.folder / SECRET).unlink(missing_ok=True)  # no round is left that needs it
        (self.folder / MANIFEST).unlink(missing_ok=True)
        if self.folder.exists():
            shutil.rmtree(self.folder)


def _write_secret(path: Path, secret: bytes) -> None:
    partly = path.with_suffix(".new")
    partly.unlink(missing_ok=True)
    file = os.open(partly, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, secret)
    os.fsync(file)
    os.close(file)
    os.replace(partly, path)


def _canonical(manifest: dict[str, Any]) -> bytes:
    """One text for one manifest, so that it can be checked."""
    return json.dumps(manifest, sort_keys=True).encode()
