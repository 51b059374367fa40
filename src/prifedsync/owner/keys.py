"""The owner's identity: a secret key in a file, whose public half the other owners pin in their policies.

`local` is imported where a key is made: whoever only reads one, to sign a receipt, needs no torch.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from ..files import keep_dated, write_file
from ..values import BadValue
from .permissions import check_private
from .policy import Policy

SECRET = re.compile("[0-9a-f]{64}\n?")


def make_identity(policy: Policy, *, new: bool = False, today: date | None = None) -> bytes:
    """A new identity in the policy's file; its public half.

    new: in the place of an old one, which stays beside it under its name and the date.
    """
    path = _path(policy)
    if path.exists():
        if not new:
            rule = "holds an identity already"
            raise BadValue(
                "masks.identity", path, rule, "to replace it, add --new; the other owners must then pin the new one"
            )
        keep_dated(path, today)
    elif not path.parent.is_dir():
        raise BadValue("masks.identity", path, "lies in a folder that does not exist", f"make {path.parent} first")
    from ..local.masks import new_identity, public_identity

    identity = new_identity()
    write_file(path, f"{identity.hex()}\n".encode(), private=True)
    return public_identity(identity)


def read_identity(policy: Policy) -> bytes:
    """The secret identity of this owner."""
    path = _path(policy)
    if not path.is_file():
        remedy = "`prifedsync owner key POLICY` makes it"
        raise BadValue("masks.identity", path, "does not exist", remedy)
    check_private("masks.identity", path)
    text = path.read_text(encoding="ascii", errors="replace")
    if not SECRET.fullmatch(text):
        remedy = "restore it from a backup, or make a new one: `prifedsync owner key POLICY --new`"
        raise BadValue("masks.identity", path, "is not an identity of 64 hexadecimal digits", remedy)
    return bytes.fromhex(text)


def pinned(policy: Policy) -> dict[str, bytes]:
    """The public identities of all owners that this one may share a sum with, its own among them."""
    from ..local.masks import public_identity

    own = public_identity(read_identity(policy))
    peers = {name: bytes.fromhex(key) for name, key in policy.masks.peers.items()}
    for name, key in peers.items():
        if key == own:
            rule = "is this owner's own key: it would be its own partner in a sum"
            raise BadValue(f"masks.peers.{name}", key.hex(), rule, f"ask {name} for its key")
    return {**peers, policy.client: own}


def _path(policy: Policy) -> Path:
    path = policy.path("identity")
    if path is None:
        raise BadValue("masks.identity", '""', "must be set", 'name a file in the policy, as in identity = "identity.key"')
    return path
